"""Decodes first: prompts get what is left of a step."""

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.plugins.schedulers.decode_first import DecodeFirst, Options


def recorded(**limits):
    """A harness with the policy."""
    return Recorded(lambda given: DecodeFirst(Options(), given), limits_of(**limits))


def test_decodes_go_before_a_prompt_that_started_earlier():
    """The younger one decodes while the older one's prompt takes what is left."""
    harness = recorded(max_step_tokens=8)
    harness.come("long", 17, 2)
    harness.turn()
    harness.come("a", 3, 3)
    harness.finish()
    assert harness.plans == [
        [("long", 8)],
        [("long", 8)],
        [("long", 1), ("a", 3)],
        [("long", 1), ("a", 1)],
        [("a", 1)],
    ]


def test_a_prompt_takes_all_that_is_left():
    """Its pieces have no bound of their own, and the next one begins in the same step."""
    harness = recorded(max_step_tokens=8)
    harness.come("a", 3, 5)
    harness.turn()
    harness.come("b", 10, 1)
    harness.come("c", 6, 2)
    harness.finish()
    assert harness.plans == [
        [("a", 3)],
        [("a", 1), ("b", 7)],
        [("a", 1), ("b", 3), ("c", 4)],
        [("a", 1), ("c", 2)],
        [("a", 1), ("c", 1)],
    ]


def test_the_youngest_start_gives_way():
    """Whoever decodes is served first, but the last to start loses its blocks first."""
    harness = recorded(num_blocks=9, max_model_len=36, max_step_tokens=8)
    harness.come("long", 14, 12)
    harness.turn()
    harness.come("quick", 2, 16)
    harness.finish()
    require_all_well(harness, "decode-first")
    usage = {name: answer.ended.usage for name, answer in harness.answers.of.items()}
    assert (usage["long"].num_preemptions, usage["quick"].num_preemptions) == (0, 1)
