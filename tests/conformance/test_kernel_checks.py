"""The kernel checks catch what goes wrong in kernels: each planted fault is found."""

import pytest
import torch
import torch.nn.functional as F

from enginebay.conformance import attention_checks, kernel_checks
from enginebay.conformance.attention_world import rotated
from enginebay.conformance.check import Broken, failures
from enginebay.hookspecs.kernel import Offer
from enginebay.plugins.kernels.reference_store import ReferenceStore


class PlainAttention:
    """The shortest attention over a paged cache that is right, with one fault to plant."""

    def __init__(self, spec, fault=""):
        self.spec, self.fault = spec, fault
        self.bytes_per_block = ReferenceStore.block_bytes(spec)

    def allocate(self, num_blocks):
        self.store = ReferenceStore(self.spec, num_blocks, "cpu")

    def prepare(self, batch):
        self.batch = batch

    def write(self, layer, q, k, v, cos_sin):
        keys, values = self.store.layer(layer)
        if self.fault != "queries not rotated":
            q.copy_(rotated(q, cos_sin))
        keys[self.batch.slots] = (
            k if self.fault == "keys not rotated" else rotated(k, cos_sin)
        ).float()
        values[self.batch.slots] = v

    def attend(self, layer, q):
        if self.fault == "another layer":
            layer -= 1
        starts, size = self.batch.row_starts.tolist(), self.spec.block_size
        group = self.spec.num_heads // self.spec.num_kv_heads
        out = torch.zeros(q.shape)
        for number, context in enumerate(self.batch.contexts.tolist()):
            table = self.batch.tables[number].long()
            for row in range(starts[number], starts[number + 1]):
                places = self.seen(context - starts[number + 1] + row)
                slots = table[places // size] * size + places % size
                k, v = (part[slots].repeat_interleave(group, 1) for part in self.store.layer(layer))
                if self.fault == "heads interleaved":
                    k, v = (part[slots].repeat(1, group, 1) for part in self.store.layer(layer))
                scores = torch.einsum("hd,phd->hp", q[row], k) * self.spec.scale
                if self.fault == "weights in half precision":
                    scores = scores.half().float()
                out[row] = torch.einsum("hp,phd->hd", scores.softmax(-1), v)
        if self.fault == "bits depend on the step":
            out *= 1 + 2e-7 * (len(q) % 2)
        return out.flatten(1)

    def seen(self, position):
        """The positions that a row looks at."""
        window = self.spec.sliding_window or position + 1
        first, end = max(0, position + 1 - window), position + 1
        if self.fault == "one position too few":
            end = max(first + 1, end - 1)
        if self.fault == "one position too many" and position % 64 not in (0, 63):
            end += 1
        if self.fault == "the window is one too wide":
            first = max(0, first - 1) if self.spec.sliding_window else first
        places = torch.arange(first, end)
        if self.fault == "the last full tile is dropped" and len(places) > 64:
            places = torch.cat((places[:-64], places[-1:]))
        return places


class Plain:
    """A kernel plugin of plain torch in float64, each op of which may be replaced."""

    def __init__(self, **faulty):
        self.faulty = faulty

    def offers(self):
        right = {
            "embedding": lambda ids, weight: weight[ids],
            "rms_norm": lambda x, weight, eps: (
                x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + eps) * weight
            ).float(),
            "silu_and_mul": gated,
            "linear": product,
            "logits": product,
            "attention": PlainAttention,
        }
        invariant = {"embedding", "rms_norm", "silu_and_mul", *self.faulty}
        for op, call in {**right, **self.faulty}.items():
            yield Offer(op=op, name="plain", call=call, row_invariant=op in invariant)


def gated(x):
    """silu(first half) * second half in float64."""
    gate, up = x.double().chunk(2, dim=1)
    return (F.silu(gate) * up).float()


def product(x, packed, bias=True):
    """A matrix product in float64."""
    out = x.double() @ packed.tensors["weight"].double().T
    return (out if packed.bias is None or not bias else out + packed.bias).float()


@pytest.fixture(autouse=True)
def _fewer(monkeypatch):
    """Smaller sizes: the plain attention goes row by row."""
    monkeypatch.setattr(kernel_checks, "SIZES", (1, 64, 100))


def test_a_right_kernel_passes_every_check():
    """Otherwise the mutants below prove nothing."""
    assert failures(kernel_checks.KERNEL_CHECKS, Plain()) == {}


@pytest.mark.parametrize(
    "fault",
    [
        "queries not rotated",
        "keys not rotated",
        "another layer",
        "heads interleaved",
        "weights in half precision",
        "one position too few",
        "one position too many",
        "the window is one too wide",
        "the last full tile is dropped",
    ],
)
def test_attention_faults_are_found(fault):
    """Off by one, a dropped tile, the wrong layer, head or precision: each is an error."""
    with pytest.raises(Broken, match="kernel/attention: case"):
        attention_checks.check_attention(lambda spec: PlainAttention(spec, fault))


def test_attention_whose_bits_depend_on_the_step_is_found():
    """A relative change of 2e-7 is within every tolerance, and not the same bits."""
    make = lambda spec: PlainAttention(spec, "bits depend on the step")  # noqa: E731
    attention_checks.check_attention(make, num_cases=2)
    with pytest.raises(Broken, match="kernel/attention_invariant: attention in chunks of"):
        attention_checks.check_attention_invariance(make)


@pytest.mark.parametrize(
    ("op", "call", "clause"),
    [
        ("embedding", lambda ids, weight: weight[ids.clamp(max=9)], "kernel/embedding"),
        ("rms_norm", lambda x, w, eps: F.rms_norm(x, (x.shape[1],), w, eps * 2), "kernel/rms_norm"),
        ("rms_norm", lambda x, w, eps: F.layer_norm(x, (x.shape[1],), w), "kernel/rms_norm"),
        (
            "silu_and_mul",
            lambda x: F.silu(x.chunk(2, 1)[1]) * x.chunk(2, 1)[0],
            "kernel/silu_and_mul",
        ),
        ("silu_and_mul", lambda x: F.silu(x[:, ::2]) * x[:, 1::2], "kernel/silu_and_mul"),
        ("linear", lambda x, packed: product(x, packed, bias=False), "kernel/linear"),
        ("logits", lambda x, packed: product(x, packed).double(), "kernel/linear"),
        (
            "silu_and_mul",
            lambda x: gated(x) * (1 + 1e-7 * (len(x) % 2)),
            "kernel/row_invariant",
        ),
    ],
)
def test_faults_of_single_ops_are_found(op, call, clause):
    """By the check of that op and no other."""
    assert clause in failures(kernel_checks.KERNEL_CHECKS, Plain(**{op: call}))
