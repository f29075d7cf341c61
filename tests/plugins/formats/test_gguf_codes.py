"""Codes of GGUF files: taken out of their blocks, in Hugging Face's order, unrounded."""

import gguf
import numpy as np
import pytest
import torch

from enginebay.conformance.parity import load_subject, teacher_forced
from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.errors import ModelError
from enginebay.hookspecs.format import FormatContext, Quantized, StoredForm
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import gguf as plugin
from enginebay.plugins.formats.gguf_codes import block_codes, block_form
from enginebay.plugins.models import llama

NAMES = (
    "model.embed_tokens.weight",
    "model.layers.1.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
)
FORMS = {
    "Q8_0": StoredForm(bits=8, group_size=32),
    "Q4_0": StoredForm(bits=4, group_size=32),
    "Q4_1": StoredForm(bits=4, group_size=32, offsets=True),
}
RANGES = {"Q8_0": (-127, 127), "Q4_0": (-8, 7), "Q4_1": (0, 15)}


def open_(path):
    reader = plugin.enginebay_format(plugin.Options(), FormatContext())
    return reader.open(Files(path=str(path), origin="test", revision="1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("codes") / "tiny")


def block(kind, scale, minimum, codes):
    """One block as the format describes it, written out by hand."""
    head = np.float16([scale] if minimum is None else [scale, minimum]).view(np.uint8)
    if kind == "Q8_0":
        return np.concatenate([head, np.int8(codes).view(np.uint8)])
    raised = np.array(codes) + (8 if kind == "Q4_0" else 0)
    return np.concatenate([head, np.uint8(raised[:16] + 16 * raised[16:])])


@pytest.mark.parametrize("kind", FORMS)
def test_a_block_by_hand(kind):
    """Codes, scales and minimums are those that the bytes say, row by row."""
    low, high = RANGES[kind]
    codes = np.random.default_rng(0).integers(low, high + 1, (3, 2, 32))
    minimums = [None] * 6 if kind != "Q4_1" else [-0.5, 0.25, 3.0, 0.0, -7.0, 1.5]
    blocks = [
        block(kind, 0.5 + number, minimums[number], each)
        for number, each in enumerate(codes.reshape(6, 32))
    ]
    rows = np.stack(blocks).reshape(3, -1)
    stored = block_codes(rows, gguf.GGMLQuantizationType[kind], FORMS[kind])
    assert stored.codes.tolist() == codes.reshape(3, 64).tolist()
    assert stored.scales.tolist() == [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5]]
    found = None if stored.offsets is None else stored.offsets.flatten().tolist()
    assert found == (minimums if kind == "Q4_1" else None)


@pytest.mark.parametrize("kind", FORMS)
def test_codes_have_the_bits_of_the_loaded_weight(tmp_path, folder, kind):
    """Rotated projections, the embedding and the rest: one value for both ways to read."""
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", folder, kind))
    assert isinstance(checkpoint, Quantized)
    for name in NAMES:
        stored = checkpoint.stored(name)
        assert checkpoint.form(name) == stored.form == FORMS[kind]
        assert stored.codes.shape == checkpoint.tensors[name].shape
        assert torch.equal(stored.dequantized(), checkpoint.load(name))
    assert checkpoint.form("model.norm.weight") is None
    assert checkpoint.form("nothing") is None


def test_many_blocks():
    """More than one chunk, and a last one that is short."""
    tensor = np.random.default_rng(0).standard_normal((70, 4096), np.float32)
    for kind, form in FORMS.items():
        type_ = gguf.GGMLQuantizationType[kind]
        stored = block_codes(gguf.quants.quantize(tensor, type_), type_, form)
        values = gguf.quants.dequantize(gguf.quants.quantize(tensor, type_), type_)
        assert torch.equal(stored.dequantized(), torch.from_numpy(values))


def test_other_blocks_stay_closed(tmp_path, folder):
    """Numbers and blocks of other types are only loaded, and asking for more says so."""
    assert block_form(gguf.GGMLQuantizationType.Q5_0, (64, 64)) is None
    assert block_form(gguf.GGMLQuantizationType.Q8_0, (64,)) is None
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", folder, "F16"))
    assert checkpoint.form(NAMES[1]) is None
    with pytest.raises(ModelError, match=r"codes of 'model\.norm\.weight' \(F32\)"):
        checkpoint.stored("model.norm.weight")


def test_codes_outlive_the_file(tmp_path, folder):
    """They are copies: writing to them changes no later read."""
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", folder, "Q8_0"))
    for name in NAMES:
        before = checkpoint.load(name)
        checkpoint.stored(name).codes.zero_()
        checkpoint.stored(name).scales.zero_()
        assert torch.equal(checkpoint.load(name), before)


def test_a_tiny_model_runs_from_blocks(tmp_path, folder):
    """Dequantized by ``none``, it has the logits of the values that the codes stand for."""

    class Values:
        """The same checkpoint, every matrix by way of its codes, and no codes offered."""

        def __init__(self, checkpoint):
            self.location, self.config = checkpoint.location, checkpoint.config
            self.tensors, self.inner = checkpoint.tensors, checkpoint

        def load(self, name):
            if self.inner.form(name) is None:
                return self.inner.load(name)
            return self.inner.stored(name).dequantized()

    family = llama.enginebay_model(llama.Options(), ModelContext())
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", folder, "Q4_1"))
    both = [
        teacher_forced(load_subject(each, family), range(3, 23))
        for each in (checkpoint, Values(checkpoint))
    ]
    assert torch.equal(*both)
