"""The builder: every call fits the budgets and takes effect, or changes nothing and says why."""

import pytest

from enginebay.blocks import Blocks
from enginebay.build import StepBuilder
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.traffic import request_of
from enginebay.conformance.worlds import limits_of
from enginebay.flow import SamplingParams
from enginebay.plugins.allocators.paged import Paged
from enginebay.sequence import Group, Sequence, State
from enginebay.swap import SwapSpace


class Engine:
    """What a builder works on: a pool, seats, and sequences."""

    def __init__(self, allocator=Paged, **limits):
        self.limits = limits_of(**limits)
        self.allocator = allocator(self.limits.num_blocks, self.limits.block_size)
        self.swap = SwapSpace(self.limits.num_swap_blocks, self.limits.block_size)
        self.blocks = Blocks(
            self.allocator,
            self.swap,
            block_size=self.limits.block_size,
            max_step_tokens=self.limits.max_step_tokens,
            swap_seconds=0.001,
        )
        self.sequences = self.known = {}
        self.seats, self.steps = {}, 0

    def take_debts(self):
        """Nothing is owed to the executor, as a roster says it."""
        return [], []

    def sequence(self, num_prompt, n=1, window=0, **sampling):
        """Waiting choices of a new request; the first, or all of several."""
        name = f"r{len(self.known)}"
        request = request_of(name, num_prompt=num_prompt, max_tokens=50, window=window)
        params = SamplingParams(max_tokens=50, n=n, seed=1, **sampling)
        prompt = request.prompt.token_ids
        group = Group(request, 1, prompt, params, identity=b"", arrival=0.0, max_tokens=50)
        for index in range(n):
            sequence = Sequence(len(self.known) + 1, group, index, 50)
            group.sequences.append(sequence)
            self.known[sequence.id] = sequence
        return group.sequences[0] if n == 1 else group.sequences

    def build(self):
        """A new step's builder."""
        self.steps += 1
        return StepBuilder(self.steps, 0.5, self.limits, self.blocks, self)

    def commit(self, *sequences, token=7):
        """What was scheduled is computed; a finished prompt draws one token."""
        for sequence in sequences:
            sequence.num_computed += sequence.num_scheduled
            sequence.num_scheduled = 0
            if sequence.num_computed == sequence.num_tokens:
                sequence.token_ids.append(token)
            self.allocator.publish(sequence.id, sequence.token_ids, sequence.num_computed)


def state_of(engine, sequence):
    """Everything that a denied call must leave alone."""
    free, seats = engine.allocator.num_free, dict(engine.seats)
    return free, seats, sequence.state, sequence.num_computed, sequence.num_scheduled


def test_a_start_gives_a_seat_blocks_and_the_first_tokens():
    """The span names positions, table and the row whose logits are wanted."""
    engine = Engine()
    sequence = engine.sequence(6)
    build = engine.build()
    assert build.start(sequence).num_tokens == 6
    plan = build.plan()
    (span,) = plan.spans
    assert (span.start, span.num_tokens, span.logits_from) == (0, 6, 5)
    assert (span.table_from, len(span.table)) == (0, 2)
    assert plan.started[0].sequence_id == sequence.id
    assert plan.num_tokens == 6
    assert sequence.started_at == 0.5
    assert build.tokens_left == 64 - 6


def test_pieces_of_a_prompt_want_no_logits_before_its_end():
    """Only the piece that ends the known tokens is sampled from."""
    engine = Engine()
    sequence = engine.sequence(10)
    froms = []
    for step in range(4):
        build = engine.build()
        (build.run if step else build.start)(sequence, 4)
        froms.append(build.plan().spans[0].logits_from)
        engine.commit(sequence)
    assert froms == [-1, -1, 9, 10]


@pytest.mark.parametrize(
    ("reason", "limits", "before"),
    [
        ("seats", {"max_sequences": 1}, 3),
        ("tokens", {"max_step_tokens": 3}, 3),
        ("blocks", {"num_blocks": 2}, 5),
    ],
)
def test_a_denied_start_changes_nothing(reason, limits, before):
    """No seat, no tokens or no blocks left: the sequence waits as it did."""
    engine = Engine(**limits)
    first, second = engine.sequence(before), engine.sequence(4)
    build = engine.build()
    assert build.start(first)
    was = state_of(engine, second)
    grant = build.start(second)
    assert not grant
    assert grant.reason == reason
    assert grant.missing == (1 if reason == "blocks" else 0)
    assert build.denied[second.id] == grant
    assert build.lacks_room(second) == (reason != "tokens")
    assert state_of(engine, second) == was
    assert len(build.plan().spans) == 1
    engine.allocator.check_integrity()


def test_a_denied_run_keeps_the_place():
    """A running sequence that lacks a block keeps those it has."""
    engine = Engine(num_blocks=2)
    sequence = engine.sequence(8)
    assert engine.build().start(sequence)
    engine.commit(sequence)
    was = state_of(engine, sequence)
    build = engine.build()
    grant = build.run(sequence)
    assert (grant.reason, grant.missing) == ("blocks", 1)
    assert state_of(engine, sequence) == was
    assert build.empty
    assert build.plan() is None


def test_words_for_what_can_not_be_done():
    """Each impossible call has a reason of its own."""
    engine = Engine()
    running, waiting = engine.sequence(4), engine.sequence(4)
    build = engine.build()
    assert build.run(waiting).reason == "waiting"
    assert build.start(running, 2).num_tokens == 2
    assert build.start(running).reason == "started"
    assert build.run(running).reason == "scheduled"
    assert build.start(waiting, 0).reason == "tokens"
    assert build.start(waiting, -3).reason == "tokens"
    assert waiting.state is State.WAITING
    assert build.start(waiting, 10**9).num_tokens == 4
    engine.commit(running, waiting)
    waiting.num_computed = waiting.num_tokens
    assert engine.build().run(waiting).reason == "done"


def test_a_sequence_whose_reader_is_behind_is_not_scheduled():
    """Neither run, nor offered as running, nor started again after a preemption."""
    engine = Engine()
    sequence = engine.sequence(3, window=1)
    assert engine.build().start(sequence)
    engine.commit(sequence)
    build = engine.build()
    assert build.run(sequence).reason == "stalled"
    assert list(build.running) == []
    assert build.preempt(sequence)
    assert build.start(sequence).reason == "stalled"
    sequence.num_written = 1
    assert build.start(sequence).num_tokens == 4


def test_a_stranger_is_an_error():
    """A policy that names what is not in the engine can't be trusted any more."""
    engine, other = Engine(), Engine()
    build = engine.build()
    with pytest.raises(LookupError, match="not in the engine"):
        build.start(other.sequence(3))


def test_preempting_gives_everything_back():
    """Seat and blocks are free at once; the executor is told to forget it."""
    engine = Engine(max_sequences=1, num_blocks=2)
    victim, next_one = engine.sequence(8), engine.sequence(6)
    assert engine.build().start(victim)
    build = engine.build()
    assert not build.preempt(victim), "it is in a plan under way"
    engine.commit(victim)
    assert not build.preempt(victim, how="teleport")
    assert build.start(next_one).reason == "seats"
    assert build.preempt(victim)
    assert not build.preempt(victim)
    assert build.start(next_one)
    plan = build.plan()
    assert plan.removed == (victim.id,)
    assert (victim.num_computed, victim.num_preemptions) == (0, 1)
    assert [p.sequence for p in build.preemptions] == [victim]
    assert victim.num_tokens == 9, "what was generated is kept"


def test_a_protected_sequence_stays():
    """The core's own choice can't be undone by a policy."""
    engine = Engine()
    sequence = engine.sequence(3)
    assert engine.build().start(sequence)
    engine.commit(sequence)
    build = engine.build()
    build.protected = sequence
    assert not build.preempt(sequence)
    build.hold()
    assert build.run(sequence).reason == "tokens"


def test_choices_share_their_prompt():
    """A second choice begins at the last prompt token, on the first one's blocks, and
    copies the one that it writes."""
    engine = Engine()
    first, second = engine.sequence(10, n=2)
    assert engine.build().start(first)
    engine.commit(first)
    build = engine.build()
    assert build.start(second).num_tokens == 1
    plan = build.plan()
    (span,) = plan.spans
    (copy,) = plan.block_ops
    table = engine.allocator.tables
    assert span.table_from == 0
    assert list(span.table) == table[second.id]
    assert table[first.id][:2] == table[second.id][:2]
    assert (copy.source, copy.target) == (table[first.id][2], table[second.id][2])
    assert second.num_cached == 9
    assert first.group.num_cached == 0, "that is what the request found, not what it shares"


def test_a_choice_does_not_share_what_is_not_computed_yet():
    """The first one's prompt is half done: the second computes its own."""
    engine = Engine()
    first, second = engine.sequence(10, n=2)
    engine.build().start(first, 4)
    engine.commit(first)
    assert engine.build().start(second).num_tokens == 10


def test_a_denied_start_gives_back_what_it_shared():
    """The copy of the last block has no room: neither the fork nor its count stays."""
    engine = Engine(num_blocks=3)
    first, second = engine.sequence(10, n=2)
    assert engine.build().start(first)
    engine.commit(first)
    was = state_of(engine, second)
    assert engine.build().start(second).reason == "blocks"
    assert state_of(engine, second) == was
    assert second.id not in engine.allocator.tables
    engine.allocator.check_integrity()


def test_a_choice_computes_its_prompt_when_the_first_is_gone():
    """There is nothing to fork from: it starts like any other."""
    engine = Engine()
    first, second = engine.sequence(10, n=2)
    first.state = State.ENDED
    assert engine.build().start(second).num_tokens == 10


def test_a_cached_prefix_is_skipped_and_reported():
    """Positions found in the cache are not computed; the table names their blocks."""
    engine = Engine(allocator=Caching)
    first = engine.sequence(10)
    build = engine.build()
    build.start(first)
    engine.commit(first)
    again = engine.sequence(10)
    again.token_ids[:] = again.group.prompt_ids = first.group.prompt_ids
    build = engine.build()
    assert build.start(again, 1).num_tokens == 1
    (span,) = build.plan().spans
    assert (span.start, span.table_from, len(span.table)) == (8, 0, 3)
    assert span.table[:2] == tuple(engine.allocator.tables[first.id][:2])
    assert again.num_cached == again.group.num_cached == 8


def test_prompt_scores_bypass_the_cache():
    """Every prompt position is computed, since each one's logits are wanted."""
    engine = Engine(allocator=Caching)
    first = engine.sequence(10)
    engine.build().start(first)
    engine.commit(first)
    scored = engine.sequence(10, prompt_logprobs=0)
    scored.token_ids[:] = scored.group.prompt_ids = first.group.prompt_ids
    build = engine.build()
    build.start(scored, 6)
    (span,) = build.plan().spans
    assert (span.start, span.prompt_logits) == (0, True)


def test_drafts_are_verified_in_one_span():
    """k drafts want k + 1 rows; a smaller budget takes fewer drafts."""
    engine = Engine(max_step_tokens=5)
    sequence = engine.sequence(5)
    engine.build().start(sequence)
    engine.commit(sequence)
    sequence.drafts = (1, 2, 3)
    for count, drafts in ((None, (1, 2, 3)), (2, (1,)), (1, ())):
        build = engine.build()
        assert build.remaining(sequence) == 4
        build.run(sequence, count)
        (span,) = build.plan().spans
        assert (span.logits_from, span.drafts) == (5, drafts)
        assert span.num_tokens == 1 + len(drafts)
        sequence.num_scheduled = 0
