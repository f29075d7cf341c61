"""Triton's paged attention: numbers in the interpreter and on a GPU, machine code without."""

import msgspec
import pytest
import torch

from enginebay.conformance.attention_world import (
    AttentionWorld,
    expected,
    in_chunks,
    make_prompt,
    make_spec,
)
from enginebay.errors import StackError
from enginebay.hookspecs.kernel import KernelContext, OpSignature

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
LANES = [
    pytest.param("cpu", marks=pytest.mark.interpret, id="interpret"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
CASES = {
    # heads, kv heads, dim, block, window, lengths, rotary dims, chunk, programs
    "one short": (2, 1, 16, 16, None, (5,), 16, 64, 0),
    "two of different length": (2, 1, 16, 16, None, (5, 33), 8, 64, 0),
    "split": (4, 2, 16, 16, None, (50, 3), 16, 64, 128),
    "odd sizes, window, chunks": (3, 1, 20, 4, 5, (40,), 20, 16, 0),
    "window and splits": (2, 2, 16, 8, 20, (60,), 16, 40, 128),
}


class InDtype:
    """An attention kernel of another dtype, as the checks for float32 call it."""

    def __init__(self, inner, dtype, device):
        self.inner, self.dtype, self.device = inner, dtype, device
        self.bytes_per_block, self.allocate = inner.bytes_per_block, inner.allocate

    @property
    def store(self):
        return self.inner.store

    def prepare(self, batch):
        names = ("token_ids", "positions", "row_starts", "contexts", "tables", "slots")
        moved = {name: getattr(batch, name).to(self.device) for name in names}
        rows = batch.logit_rows.to(self.device)
        self.inner.prepare(type(batch)(**moved, logit_rows=rows, block_size=batch.block_size))

    def write(self, layer, q, k, v, cos_sin):
        own = [part.to(self.device, self.dtype) for part in (q, k, v)]
        self.inner.write(layer, *own, cos_sin.to(self.device))
        q.copy_(own[0])

    def attend(self, layer, q):
        return self.inner.attend(layer, q.to(self.device, self.dtype)).float().cpu()


def built(device, **options):
    """The plugin."""
    from enginebay.plugins.kernels import triton_attention

    options = triton_attention.Options(**options)
    return triton_attention.enginebay_kernel(options, KernelContext(device=device, threads=1))


@pytest.mark.parametrize("device", LANES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_attention_is_right(case, dtype, device):
    """Every row mixes exactly what it may see, alone and among others, split or not."""
    if device == "cpu":
        import interpreter  # noqa: F401  (before the kernels)
    heads, kv_heads, dim, block, window, lengths, rotary, chunk, programs = case
    spec = make_spec(heads, kv_heads, dim, block, window)
    kernels = built(device, block_m=16, block_n=16, programs=programs)
    prompts = [make_prompt(spec, length, rotary, length) for length in lengths]

    def attention(spec):
        own = msgspec.structs.replace(spec, dtype=str(dtype).removeprefix("torch."))
        return InDtype(kernels.attention(own), dtype, device)

    outputs = AttentionWorld(attention, spec, prompts).run(in_chunks(prompts, chunk, together=True))
    for prompt, output in zip(prompts, outputs, strict=True):
        error = (output.double() - expected(spec, prompt)).abs().max().item()
        assert error <= TOLERANCE[dtype]  # NaN fails


@pytest.mark.interpret
def test_the_guard_sees_a_wrong_address():
    """Without it a load past the cache would be somebody else's bytes."""
    import interpreter

    spec = make_spec(2, 1, 16, 16)
    attention = built("cpu", block_m=16, block_n=16).attention(spec)
    prompt = make_prompt(spec, 5, 16, 5)

    class Beyond(InDtype):
        def prepare(self, batch):
            batch.slots[:] += 10_000
            super().prepare(batch)

    world = AttentionWorld(lambda spec: Beyond(attention, torch.float32, "cpu"), spec, [prompt])
    with pytest.raises(Exception, match="outside all arguments") as caught:
        world.run(in_chunks([prompt], 64))
    causes = (caught.value, caught.value.__cause__)
    assert any(isinstance(cause, interpreter.OutOfBounds) for cause in causes)


@pytest.mark.aot
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [(9, 3, 64, torch.bfloat16), (9, 3, 64, torch.float16), (32, 8, 128, torch.bfloat16)],
)
def test_machine_code_is_good(heads, kv_heads, dim, dtype, capability):
    """It compiles, spills nothing, uses tensor cores, and loads 16 bytes at a time."""
    from offline import machine_code, offline
    from triton.backends.compiler import GPUTarget

    name = str(dtype).removeprefix("torch.")
    spec = msgspec.structs.replace(make_spec(heads, kv_heads, dim, 16), dtype=name)
    kernels = built("cuda")
    attention = kernels.attention(spec)
    attention.device = "cpu"
    prompts = [make_prompt(spec, length, dim, length) for length in (300, 300)]
    with offline(GPUTarget("cuda", capability, 32)) as compiled:
        for programs in (10_000, 0):  # with splits, and without
            attention.options = msgspec.structs.replace(attention.options, programs=programs)
            world = AttentionWorld(lambda spec: InDtype(attention, dtype, "cpu"), spec, prompts)
            world.run(in_chunks(prompts, 300, together=True))
    assert {name for name, _ in compiled} == {"rotate_and_write", "attend_tiles", "join_splits"}
    for name, kernel in compiled:
        code = machine_code(kernel)
        assert (code.stack, code.count("LDL|STL")) == (0, 0), name
        assert code.registers <= 255
        assert code.shared <= (166_912 if capability == 80 else 232_448)
        if name == "attend_tiles":
            assert code.count("[HQI]GMMA|HMMA")
            assert code.count(r"(LDG|LDGSTS)\.E.*128")


def test_it_declines_by_name_what_it_can_not_run():
    """A CPU without the interpreter, another dtype, a feature, a head too wide."""
    signature = OpSignature(op="attention", dtype="bfloat16", sizes=(("head_dim", 128),))
    (offer,) = built("cuda").offers()
    assert offer.supports(signature) is None
    for change, word in (
        ({"dtype": "float64"}, "float64"),
        ({"features": ("alibi",)}, "alibi"),
        ({"sizes": (("head_dim", 512),)}, "512"),
    ):
        assert word in offer.supports(msgspec.structs.replace(signature, **change))
    assert not offer.row_invariant


@pytest.mark.parametrize("field", ["block_m", "block_n"])
@pytest.mark.parametrize("value", [0, 8, 48])
def test_tiles_are_powers_of_2(field, value):
    """The fix is in the message."""
    with pytest.raises(StackError, match=f"{field} is {value}; it must be a power of 2"):
        built("cuda", **{field: value})
