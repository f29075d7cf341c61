"""A policy that takes one request's blocks away midway, whatever the one below it plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enginebay.engine import Engine
    from enginebay.hookspecs.scheduler import How, SequenceView, StepBuilder

AFTER: Final = 5
"""Tokens that are generated before."""


class Pushing:
    """Stands in for an engine's scheduler from its making until ``done``."""

    def __init__(self, engine: Engine, prompt_ids: Sequence[int], how: How) -> None:
        self._engine = engine
        self._prompt = tuple(prompt_ids)
        self._how = how
        self._ways: list[How] = []
        """How each preemption was done."""
        self._below = engine.scheduler
        engine.scheduler = self

    def plan(self, build: StepBuilder) -> None:
        """Preempt the request once, then let the policy plan."""
        for view in build.running if not self._ways else ():
            sequence = self._engine.roster.sequences[view.id]
            due = sequence.num_generated >= AFTER and not self._ways
            if not due or sequence.group.prompt_ids != self._prompt:
                continue
            if build.preempt(view, self._how, "conformance"):
                self._ways.append("swap" if view.num_saved else "recompute")
        self._below.plan(build)

    def done(self, num_preemptions: int) -> None:
        """Step aside. :raises AssertionError: the request was not preempted as asked"""
        self._engine.scheduler = self._below
        roomy = self._engine.limits.num_swap_blocks > 0
        expected = "swap" if self._how == "swap" and roomy else "recompute"
        told = f"preempted {num_preemptions} times: {self._ways}, not once by {expected}"
        assert num_preemptions == 1, told
        assert self._ways == [expected], told

    def add(self, sequence: SequenceView) -> None:
        """The policy's own."""
        self._below.add(sequence)

    def remove(self, sequence_id: int) -> None:
        """The policy's own."""
        self._below.remove(sequence_id)

    def num_waiting(self) -> int:
        """The policy's own."""
        return self._below.num_waiting()

    def check_integrity(self) -> None:
        """The policy's own."""
        self._below.check_integrity()
