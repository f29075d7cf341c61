"""First come, first served: whole prompts in strict order of arrival."""

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.plugins.schedulers.fcfs import Fcfs, Options


def recorded(**limits):
    """A harness with the policy."""
    return Recorded(lambda given: Fcfs(Options(), given), limits_of(**limits))


def test_a_prompt_waits_for_a_step_that_holds_all_of_it():
    """It is not cut, and a later one that would fit does not overtake it."""
    harness = recorded(max_step_tokens=8)
    harness.come("a", 3, 3)
    harness.turn()
    harness.come("b", 8, 1)
    harness.come("c", 2, 1)
    harness.finish()
    assert harness.plans == [[("a", 3)], [("a", 1)], [("a", 1)], [("b", 8)], [("c", 2)]]
    assert harness.waits("b") == ["tokens"]


def test_a_prompt_longer_than_any_step_is_cut():
    """It must not wait for ever; it takes what the steps have."""
    harness = recorded(max_step_tokens=8)
    harness.come("a", 3, 4)
    harness.turn()
    harness.come("long", 20, 2)
    harness.finish()
    assert [dict(plan).get("long", 0) for plan in harness.plans] == [0, 7, 7, 6, 1]


def test_the_order_is_that_of_arrival_whoever_started_first():
    """The second choice of the first request starts last and goes second."""
    harness = recorded(max_step_tokens=9)
    harness.come("a", 4, 4, n=2)
    harness.come("b", 5, 4)
    harness.finish()
    assert harness.plans[:3] == [
        [("a", 4), ("b", 5)],
        [("a", 1), ("b", 1), ("a", 1)],
        [("a", 1), ("a", 1), ("b", 1)],
    ]


def test_who_gave_way_goes_before_those_who_came_later():
    """It waits at its old place, and computes its lost positions first."""
    harness = recorded(num_blocks=15, max_model_len=40)
    for name in ("old", "middle", "young"):
        harness.come(name, 11, 16)
    while harness.allocator.num_free > 2:
        harness.turn()
    harness.come("late", 3, 9)
    harness.finish()
    require_all_well(harness, "fcfs")
    preemptions = [harness.answers.of[n].ended.usage.num_preemptions for n in harness.answers.of]
    assert preemptions[:3] == [0, 0, 1]
    prompts = [name for plan in harness.plans for name, count in plan if count > 1]
    assert prompts[:5] == ["old", "middle", "young", "young", "late"]
