"""Whole tiny models with weights as codes, on the cpu kernels."""

import pytest
import torch

from enginebay import LLM
from enginebay.conformance.parity import compare_logits, load_subject, teacher_forced
from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.flow import SamplingParams
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.kernel import KernelContext
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.quant import QuantContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import gguf, safetensors
from enginebay.plugins.kernels import cpu
from enginebay.plugins.models import llama
from enginebay.plugins.quant import int4_weight, int8_weight

IDS = range(3, 33)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama of two layers in float32."""
    return write_tiny(tmp_path_factory.mktemp("weight-only") / "tiny")


def subject(reader, path, module=None, *, oracle=False, **options):
    """A model on the cpu kernels in the scheme of ``module``, or on the reference kernels."""
    checkpoint = reader.enginebay_format(reader.Options(), FormatContext()).open(
        Files(path=str(path), origin="test", revision="1")
    )
    family = llama.enginebay_model(llama.Options(), ModelContext())
    if module is None:
        return load_subject(checkpoint, family)
    quantizer = module.enginebay_quant(module.Options(**options), QuantContext("float32", "cpu"))
    kernels = cpu.enginebay_kernel(cpu.Options(), KernelContext("cpu", 1))
    chosen = [] if oracle else [("cpu", kernels)]
    return load_subject(checkpoint, family, chosen, quantizer=quantizer, row_invariant=True)


@pytest.mark.parametrize(
    ("kind", "module"), [("Q8_0", int8_weight), ("Q4_0", int4_weight), ("Q4_1", int4_weight)]
)
def test_kept_codes_compute_what_the_file_says(tmp_path, folder, kind, module):
    """The file's blocks, never dequantized, give the logits of its weights in float32; each
    position the same bits alone as among thirty."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", folder, kind)
    kept = subject(gguf, path, module)
    layers = [kept.decoder.head, *(each.gate_up for each in kept.decoder.layers)]
    assert {each.packed.scheme for each in layers} == {"int8" if kind == "Q8_0" else "int4"}
    assert {each.packed.group_size for each in layers} == {32}
    logits = teacher_forced(kept, IDS)
    right = teacher_forced(subject(gguf, path), IDS)
    assert compare_logits(logits, right).max_difference < 1e-4
    assert torch.equal(teacher_forced(kept, IDS, chunk=1), logits)


@pytest.mark.parametrize(
    ("module", "options"),
    [
        (int8_weight, {}),
        (int8_weight, {"group_size": 32, "head": "float"}),
        (int4_weight, {}),
        (int4_weight, {"head": "int4", "group_size": 64, "ignore": ("*.1.mlp.*",)}),
    ],
)
def test_float_weights_become_codes(folder, module, options):
    """A float checkpoint, rounded while it loads: other logits than in float, by more with 4
    bits than with 8, and the same ones on the reference kernels."""
    logits = teacher_forced(subject(safetensors, folder, module, **options), IDS)
    oracle = teacher_forced(subject(safetensors, folder, module, oracle=True, **options), IDS)
    assert compare_logits(logits, oracle).max_difference < 1e-4
    change = compare_logits(logits, teacher_forced(subject(safetensors, folder), IDS)).mean_kl
    assert 0 < change < 0.02 if module is int8_weight else 0.02 < change < 1


@pytest.mark.parametrize(("stack", "codes"), [("cpu-int8", "int8"), ("cpu-int4", "w4a8")])
def test_the_stacks_answer(folder, stack, codes):
    """Each is row-invariant as a whole, says what it did, and its plan was right."""
    overrides = {"engine.num_blocks": 16, "engine.model": str(folder)}
    with LLM(stack=stack, overrides=overrides) as llm:
        answer = llm.generate(list(IDS), SamplingParams(max_tokens=4, ignore_eos=True))
        assert len(answer.outputs[0].token_ids) == 4
        assert llm.assembly.table.row_invariant
        report = llm.assembly.quantizer.report()
        assert (report.scheme, report.float_layers) == (codes, {})
