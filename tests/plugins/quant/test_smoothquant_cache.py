"""Models quantized at their first use: made once, found again, made anew when damaged."""

import json
from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from enginebay.errors import ModelError, StackError
from enginebay.plugins.quant import smoothquant
from enginebay.plugins.quant.kept import Kept, read_record


@pytest.fixture
def made(monkeypatch):
    """How often a model was quantized."""
    calls, real = [], smoothquant.quantize_model

    def counted(*arguments):
        calls.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(smoothquant, "quantize_model", counted)
    return calls


def prepare(model, quantizer):
    return quantizer.prepare(model.spec, model.family, model.checkpoint)


def test_it_is_made_once_and_told(tiny, smooth, made):
    """The second start takes the same bits from the cache; the text side is the original's."""
    model = tiny()
    with capture_logs() as log:
        first = prepare(model, smooth())
    assert [entry["log_level"] for entry in log] == ["warning"] * 2
    assert str(first.location) in log[0]["folder"]
    second = prepare(model, smooth())
    assert len(made) == 1
    assert second.text is model.checkpoint.text
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.equal(first.stored(name).codes, second.stored(name).codes)
    assert first.form(name).inputs == "int8"


def test_the_report_tells_the_calibration(tiny, smooth, text):
    """Also when it was read from the cache."""
    model = tiny()
    for _ in range(2):
        quantizer = smooth(alpha=0.5)
        prepare(model, quantizer)
        assert quantizer.report().calibration == f"{text}, 256 tokens; alpha 0.5 in 9 layers"


def test_other_options_texts_and_models_are_other_entries(tiny, smooth, made, text):
    """Nothing stale is taken."""
    model = tiny()
    prepare(model, smooth())
    prepare(model, smooth(alpha=0.25))
    text.write_text(text.read_text() + "Another end.")
    prepare(model, smooth())
    prepare(tiny(name="other", seed=1), smooth())
    prepare(model.configure(rms_norm_eps=1e-6), smooth())
    assert len(made) == 5


def garbled(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(b"\0" * weights.stat().st_size)


def shortened(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def without_config(folder):
    (folder / "config.json").unlink()


def without_record(folder):
    (folder / "record.json").unlink()


@pytest.mark.parametrize("damage", [garbled, shortened, without_config, without_record])
def test_a_damaged_entry_is_made_anew(damage, tiny, smooth, made):
    """And is whole afterwards."""
    model = tiny()
    entry = Path(prepare(model, smooth()).location)
    damage(entry)
    again = prepare(model, smooth())
    assert len(made) == 2
    assert read_record(entry) is not None
    assert again.load("model.norm.weight").shape == (64,)
    assert [path.name for path in entry.parent.iterdir()] == [entry.name]


def test_a_start_that_fails_leaves_nothing(tmp_path):
    """No half-written entry, no rest of it."""

    def fail(folder):
        (folder / "config.json").write_text("{}")
        raise ModelError("no")

    with pytest.raises(ModelError):
        Kept(tmp_path).get("key", fail)
    assert list(tmp_path.iterdir()) == []


def test_what_another_process_finished_first_stands(tmp_path):
    """Whole, though this one has made its own."""

    def make(folder):
        other = tmp_path / "key"
        other.mkdir()
        (other / "config.json").write_text("theirs")
        record = {"calibration": "theirs", "sizes": {"config.json": 6}}
        (other / "record.json").write_text(json.dumps(record))
        (folder / "config.json").write_text("ours")
        return "ours"

    Kept(tmp_path).get("key", make)
    assert (tmp_path / "key" / "config.json").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_without_a_writable_cache_it_is_made_for_this_start(tiny, smooth, tmp_path):
    """And lies elsewhere for as long as the checkpoint lives."""
    model = tiny()
    (tmp_path / "cache").write_text("a file is no folder")
    with capture_logs() as log:
        checkpoint = prepare(model, smooth())
    assert log[0]["event"] == "the quantized model can't be kept"
    folder = Path(checkpoint.location)
    assert checkpoint.load("model.norm.weight").shape == (64,)
    del checkpoint
    assert not folder.exists()


def test_a_model_that_cant_be_calibrated_is_refused(tiny, smooth, text):
    """With the reason: no such file, no text, a text too short."""
    model = tiny()
    with pytest.raises(StackError, match=r"calibration = 'nowhere.txt': .*UTF-8"):
        prepare(model, smooth(calibration="nowhere.txt"))
    text.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(StackError, match="UTF-8"):
        prepare(model, smooth())
    text.write_text("a")
    with pytest.raises(StackError, match="the text has 1 tokens; give a longer one"):
        prepare(model, smooth())
