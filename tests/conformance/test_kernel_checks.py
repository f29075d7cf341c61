"""The kernel checks catch what goes wrong in rows and products: each planted fault is found."""

import pytest

from enginebay.conformance import row_op_checks
from enginebay.conformance.check import CheckList, failures
from enginebay.conformance.kernel_checks import KERNEL_CHECKS
from enginebay.conformance.mutants.groups import GROUP_MUTANTS, RIGHT_IN_GROUPS
from enginebay.conformance.mutants.linears import LINEAR_MUTANTS, RIGHT_LINEARS, w8a8
from enginebay.conformance.mutants.one_op import OneOp
from enginebay.conformance.mutants.row_ops import RIGHT_ROW_OPS, ROW_OP_MUTANTS
from enginebay.conformance.op_bounds import BOUNDS
from enginebay.hookspecs.kernel import Offer

MUTANTS = ROW_OP_MUTANTS + LINEAR_MUTANTS + GROUP_MUTANTS
CHECKS = CheckList(check for check in KERNEL_CHECKS if "attention" not in check.id)


@pytest.fixture(autouse=True)
def _fewer(monkeypatch):
    """Smaller sizes: there are many mutants."""
    monkeypatch.setattr(row_op_checks, "SIZES", (1, 63, 100))


@pytest.mark.parametrize(("op", "call", "scheme"), RIGHT_ROW_OPS, ids=lambda given: str(given)[:40])
def test_right_row_ops_pass_every_check(op, call, scheme):
    """Otherwise the mutants prove nothing."""
    assert failures(CHECKS, OneOp(op, call, scheme)) == {}


@pytest.mark.parametrize("op", ["linear", "logits"])
@pytest.mark.parametrize(
    ("scheme", "call"), RIGHT_LINEARS + RIGHT_IN_GROUPS, ids=lambda given: str(given)[:40]
)
def test_right_products_pass_every_check(op, scheme, call):
    """In every scheme; products in float64 are row-invariant within float32 as good as ever,
    and yet declare nothing."""
    kernels = OneOp(op, call, scheme, row_invariant=scheme == "w8a8")
    assert failures(CHECKS, kernels) == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.fault)
def test_each_fault_is_found_by_its_clause(mutant):
    """And by the check that is for it."""
    found = failures(CHECKS, mutant.make())
    assert mutant.caught_by in found, found
    assert found[mutant.caught_by].startswith(f"Broken: {mutant.caught_by}: ")


def test_every_check_has_a_mutant():
    """A clause that no fault breaks may say nothing."""
    caught = {mutant.caught_by for mutant in MUTANTS}
    assert {check.id for check in CHECKS} == caught


class Honest(OneOp):
    """Offers a product that saturates, and says so itself."""

    def offers(self):
        wrong = next(m for m in LINEAR_MUTANTS if m.fault.startswith("saturates")).make()
        (offer,) = wrong.offers()
        more = {"row_invariant": True, "supports": offer.supports}
        proved = Offer("linear", "pairs", offer.call, prove=lambda signature: "is wrong", **more)
        return (proved, *super().offers())


def test_a_kernel_that_declines_on_this_machine_is_not_judged():
    """What proves itself wrong is never run by a stack; the others are judged still."""
    assert failures(CHECKS, Honest("linear", w8a8, "w8a8")) == {}


def test_the_table_of_bounds_gives_a_reason_for_each():
    """Names once, figures above 0, a reason in words."""
    assert len({each.name for each in BOUNDS}) == len(BOUNDS)
    assert all(0 < each.figure < 1e-2 and len(each.reason) > 40 for each in BOUNDS)
