"""Prompts first: new ones before decodes, whole, in steps of their own."""

import pytest

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.errors import StackError
from enginebay.hookspecs.scheduler import SchedulerContext
from enginebay.plugins.schedulers.prefill_first import (
    Options,
    PrefillFirst,
    enginebay_scheduler,
)


def recorded(max_prompt_steps=64, **limits):
    """A harness with the policy."""
    options = Options(max_prompt_steps=max_prompt_steps)
    return Recorded(lambda given: PrefillFirst(options, given), limits_of(**limits))


def test_decodes_stand_still_while_prompts_are_computed():
    """A step computes prompts alone or decodes alone; a prompt waits until it fits whole."""
    harness = recorded(max_step_tokens=8)
    harness.come("a", 3, 3)
    harness.turn()
    for name, length in (("b", 5), ("c", 2), ("d", 4)):
        harness.come(name, length, 1)
    harness.finish()
    assert harness.plans == [
        [("a", 3)],
        [("b", 5), ("c", 2)],
        [("d", 4)],
        [("a", 1)],
        [("a", 1)],
    ]


def test_a_prompt_longer_than_a_step_takes_several_in_a_row():
    """It gets on although no step holds it, and before whoever decodes."""
    harness = recorded(max_step_tokens=8)
    harness.come("a", 3, 3)
    harness.turn()
    harness.come("long", 20, 2)
    harness.finish()
    assert harness.plans[1:5] == [
        [("long", 8)],
        [("long", 8)],
        [("long", 4)],
        [("a", 1), ("long", 1)],
    ]


def test_prompts_do_not_starve_those_that_generate():
    """A stream of prompts that never ends leaves them a step now and then."""
    harness = recorded(max_prompt_steps=3)
    harness.come("a", 3, 6)
    for number in range(40):
        harness.come(f"p{number}", 4, 1)
        harness.turn()
    decodes = [number for number, plan in enumerate(harness.plans) if plan == [("a", 1)]]
    assert decodes == [3, 7, 11, 15, 19]
    assert harness.answers.of["a"].ended
    harness.finish()
    require_all_well(harness, "prefill-first")


def test_zero_steps_are_refused_by_name():
    """The start fails and says which field."""
    with pytest.raises(StackError, match="prefill-first: max_prompt_steps is 0"):
        enginebay_scheduler(Options(max_prompt_steps=0), SchedulerContext(limits=limits_of()))
