"""The readiness probe: the recorded answer, another one, and no record at all."""

import msgspec
import pytest

from enginebay.assembly import assemble
from enginebay.config import load_stack
from enginebay.conformance.tiny import write_tiny
from enginebay.errors import ModelError, StackError
from enginebay.probe import Record, find_record, probe


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model folder."""
    return str(write_tiny(tmp_path_factory.mktemp("probe") / "tiny"))


def assembled(model, **engine):
    changes = {f"engine.{name}": value for name, value in engine.items()}
    changes |= {"engine.model": model, "engine.num_blocks": 32}
    return assemble(load_stack("reference", changes).without("transports", "sinks"))


def stored(record, tmp_path, **changes):
    path = tmp_path / "record.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, **changes)))
    return str(path)


def test_without_a_record_it_is_ready_but_not_validated(model):
    """The shipped record is of another model: no comparison, no validation."""
    assembly = assembled(model)
    answer = probe(assembly)
    assert len(answer.token_ids) == len(answer.logprobs) == 8
    assert not assembly.engine.validated
    assert not assembly.engine.busy
    counted = [line for line in assembly.engine.watch.render().splitlines() if "_total{" in line]
    assert {line.rpartition(" ")[2] for line in counted} == {"0.0"}, "the probe is no request"


def test_an_equal_answer_validates(model, tmp_path):
    """Ids, log-probabilities and, on the same machine, bits."""
    record = probe(assembled(model))
    assembly = assembled(model, probe_record=stored(record, tmp_path))
    probe(assembly)
    assert assembly.engine.validated


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"token_ids": (1, 2, 3, 4, 5, 6, 7, 8)}, "the engine drew tokens"),
        ({"logprobs": (-9.0,) * 8}, "log-probabilities differ"),
        ({"checksum": "0", "fingerprint": "same"}, "gave other bits"),
    ],
)
def test_another_answer_stops_the_start(model, tmp_path, changes, told):
    """Wrong ids, logits out of tolerance, or other bits under the same fingerprint."""
    record = probe(assembled(model))
    path = stored(record, tmp_path, **changes)
    if "fingerprint" in changes:  # the stack's own fingerprint covers the record's path
        probed = probe(assembled(model, probe_record=stored(record, tmp_path)))
        path = stored(record, tmp_path, checksum="0", fingerprint=probed.fingerprint)
    with pytest.raises(ModelError, match=told):
        probe(assembled(model, probe_record=path))


def test_a_stack_may_demand_validation(model):
    """No record for this revision: it does not start, and says how to make one."""
    with pytest.raises(StackError, match="--record-probe"):
        probe(assembled(model, require_validation=True))


def test_a_record_that_is_none_is_told(tmp_path):
    """A missing file and a file that is no record are errors; the shipped one is found."""
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    with pytest.raises(StackError, match=r"wrong\.json"):
        find_record(str(wrong))
    with pytest.raises(StackError, match="no such file"):
        find_record("nowhere.json")
    assert isinstance(find_record("smollm2-135m-instruct.json"), Record)
