"""Decodes first: prompts get what is left of a step."""

from enginebay.conformance.recorded import Recorded
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.plugins.schedulers.decode_first import DecodeFirst, Options


def recorded(depth=1, **limits):
    """A harness with the policy."""
    return Recorded(lambda given: DecodeFirst(Options(), given), limits_of(**limits), depth=depth)


def test_decodes_go_before_a_prompt_that_started_earlier():
    """The younger one began while a piece of the older one's prompt was under way."""
    harness = recorded(depth=2, max_step_tokens=8)
    harness.come("long", 40, 1)
    harness.turn()
    harness.come("a", 3, 2, window=1)
    for _ in range(3):
        harness.turn()
    harness.write("a", 1)
    harness.turn()
    assert harness.plans == [[("long", 8)], [("a", 3)], [("long", 8)], [("a", 1), ("long", 7)]]
    harness.finish()
    require_all_well(harness, "decode-first")


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


def test_the_last_in_order_gives_way():
    """An unfinished prompt loses its blocks to one that decodes."""
    harness = recorded(num_blocks=10, max_model_len=40, max_step_tokens=8)
    harness.come("a", 4, 24)
    harness.turn()
    harness.come("long", 30, 2)
    harness.finish()
    require_all_well(harness, "decode-first")
    usage = {name: answer.ended.usage for name, answer in harness.answers.of.items()}
    assert (usage["a"].num_preemptions, usage["long"].num_preemptions) == (0, 1)
