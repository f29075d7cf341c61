"""The moves that policies are made of: advance what runs, start what waits.

A policy is an order of these with its own queue, its own victims and its own bounds.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.scheduler import Grant, How, SequenceView, StepBuilder

from .queue import WaitingQueue

MAX_ASIDE: Final = 16
"""Sequences that wait for a prefix which a step looks past, so that its cost is bounded."""

Granted = Callable[[SequenceView, Grant], None]


def nobody(sequence: SequenceView, grant: Grant) -> None:
    """For policies that keep no accounts."""


def advance(
    build: StepBuilder,
    running: Iterable[SequenceView],
    max_tokens: int | None = None,
    how: How = "cheapest",
    victims: Sequence[SequenceView] | None = None,
    granted: Granted = nobody,
) -> bool:
    """Run sequences in order. When blocks are short, others give way: stalled ones, then
    ``victims`` from the end (the running ones themselves by default).

    :param max_tokens: of one sequence in this step
    :return: whether blocks are short: nobody new should be started
    """
    running = list(running)
    able: list[SequenceView] | None = None
    gone: set[int] = set()
    short = False
    for sequence in running:
        if sequence.id in gone:
            continue  # it gave way to one before it
        grant = build.run(sequence, max_tokens)
        if grant.reason == "blocks":
            short = True
            if able is None:
                able = [*(running if victims is None else victims), *build.stalled]
            while grant.reason == "blocks" and (victim := _victim(build, able, sequence, how)):
                gone.add(victim.id)
                grant = build.run(sequence, max_tokens)
        if grant:
            granted(sequence, grant)
        elif grant.reason in ("blocks", "tokens"):
            break
    return short


def start(
    build: StepBuilder,
    queue: WaitingQueue,
    limits: Limits,
    max_tokens: int | None = None,
    granted: Granted = nobody,
    *,
    whole: bool = False,
) -> None:
    """Start waiting sequences in order, until one can't be.

    One that waits for a prefix which another is computing is passed over. One whose
    known tokens don't fit into the free blocks waits, unless nothing runs: started, it
    would only push somebody out.

    :param whole: a prompt waits for a step that has room for all of it, unless no step has
    """
    aside: list[SequenceView] = []
    while (sequence := queue.first()) is not None:
        if not _fits(build, sequence, limits):
            build.wait(sequence, "blocks")
            break
        if whole and not _at_once(build, sequence, limits):
            build.wait(sequence, "tokens")
            break
        grant = build.start(sequence, max_tokens)
        if not grant and (grant.reason != "prefix" or len(aside) == MAX_ASIDE):
            break
        queue.remove(sequence.id)
        if grant:
            granted(sequence, grant)
        else:
            aside.append(sequence)
    for sequence in aside:
        queue.add(sequence)


def _victim(
    build: StepBuilder, able: list[SequenceView], sequence: SequenceView, how: How
) -> SequenceView | None:
    """Preempt the last that can be; never ``sequence`` itself while others are left."""
    while able:
        victim = able.pop()
        if victim.id != sequence.id and build.preempt(victim, how):
            return victim
    return None


def in_prompt(sequence: SequenceView) -> bool:
    """Whether tokens besides the last known one are still to be computed: its prompt, or
    what it lost when it was preempted."""
    return sequence.num_tokens - sequence.num_computed > 1


def _at_once(build: StepBuilder, sequence: SequenceView, limits: Limits) -> bool:
    """This step has room for all its tokens, or no step ever has."""
    needed = sequence.num_tokens - sequence.num_saved
    return needed <= build.tokens_left or needed > limits.max_step_tokens


def _fits(build: StepBuilder, sequence: SequenceView, limits: Limits) -> bool:
    """Blocks for all known tokens are free, or nobody runs."""
    alone = build.seats_left == limits.max_sequences
    return alone or build.blocks_left >= build.needed(sequence)
