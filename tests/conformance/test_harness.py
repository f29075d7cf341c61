"""The harness: an engine without a model, whose audit and tokens see every wrong step."""

import pytest

from enginebay.conformance.check import Broken
from enginebay.conformance.clocks import VirtualClock
from enginebay.conformance.harness import Harness
from enginebay.conformance.hash_model import HashModel, continuation
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.plan_audit import PlanAudit
from enginebay.conformance.traffic import VOCAB_SIZE, Arrival, Leaving, request_of
from enginebay.conformance.worlds import limits_of, random_world, require_all_well
from enginebay.errors import InvalidRequest, RequestRefused
from enginebay.flow import (
    BlockOp,
    Refusal,
    SamplingParams,
    SequenceResult,
    SequenceStart,
    Span,
    StepPlan,
    StepResult,
    TokenPrompt,
)
from enginebay.plugins.schedulers.chunked import Chunked, Options

LIMITS = limits_of(max_step_tokens=8, max_sequences=2, num_blocks=4, block_size=4)


def chunked(limits):
    return Chunked(Options(), limits)


def start(number, count=6):
    """A sequence with so many prompt tokens."""
    return SequenceStart(
        sequence_id=number,
        request_id=f"r{number}",
        index=0,
        token_ids=tuple(range(count)),
        num_prompt=count,
        sampling=SamplingParams(),
        seed=0,
    )


def span(number, begin, count, table=(), table_from=0, **fields):
    """Positions of a sequence."""
    return Span(
        sequence_id=number,
        start=begin,
        num_tokens=count,
        table=table,
        table_from=table_from,
        **fields,
    )


FIRST = StepPlan(step=0, started=(start(1),), spans=(span(1, 0, 6, (0, 1)),))


@pytest.mark.parametrize(
    ("clause", "plan"),
    [
        ("plan/started", StepPlan(step=1, started=(start(1),), spans=(span(1, 0, 1),))),
        ("plan/known", StepPlan(step=1, spans=(span(9, 0, 1, (2,)),))),
        ("plan/contiguous", StepPlan(step=1, spans=(span(1, 5, 1, (), 2),))),
        ("plan/contiguous", StepPlan(step=1, spans=(span(1, 7, 1, (), 2),))),
        ("plan/once", StepPlan(step=1, spans=(span(1, 6, 1, (), 2), span(1, 7, 1, (), 2)))),
        ("plan/tokens", StepPlan(step=1, spans=(span(1, 6, 9, (2, 3), 2),))),
        ("plan/tokens", StepPlan(step=1, spans=(span(1, 6, 0, (), 2),))),
        ("plan/table", StepPlan(step=1, spans=(span(1, 6, 3, (), 2),))),
        ("plan/table", StepPlan(step=1, spans=(span(1, 6, 3, (4,), 2),))),
        ("plan/table", StepPlan(step=1, spans=(span(1, 6, 1, (2,), 3),))),
        (
            "plan/write-alone",
            StepPlan(step=1, started=(start(2),), spans=(span(2, 0, 4, (1,)),)),
        ),
        (
            "plan/seats",
            StepPlan(
                step=1,
                started=(start(2), start(3)),
                spans=(span(2, 0, 4, (2,)), span(3, 0, 4, (3,))),
            ),
        ),
    ],
)
def test_the_audit_sees_what_no_executor_could_run(clause, plan):
    """Each wrong plan breaks the clause that names it."""
    audit = PlanAudit(LIMITS)
    audit.plan(FIRST)
    with pytest.raises(Broken) as broken:
        audit.plan(plan)
    assert broken.value.clause == clause


def test_the_audit_follows_rejected_drafts():
    """Their positions are computed again; those of accepted ones are not."""
    audit = PlanAudit(LIMITS)
    audit.plan(FIRST)
    drafted = StepPlan(step=1, spans=(span(1, 6, 3, (2,), 2, drafts=(4, 5), logits_from=6),))
    audit.plan(drafted)
    drawn = SequenceResult(sequence_id=1, token_ids=(4, 9))
    audit.result(drafted, StepResult(step=1, outputs=(drawn,)))
    audit.plan(StepPlan(step=2, spans=(span(1, 8, 1, (2,), 2),)))


def model(**fields):
    return HashModel(num_blocks=4, block_size=4, vocab_size=97, clock=VirtualClock(), **fields)


def test_tokens_depend_on_every_block():
    """A copy in time changes nothing; a copy that is forgotten is seen."""
    executor = model()
    executor.execute(FIRST)
    copy = BlockOp(kind="copy", source=1, target=2)
    moved = StepPlan(step=1, block_ops=(copy,), spans=(span(1, 6, 1, (2,), 1, logits_from=5),))
    executor.rows[1].tokens.append(50)
    executor.execute(moved)
    with pytest.raises(Broken, match="plan/content"):
        executor.execute(StepPlan(step=2, spans=(span(1, 7, 1, (3,), 1),)))


def test_drafts_stand_as_far_as_they_are_drawn():
    """Up to k + 1 tokens a step, each what would have been drawn without drafts."""
    prompt = tuple(range(6))
    right = continuation(prompt, 4, seed=0, vocab_size=97)
    executor = model()
    drafts = (right[0], right[1], (right[2] + 1) % 97)
    whole = span(1, 0, 9, (0, 1, 2), drafts=drafts, logits_from=5)
    result = executor.collect(
        executor.execute(StepPlan(step=0, started=(start(1),), spans=(whole,)))
    )
    assert list(result.outputs[0].token_ids) == right[:3]


def test_two_runs_are_the_same():
    """Nothing is random but the seed: the same events at the same virtual moments."""
    runs = []
    for _ in range(2):
        world = random_world(20)
        harness = Harness(chunked, world.limits)
        harness.play(world.happenings)
        runs.append([(batch.time, batch.events) for batch in harness.answers.batches])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("make_allocator", [Caching])
def test_prefix_reuse_changes_no_token(make_allocator):
    """Tokens with cached prefixes equal those that the model says; something was reused."""
    harness = Harness(chunked, limits_of(num_blocks=40), make_allocator=make_allocator)
    shared = list(range(1, 30))
    for number in range(8):
        prompt = shared[: 10 + 2 * number]
        request = request_of(f"r{number}", num_prompt=0, max_tokens=5, prompt=prompt, n=2)
        harness.play([Arrival(harness.clock.now, request)])
    require_all_well(harness, "harness/reuse")
    assert sum(answer.ended.usage.cached_tokens for answer in harness.answers.of.values()) > 60


def test_drafting_changes_no_token():
    """A drafter that is right now and then: fewer steps, the same answers."""

    class Guesses:
        def propose(self, sequences, k):
            return [self.guess(sequence, k) for sequence in sequences]

        def guess(self, sequence, k):
            prompt = sequence.token_ids[: sequence.num_prompt]
            done = sequence.num_tokens - sequence.num_prompt
            right = continuation(prompt, done + k, seed=sequence.seed, vocab_size=VOCAB_SIZE)
            wrong = sequence.num_tokens % 3
            return tuple(right[done : done + wrong] + [5] * (k - wrong))

    steps = []
    for drafter in (None, Guesses()):
        harness = Harness(chunked, limits_of(num_blocks=20, max_model_len=60), drafter=drafter)
        for number in range(6):
            harness.submit(request_of(f"r{number}", num_prompt=5, max_tokens=20 + number))
        harness.finish()
        require_all_well(harness, "harness/drafts")
        steps.append(harness.audit.num_plans)
    assert steps[1] < 0.8 * steps[0]


def test_things_happen_at_their_times():
    """Arrivals and cancellations come when the virtual clock says; idle time costs nothing."""
    harness = Harness(chunked, limits_of())
    harness.play(
        [
            Arrival(100.0, request_of("late", num_prompt=5, max_tokens=3)),
            Arrival(1.0, request_of("early", num_prompt=5, max_tokens=150)),
            Leaving(1.1, "early"),
        ]
    )
    early, late = harness.answers.of["early"], harness.answers.of["late"]
    assert 1.1 <= early.ended_at < 1.2
    assert early.reasons == ("cancelled",)
    assert 100.0 < late.first_token_at < 100.1
    assert harness.audit.num_plans < 60


def test_admission_is_the_engines_own():
    """A refusing member refuses, and what it was told of the load is true."""
    loads = []

    class Door:
        def ask(self, ask, load):
            loads.append(load)
            if load.num_running < 2:
                return None
            return Refusal(plugin="two", reason="full", kind="server", message="two run")

        def release(self, request_id):
            """Nothing was reserved."""

    harness = Harness(chunked, limits_of(), door=[("two", Door())])
    for number in range(2):
        harness.submit(request_of(f"r{number}", num_prompt=9, max_tokens=3))
    harness.turn()
    with pytest.raises(RequestRefused, match="two run"):
        harness.submit(request_of("r2", num_prompt=9, max_tokens=3))
    assert loads[-1].num_free_blocks < loads[0].num_free_blocks == 64
    harness.finish()
    require_all_well(harness, "harness/admission")
    with pytest.raises(InvalidRequest, match="empty prompt"):
        harness.submit(request_of("r3", num_prompt=0, max_tokens=3))


def test_an_endless_run_is_told():
    """A bound of turns, and the names of those that did not end."""
    harness = Harness(chunked, limits_of())
    harness.submit(request_of("slow", num_prompt=5, max_tokens=100))
    with pytest.raises(Broken, match="'slow'"):
        harness.finish(max_turns=5)


def test_requests_are_plain():
    """Prompts are token ids of the harness's own vocabulary, and differ by id."""
    one, two = (request_of(name, num_prompt=20, max_tokens=1) for name in ("a", "b"))
    assert isinstance(one.prompt, TokenPrompt)
    assert set(one.prompt.token_ids) <= set(range(1, VOCAB_SIZE))
    assert one.prompt != two.prompt
