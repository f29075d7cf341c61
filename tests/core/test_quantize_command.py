"""``enginebay quantize``: a folder that opens, or one clear line and nothing behind."""

import json

import pytest

from enginebay.commands import main
from enginebay.conformance.tiny import write_tiny


@pytest.fixture
def model(tmp_path):
    """A tiny model and a text to calibrate on."""
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 12)
    return write_tiny(tmp_path / "model", tie_word_embeddings=True)


def quantize(model, *words):
    base = ["quantize", str(model), "--out", str(model.with_name("out"))]
    return main([*base, "--calibration", str(model.with_name("text.txt")), *words])


def test_it_writes_what_an_engine_opens(model, capsys):
    """Int8 weights of every projection and a head of its own, in compressed-tensors' form."""
    assert quantize(model, "--alpha", "0.5", "--ignore", "*.1.mlp.down_proj") == 0
    assert "alpha 0.5 in 8 layers" in capsys.readouterr().out
    out = model.with_name("out")
    config = json.loads((out / "config.json").read_text())
    entry = config["quantization_config"]
    assert (entry["quant_method"], entry["format"]) == ("compressed-tensors", "int-quantized")
    assert entry["ignore"] == ["model.layers.1.mlp.down_proj"]
    assert config["tie_word_embeddings"] is False
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert [path.name for path in out.parent.iterdir() if path.name.startswith(".")] == []
    words = ["--model", str(out), "--set", 'kernels=["reference"]', "--set", "engine.num_blocks=16"]
    assert main(["run", "Hello", "--stack", "cpu-w8a8", "--max-tokens", "2", *words]) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--alpha", "2"], "alpha = 2.0: must be from 0 to 1"),
        (["--head", "int4"], "quant.smoothquant.head"),
        (["--ignore", "nothing"], "ignore has 'nothing', which no layer matches"),
        (["--scheme", "none"], "quant.none: unknown option 'calibration'"),
        (["--scheme", "smooth"], "no quant plugin is called 'smooth'"),
        (["--calibration", "/nowhere"], "calibration = '/nowhere'"),
        (["--calibration-tokens", "1"], "calibration_tokens = 1: must be 2 or more"),
        (["--activations", "lively"], "quant.smoothquant.activations"),
    ],
)
def test_bad_input_is_told_and_leaves_nothing(words, told, model, capsys):
    """One line on standard error; no folder, no rest of one."""
    assert quantize(model, *words) == 1
    assert told in capsys.readouterr().err
    assert sorted(path.name for path in model.parent.iterdir()) == ["model", "text.txt"]


def test_a_folder_with_content_is_left_alone(model, capsys):
    """Also a file in its place."""
    for out in (model, model.with_name("text.txt")):
        assert main(["quantize", str(model), "--out", str(out)]) == 1
        assert "is not an empty folder; give a new one" in capsys.readouterr().err


def test_what_is_quantized_already_is_refused(model, capsys):
    """Smoothing needs the weights that it was made from."""
    assert quantize(model) == 0
    assert main(["quantize", str(model.with_name("out")), "--out", str(model) + "2"]) == 1
    assert "is quantized for int8 activations already" in capsys.readouterr().err


def test_an_alpha_that_is_no_number_is_a_usage_error(model):
    """As any other option of the wrong type."""
    with pytest.raises(SystemExit) as end:
        quantize(model, "--alpha", "much")
    assert end.value.code == 2
