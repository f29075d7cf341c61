"""The kernel checks catch what goes wrong in kernels: each planted fault is found."""

import pytest
import torch
import torch.nn.functional as F

from enginebay.conformance import kernel_checks
from enginebay.conformance.check import failures
from enginebay.hookspecs.kernel import Offer


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
