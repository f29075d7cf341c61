"""The contract changes on purpose or not at all; every change is minor or major."""

import copy
import subprocess
import sys

import pytest

from enginebay.conformance.changes import classify, versions_to_raise
from enginebay.conformance.schema import report, schema, stored
from enginebay.hookspecs import FAMILIES

CODE = schema()


def changed(edit):
    """(changes as text, versions to raise) after an edit of the code's schema."""
    new = copy.deepcopy(CODE)
    edit(new)
    changes = classify(CODE, new)
    return [str(change) for change in changes], versions_to_raise(CODE, new, changes)


def test_the_code_has_the_stored_contract():
    """On a difference the message lists each change, the versions to raise, and the fix."""
    told = report(stored(), CODE)
    assert not told, told


def test_every_family_is_in_the_schema():
    """Its hook, with argument names, and the Protocol that the hook returns."""
    assert CODE["families"].keys() == FAMILIES.keys()
    for name, family in CODE["families"].items():
        assert family["parameters"] == ["options: Any", family["parameters"][1]]
        assert f"{name}.{family['returns']}" in CODE["protocols"]


def test_members_are_read_as_they_are_written():
    """Types, defaults, keyword-only parameters, properties, tags and aliases."""
    assert CODE["structs"]["flow.Request"]["fields"]["adapter"] == "str | None = None"
    assert CODE["structs"]["flow.Delta"]["tag"] == "delta"
    assert CODE["structs"]["batch.Batch"]["fields"]["tables"] == "torch.Tensor"
    assert CODE["structs"]["format.TextAssets"]["fields"]["tokenizer"] == "tokenizers.Tokenizer"
    assert CODE["aliases"]["flow.TokenIds"] == "tuple[int, ...]"
    scheduler = CODE["protocols"]["scheduler.Scheduler"]
    assert scheduler["methods"]["plan"] == {"parameters": ["build: StepBuilder"], "returns": "None"}
    stream = CODE["protocols"]["detokenizer.TextStream"]
    assert stream["methods"]["feed"]["parameters"] == [
        "token_id: int",
        "*",
        "may_stop: bool = True",
    ]
    view = CODE["protocols"]["scheduler.SequenceView"]
    assert view["methods"]["deadline"] == {"property": "float | None"}
    assert CODE["protocols"]["sampler.Edit"]["bases"] == ["Transform"]


def test_equal_schemas_have_no_changes():
    """Nothing to report, nothing to raise."""
    assert changed(lambda new: None) == ([], {})


def _field(name, text):
    return lambda new: new["structs"]["flow.Usage"]["fields"].update({name: text})


def _method(key, name):
    plain = {"parameters": [], "returns": "None"}
    return lambda new: new["protocols"][key]["methods"].update({name: plain})


MINOR = {
    "an optional field": (_field("audio_tokens", "int = 0"), "flow.Usage.audio_tokens"),
    "a default": (_field("prompt_tokens", "int = 0"), "flow.Usage.prompt_tokens"),
    "a struct": (lambda new: new["structs"].update({"flow.New": {}}), "flow.New"),
    "an optional capability": (
        lambda new: new["protocols"].update({"scheduler.New": {}}),
        "scheduler.New",
    ),
    "a method that the core provides": (
        _method("scheduler.StepBuilder", "peek"),
        "scheduler.StepBuilder.peek",
    ),
    "an optional parameter of such a method": (
        lambda new: new["protocols"]["model.Builder"]["methods"]["op"]["parameters"].append(
            "why: str = ''"
        ),
        "model.Builder.op",
    ),
    "a hook argument": (
        lambda new: new["families"]["sink"]["parameters"].append("log: Log"),
        "sink",
    ),
}
MAJOR = {
    "a field without a default": (_field("audio_tokens", "int"), "flow.Usage.audio_tokens"),
    "another type": (_field("cached_tokens", "float = 0"), "flow.Usage.cached_tokens"),
    "another default": (_field("cached_tokens", "int = 1"), "flow.Usage.cached_tokens"),
    "a field less": (
        lambda new: new["structs"]["flow.Usage"]["fields"].pop("cached_tokens"),
        "flow.Usage.cached_tokens",
    ),
    "a struct less": (lambda new: new["structs"].pop("flow.Usage"), "flow.Usage"),
    "another tag": (
        lambda new: new["structs"]["flow.Delta"].update(tag="chunk"),
        "flow.Delta",
    ),
    "another alias": (
        lambda new: new["aliases"].update({"flow.TokenIds": "list[int]"}),
        "flow.TokenIds",
    ),
    "a method that plugins must have": (
        _method("scheduler.Scheduler", "pause"),
        "scheduler.Scheduler.pause",
    ),
    "a method less": (
        lambda new: new["protocols"]["scheduler.StepBuilder"]["methods"].pop("run"),
        "scheduler.StepBuilder.run",
    ),
    "a parameter of a plugin's method": (
        lambda new: new["protocols"]["allocator.Allocator"]["methods"]["free"]["parameters"].append(
            "why: str = ''"
        ),
        "allocator.Allocator.free",
    ),
    "a property made a method": (
        _method("executor.Executor", "depth"),
        "executor.Executor.depth",
    ),
    "a renamed hook argument": (
        lambda new: new["families"]["sink"].update(parameters=["options: Any", "ctx: SinkContext"]),
        "sink",
    ),
    "another entry-point group": (
        lambda new: new["families"]["sink"].update(group="enginebay.outlets"),
        "sink",
    ),
    "a family less": (lambda new: new["families"].pop("grammar"), "grammar"),
}


@pytest.mark.parametrize("name", MINOR)
def test_what_an_old_plugin_survives_is_minor(name):
    """Exactly the one change, at its place."""
    edit, where = MINOR[name]
    (told,), _ = changed(edit)
    assert told.startswith(f"minor: {where}: ")


@pytest.mark.parametrize("name", MAJOR)
def test_what_may_break_an_old_plugin_is_major(name):
    """Exactly the one change, at its place."""
    edit, where = MAJOR[name]
    (told,), _ = changed(edit)
    assert told.startswith(f"major: {where}: ")


def test_a_change_asks_for_the_versions_of_the_families_it_touches():
    """A family's own type touches that family; a shared one all that mention it."""
    _, own = changed(_method("scheduler.Scheduler", "pause"))
    assert own == {"scheduler": "major"}
    _, shared = changed(lambda new: new["structs"]["batch.Batch"]["fields"].update(extra="int = 0"))
    assert {"kernel", "model"} <= shared.keys()
    assert set(shared.values()) == {"minor"}
    assert "sink" not in shared


@pytest.mark.parametrize(("version", "enough"), [([1, 0], False), ([1, 1], False), ([2, 0], True)])
def test_a_major_change_needs_a_new_major_version(version, enough):
    """A minor version does not announce a break."""

    def edit(new):
        new["protocols"]["scheduler.Scheduler"]["methods"].pop("num_waiting")
        new["families"]["scheduler"]["version"] = version

    assert ("scheduler" not in changed(edit)[1]) == enough


def test_the_report_says_what_to_do():
    """Each change, each version, and the command that stores it on purpose."""
    new = copy.deepcopy(CODE)
    _method("scheduler.Scheduler", "pause")(new)
    told = report(CODE, new)
    assert "major: scheduler.Scheduler.pause: method added" in told
    assert "raise the major version of scheduler (1.0)" in told
    assert "python -m enginebay.conformance.schema --write" in told


def test_the_command_answers():
    """It runs from a shell, and importing what it needs loads no tensor library."""
    code = (
        "import sys; from enginebay.conformance.schema import main; status = main([]); "
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == "The contract is as stored.\n"
