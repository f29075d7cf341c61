"""The cpu kernel plugin as a whole: the contract of every op, offers and refusals."""

import pytest
import torch

from enginebay.conformance.check import Check, Skip
from enginebay.conformance.closeness import check_row_invariance
from enginebay.conformance.kernel_checks import KERNEL_CHECKS
from enginebay.dispatch import KernelTable
from enginebay.errors import PluginError
from enginebay.hookspecs.kernel import KernelContext, OpSignature
from enginebay.plugins.kernels import cpu, cpu_pool


def kernels(threads=1):
    """The plugin, as its hook builds it."""
    context = KernelContext(device="cpu", threads=threads)
    return cpu.enginebay_kernel(options=cpu.Options(), context=context)


@pytest.mark.parametrize("check", KERNEL_CHECKS, ids=lambda check: check.id)
def test_the_contract_holds(check: Check):
    """Every check of the kernel family, on one thread."""
    try:
        check.call(kernels())
    except Skip as skip:
        pytest.skip(str(skip))


def test_rows_have_the_same_bits_on_two_threads(monkeypatch):
    """Norm and activation split over threads give what one thread gives."""
    monkeypatch.setattr(cpu_pool, "SHORT", 0)
    one, two = kernels(1).rows, kernels(2).rows
    weight, x = torch.rand(300), torch.randn(200, 600)
    assert torch.equal(
        one.rms_norm(x[:, :300], weight, 1e-6), two.rms_norm(x[:, :300], weight, 1e-6)
    )
    assert torch.equal(one.silu_and_mul(x), two.silu_and_mul(x))


@pytest.mark.parametrize("size", [1, 15, 16, 17, 63, 64, 65, 576])
def test_rows_are_invariant_at_every_width(size):
    """Vector body and tail are the same arithmetic, wherever a row stands."""
    rows = kernels().rows
    weight = torch.rand(size)
    check_row_invariance(lambda x: rows.rms_norm(x, weight, 1e-6), torch.randn(35, size))
    check_row_invariance(rows.silu_and_mul, torch.randn(35, 2 * size))


def test_rows_may_be_views_of_a_wider_tensor():
    """A fused projection's columns are read where they lie."""
    rows = kernels().rows
    wide, weight = torch.randn(9, 100), torch.rand(40)
    view = wide[:, 30:70]
    assert torch.equal(
        rows.rms_norm(view, weight, 1e-6), rows.rms_norm(view.contiguous(), weight, 1e-6)
    )
    assert torch.equal(rows.silu_and_mul(view), rows.silu_and_mul(view.contiguous()))


def test_no_rows_are_no_work():
    """An empty step gives empty results."""
    rows = kernels().rows
    assert rows.rms_norm(torch.empty(0, 8), torch.ones(8), 1e-6).shape == (0, 8)
    assert rows.silu_and_mul(torch.empty(0, 8)).shape == (0, 4)


def test_a_value_that_is_not_a_number_stays_in_its_row():
    """NaN comes out where it went in, and nowhere else."""
    rows = kernels().rows
    x = torch.randn(3, 32)
    clean = rows.silu_and_mul(x), rows.rms_norm(x, torch.ones(32), 1e-6)
    x[1, 0] = float("nan")
    dirty = rows.silu_and_mul(x), rows.rms_norm(x, torch.ones(32), 1e-6)
    for before, after in zip(clean, dirty, strict=True):
        assert after[1].isnan().any()
        assert torch.equal(before[[0, 2]], after[[0, 2]])


@pytest.mark.parametrize(
    "x", [torch.ones(4, 8, dtype=torch.float64), torch.ones(8, 4).T, torch.ones(2, 2, 8)[0, :, ::2]]
)
def test_rows_of_another_kind_are_refused(x):
    """Compiled code reads by address: type and strides are checked before."""
    rows = kernels().rows
    with pytest.raises(ValueError, match=r"needs torch.float32"):
        rows.rms_norm(x, torch.ones(x.shape[1]), 1e-6)
    with pytest.raises(ValueError, match=r"gate_up is"):
        rows.silu_and_mul(x)


def test_a_weight_of_another_size_is_refused():
    """The message names the weight and the size it needs."""
    with pytest.raises(ValueError, match=r"weight is .* needs torch.float32 \[8\]"):
        kernels().rows.rms_norm(torch.ones(2, 8), torch.ones(7), 1e-6)


@pytest.mark.parametrize(
    ("signature", "reason"),
    [
        (OpSignature(op="rms_norm", dtype="bfloat16"), "float32, not bfloat16"),
        (OpSignature(op="linear", scheme="w2a2"), "not 'w2a2'"),
        (OpSignature(op="attention", features=("softcap",)), "feature softcap"),
    ],
)
def test_what_it_cannot_do_is_declined_with_the_reason(signature, reason):
    """``explain`` prints why another kernel, or none, was chosen."""
    with pytest.raises(PluginError, match=reason):
        KernelTable([("cpu", kernels())]).resolve(signature)


def test_a_row_invariant_stack_takes_only_what_is_row_invariant():
    """torch's products, asked first, decline; the compiled ones are next."""
    context = KernelContext(device="cpu", threads=1)
    asked = cpu.CpuKernels(context, cpu.Options(float_products="torch"))
    signature = OpSignature(op="linear", scheme="float")
    assert KernelTable([("cpu", asked)]).choose(signature).offer.name == "torch"
    choice = KernelTable([("cpu", asked)], require_row_invariant=True).choose(signature)
    assert choice.offer.name == "panels"
    assert ("cpu/torch", "is not row-invariant, which this stack requires") in choice.declined


def test_every_op_is_row_invariant():
    """All that comes first: the stack needs no other kernels for bitwise invariance."""
    first = {}
    for offer in kernels().offers():
        first.setdefault(offer.op, offer)
    assert all(offer.row_invariant for offer in first.values())


def test_another_device_stops_the_start():
    """The kernels run nowhere else."""
    with pytest.raises(PluginError, match="runs on device 'cpu', the stack says 'cuda'"):
        cpu.CpuKernels(KernelContext(device="cuda", threads=1))
