"""The cost model: what a plan costs, how it is written, and how it is fitted."""

import pytest

from enginebay.flow import BlockOp, Span, StepPlan
from enginebay.simulation.cost import Cost, CostError, fitted, parse_cost

PLAN = StepPlan(
    step=0,
    spans=(
        Span(sequence_id=1, start=0, num_tokens=30),
        Span(sequence_id=2, start=99, num_tokens=1),
    ),
    block_ops=(
        BlockOp(kind="copy", source=1, target=2),
        BlockOp(kind="save", source=1, target=2),
    ),
)


def test_a_step_costs_the_sum_of_what_it_does():
    """The step, its tokens, the context it reads, the blocks it copies."""
    assert Cost(step=1000, token=0, context=0, block=0)(PLAN) == 1000
    assert Cost(step=0, token=1, context=0, block=0)(PLAN) == 31
    assert Cost(step=0, token=0, context=1, block=0)(PLAN) == 130
    assert Cost(step=0, token=0, context=0, block=1)(PLAN) == 1  # the executor charges saves


def test_it_is_written_by_keys():
    """Over the defaults, or over a fit."""
    assert parse_cost("") == Cost()
    assert parse_cost("step=0.1, token=2e-3".replace(" ", "")) == Cost(step=0.1, token=0.002)
    assert parse_cost("context=1e-6", "1:0.02,101:0.12").context == 1e-6


def test_two_measured_steps_make_a_cost():
    """The line through them."""
    cost = fitted("512:1.9,1:0.021")
    assert cost.step + cost.token == pytest.approx(0.021)
    assert cost.step + 512 * cost.token == pytest.approx(1.9)


@pytest.mark.parametrize(
    ("text", "fit", "told"),
    [
        ("stap=1", "", "unknown key 'stap'; known: step, token, context, block"),
        ("step=x", "", "step = 'x' is not a number"),
        ("step=-1", "", "must be 0 or more"),
        ("", "1:0.02", "give two steps as TOKENS:SECONDS"),
        ("", "1:0.02,1:0.03", "more tokens must take longer"),
        ("", "10:0.001,20:0.1", "for the step itself"),
    ],
)
def test_what_is_wrong_is_named(text, fit, told):
    """Key, value and fix."""
    with pytest.raises(CostError, match=told):
        parse_cost(text, fit)
