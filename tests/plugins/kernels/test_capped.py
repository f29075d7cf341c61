"""int8 products where a library may get them wrong: with ``ONEDNN_MAX_CPU_ISA=AVX2`` oneDNN
adds pairs of products in 16 bits, without a word, on CPUs that have more.

CI runs this file once as it is and once with that cap: what the kernel table chooses has to
be right both times.
"""

import pytest
import torch

from enginebay.config import load_stack
from enginebay.conformance.check import Skip
from enginebay.conformance.kernel_checks import KERNEL_CHECKS
from enginebay.conformance.linear_checks import laid_out
from enginebay.conformance.product_extremes import extremes
from enginebay.conformance.sample_layers import sample, with_codes
from enginebay.conformance.suite import judge, plan_stack
from enginebay.conformance.tiny import write_tiny
from enginebay.dispatch import KernelTable, disproved
from enginebay.hookspecs.kernel import KernelContext, QuantizedRows
from enginebay.plugins.kernels import cpu, reference

pytestmark = pytest.mark.capped

INT8 = ("quantize", "linear_w8a8", "residual", "pack", "row_invariant")
CONTEXT = KernelContext(device="cpu", threads=1)
PLUGINS = {
    "cpu": lambda: cpu.enginebay_kernel(options=cpu.Options(), context=CONTEXT),
    "reference": lambda: reference.ReferenceKernels(CONTEXT),
}
CHECKS = [check for check in KERNEL_CHECKS if check.id.endswith(INT8)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("name", PLUGINS)
def test_what_does_not_decline_is_right(name, check):
    """Every int8 clause, for each kernel that passes its own proof here."""
    try:
        check.call(PLUGINS[name]())
    except Skip as skip:
        pytest.skip(str(skip))


@pytest.mark.parametrize("columns", [64, 576])
def test_proofs_tell_the_truth(columns):
    """A product is declined exactly where the greatest operands come out wrong, and what the
    table chooses is never wrong."""
    plugins = [(name, make()) for name, make in PLUGINS.items()]
    layer = sample("w8a8", columns, 4, bias=False)
    signature = layer.packed.signature("linear", "float32")
    offers = [offer for _, plugin in plugins for offer in plugin.offers()]
    offers = [each for each in offers if each.op == "linear" and not each.supports(signature)]
    wrong = {offer.name for offer in offers if not multiplies(offer, columns)}
    declined = {offer.name for offer in offers if disproved(offer, signature)}
    assert wrong == declined
    chosen = KernelTable(plugins).choose(signature)
    assert chosen.offer.name not in wrong


def multiplies(offer, columns):
    """Whether an offer's sums of 127 and -127 are whole, for one row and for five."""
    for _, rows, weight in extremes(columns, seed=1):
        given = with_codes(sample("w8a8", columns, 4), weight).packed
        for count in (1, 5):
            right = rows[:count].long() @ weight.long().T
            x = QuantizedRows(rows[:count].contiguous(), torch.ones(count, 1))
            if not torch.equal(offer.call(x, laid_out(offer, given)), right.float()):
                return False
    return True


def test_a_model_in_int8_is_right(tmp_path):
    """A tiny model of ``cpu-w8a8`` against the reference kernels, prefill and decode."""
    model = str(write_tiny(tmp_path / "tiny", tie_word_embeddings=True))
    changes = {"engine.model": model, "options.quant.smoothquant.smoothing": False}
    planned = plan_stack(load_stack("cpu-w8a8", changes), num_positions=48)
    report = judge([task for task in planned if task.check.id.startswith("parity/")])
    assert not report.failed, report.failed
    assert report.count("passed") == 1
    assert "decode: 48 positions" in report.results[0].message
