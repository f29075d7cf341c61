"""Triton's paged attention in steps as an engine makes them, moved blocks, whole models."""

import sys
from pathlib import Path

import msgspec
import pytest
import torch
from test_triton_attention import LANES, InDtype, built

from enginebay.conformance.attention_world import AttentionWorld, expected, make_prompt, make_spec
from enginebay.flow import BlockOp

sys.path.append(str(Path(__file__).parents[2]))  # the benchmarks are in no package

TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
SIZES = {
    # lane, heads, KV heads, dim, dtype, window, unit of the prompts' lengths
    "small": (3, 1, 16, torch.float32, None, 4),
    "small window": (2, 2, 16, torch.float16, 9, 4),
}
LARGE = {
    "narrow heads": (9, 3, 64, torch.bfloat16, None, 100),
    "wide heads": (32, 8, 128, torch.bfloat16, None, 100),
    "wide heads, half": (32, 8, 128, torch.float16, None, 100),
    "widest heads": (8, 2, 256, torch.bfloat16, None, 60),
    "float32": (9, 3, 64, torch.float32, None, 100),
    "window": (8, 2, 128, torch.bfloat16, 77, 100),
}
CASES = [
    pytest.param(device.values[0], case, marks=device.marks, id=f"{device.id}-{name}")
    for device in LANES
    for name, case in (SIZES if device.id == "interpret" else SIZES | LARGE).items()
]


def strict(device):
    """In the interpreter, with the memory guard; before any kernel."""
    if device == "cpu":
        import interpreter  # noqa: F401


@pytest.mark.parametrize(("device", "case"), CASES)
@pytest.mark.parametrize("programs", [0, 10_000], ids=["whole", "split"])
def test_prompts_and_decodes_share_steps(device, case, programs):
    """Decodes beside a long prompt, chunks that end in the middle of blocks, one row alone."""
    strict(device)
    heads, kv_heads, dim, dtype, window, unit = case
    spec = make_spec(heads, kv_heads, dim, 16, window)
    prompts = [make_prompt(spec, size * unit + 5, dim, size) for size in (3, 5, 2)]
    kernels = built(device, programs=programs)

    def attention(spec):
        own = msgspec.structs.replace(spec, dtype=str(dtype).removeprefix("torch."))
        return InDtype(kernels.attention(own), dtype, device)

    world = AttentionWorld(attention, spec, prompts)
    outputs = world.run(
        [
            [(0, 3 * unit)],
            [(0, 1), (1, 4 * unit), (2, 1)],
            [(1, 1), (2, 2 * unit), (0, 1)],
            [(0, 3), (1, unit + 4), (2, 4)],
        ]
    )
    assert world.done == [len(prompt) for prompt in prompts]
    for prompt, output in zip(prompts, outputs, strict=True):
        error = (output.double() - expected(spec, prompt)).abs().max().item()
        assert error <= TOLERANCE[dtype]  # NaN fails


@pytest.mark.parametrize("device", LANES)
def test_blocks_move_between_device_and_host(device):
    """Saved, overwritten, loaded elsewhere and copied: the same bytes."""
    spec = make_spec(2, 1, 16, 16)
    attention = built(device).attention(msgspec.structs.replace(spec, dtype="bfloat16"))
    attention.allocate(4)
    store = attention.store
    store.reserve_host(2)
    size = attention.bytes_per_block
    first, second = (bytes((number + at) % 100 for at in range(size)) for number in (1, 7))
    store.import_((0, 1), _joined(store, first, second))
    whole = store.export((0, 1))
    store.save((BlockOp(kind="save", source=0, target=1), BlockOp(kind="save", source=1, target=0)))
    store.import_((0, 1), bytes(2 * size))
    store.load((BlockOp(kind="load", source=1, target=2), BlockOp(kind="load", source=0, target=3)))
    assert store.export((2, 3)) == whole
    store.copy((BlockOp(kind="copy", source=3, target=0), BlockOp(kind="copy", source=2, target=1)))
    assert store.export((1, 0)) == whole


def _joined(store, first, second):
    """The bytes of two blocks in the order of ``export``: by layer, then by block."""
    layers = store.spec.num_layers
    share = len(first) // layers
    parts = [each[n * share : (n + 1) * share] for n in range(layers) for each in (first, second)]
    return b"".join(parts)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MistralForCausalLM"])
def test_a_model_computes_what_the_reference_does(architecture, tmp_path):
    """A stack with these kernels: prompts, decodes and a prompt among decodes."""
    from benchmarks.gpu_check.engine import Place
    from benchmarks.gpu_check.logits import compare
    from enginebay.conformance.tiny import write_tiny

    window = {"sliding_window": 24} if architecture == "MistralForCausalLM" else {}
    model = write_tiny(tmp_path, architecture, **window)
    facts, _ = compare(str(model), Place("cuda", ("triton", "reference")))
    assert facts["same_tokens"]
    assert facts["compared"] >= 10
