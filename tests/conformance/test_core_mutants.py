"""Faults of the core itself are seen: by the audit of its plans, or by what comes back."""

import pytest

from enginebay.conformance.check import Broken
from enginebay.conformance.contention import CONTENDED, play_contention
from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.core_parts import CORE_MUTANTS, harness_with
from enginebay.plugins.schedulers.chunked import Chunked, Options


def test_the_right_core_passes_under_pressure():
    """Sequences are swapped out, dropped, brought back and cancelled, and all is well."""
    harness = Harness(lambda limits: Chunked(Options(max_chunk=6), limits), CONTENDED)
    play_contention(harness)
    events = [e for n in range(14) for e in harness.intake.timeline.of(f"r{n}")]
    ways = {event["how"] for event in events if event["what"] == "preempted"}
    assert ways == {"swap", "recompute"}
    assert harness.audit.most_seats == CONTENDED.max_sequences
    assert harness.audit.most_tokens == CONTENDED.max_step_tokens


@pytest.mark.parametrize("mutant", CORE_MUTANTS, ids=lambda mutant: mutant.fault)
def test_faults_of_the_core_are_caught_by_name(mutant):
    """The clause that guards what is broken fails, and none before it."""
    with pytest.raises(Broken) as caught:
        play_contention(harness_with(mutant.make))
    assert caught.value.clause == mutant.caught_by
