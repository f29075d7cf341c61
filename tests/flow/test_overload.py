"""Overload: ten times what the engine can do, and callers who try again (virtual time).

The door and budget chains are those of the ``cpu`` stack.
"""

import heapq
import itertools
import random
from collections import Counter

import pytest
from msgspec.structs import replace

from enginebay.config import load_stack
from enginebay.conformance.harness import Harness
from enginebay.conformance.traffic import Arrival, request_of
from enginebay.conformance.worlds import limits_of, require_all_well
from enginebay.errors import RequestRefused
from enginebay.flow import Ended
from enginebay.hookspecs.admission import AdmissionContext
from enginebay.hookspecs.families import SLOTS
from enginebay.plugins.admission import retry_budget
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.registry import Registry

LIMITS = limits_of(max_sequences=8, num_blocks=200)
NUM_PROMPT, NUM_TOKENS = 12, 16
CAPACITY = 105.0
"""Requests of that size that the engine finishes in a second, about."""


def chain(slot, limits=LIMITS):
    """Members of one chain of the cpu stack."""
    stack, registry = load_stack("cpu"), Registry()
    built = []
    for entry in stack.chain(slot):
        context = AdmissionContext(name=entry.name, limits=limits, chain=slot, longest_token=8)
        built.append((entry.name, registry.build(SLOTS[slot], entry, context)))
    return built


def engine(door=(), budget=()):
    return Harness(
        lambda limits: Chunked(Options(), limits), LIMITS, door=door, budget=budget, verify=False
    )


def traffic(load, count, *, begin=0.0, deadline=None, seed=3):
    """Poisson arrivals at a multiple of the capacity."""
    noise, now = random.Random(seed), begin
    for number in range(count):
        now += noise.expovariate(load * CAPACITY)
        request = request_of(
            f"{begin:g}-{load:g}-{number}",
            num_prompt=NUM_PROMPT,
            max_tokens=NUM_TOKENS,
            deadline=deadline,
        )
        yield Arrival(now, request)


def sizes(harness):
    """What the core and the chains hold."""
    intake, roster = harness.intake, harness.roster
    return (
        intake.num_held,
        len(intake.door),
        len(intake.budget),
        len(roster.groups),
        len(roster.sequences),
        intake.num_waiting,
    )


def offer(load, count=500, **more):
    """Play a load against a fresh engine. :return: harness, refusals, completed a second"""
    harness = engine(chain("door"), chain("budget"))
    refused, most = {}, Counter()

    def look():
        for place, size in enumerate(sizes(harness)):
            most[place] = max(most[place], size)

    arrivals = list(traffic(load, count, **more))
    harness.play(
        arrivals,
        refused=lambda request, error: refused.update({request.id: error.refusal}),
        each_turn=look,
    )
    ended = [answer.ended_at for answer in harness.answers.of.values()]
    return harness, refused, len(ended) / (max(ended) - arrivals[0].time), max(most.values())


def test_ten_times_the_load_is_answered_or_refused():
    """500 at ten times capacity: each ends or is refused with when to come back; nobody
    waits for ever, and what the engine holds is bounded and goes back to nothing."""
    harness, refused, pace, most = offer(10.0)
    require_all_well(harness, "overload")
    answered = harness.answers.of
    assert len(answered) + len(refused) == 500
    assert not answered.keys() & refused.keys()
    assert all(a.finished[0].reason == "length" for a in answered.values())
    assert {(r.plugin, r.kind) for r in refused.values()} == {("bounded-queue", "server")}
    assert len(refused) > 100
    assert most <= LIMITS.max_sequences + 256
    assert sizes(harness) == (0,) * 6
    slowest = max(a.ended_at for a in answered.values())
    assert slowest < (LIMITS.max_sequences + 256 + 60) / CAPACITY * 1.25
    best = max(offer(load, 250)[2] for load in (0.8, 1.0))
    assert pace >= 0.9 * best, (pace, best)


def test_refused_callers_are_not_sent_back_all_at_once():
    """Told waits follow the engine's pace: no second is promised to twice its capacity."""
    _, refused, _, _ = offer(10.0)
    waits = [refusal.retry_after for refusal in refused.values()]
    assert min(waits) >= 1.0
    busiest = max(Counter(int(wait) for wait in waits).values())
    assert busiest <= 2 * CAPACITY
    assert max(waits) < 60.0


def test_deadlines_are_kept_by_those_let_in():
    """With 0.6 s to answer, ten times the load gives as much in time as the best lower
    load does, and of those let in nearly all make it."""

    def goodput(load, count):
        harness = engine(chain("door"), chain("budget"))
        warm = traffic(1.5, 100, seed=5)
        offered = list(traffic(load, count, begin=10.0, deadline=0.6))
        plugins = Counter()
        harness.play(
            [*warm, *offered],
            refused=lambda request, error: plugins.update([error.refusal.plugin]),
        )
        let_in = [a for name, a in harness.answers.of.items() if name.startswith("10-")]
        good = [a.ended_at for a in let_in if a.finished[0].reason == "length"]
        assert len(good) >= 0.95 * len(let_in)
        assert len(let_in) + plugins["deadline"] == count
        return len(good) / (max(good) - offered[0].time)

    best = max(goodput(load, 200) for load in (0.8, 1.0))
    assert goodput(10.0, 500) >= 0.9 * best


def test_deadlines_are_kept_where_more_at_a_time_means_slower():
    """Seats for all, and a machine on which two at a time take twice as long: those let
    in are as many as it can answer in time, though nobody ever waits for a seat."""
    limits = limits_of(max_sequences=64, num_blocks=800)
    harness = Harness(
        lambda given: Chunked(Options(), given),
        limits,
        door=chain("door", limits),
        verify=False,
        cost=lambda plan: 0.0004 * plan.num_tokens,
    )
    warm = traffic(0.5, 40, seed=5)
    offered = list(traffic(9.0, 400, begin=10.0, deadline=0.12))
    refused = []
    harness.play(
        [*warm, *offered], refused=lambda request, error: refused.append(error.refusal.plugin)
    )
    let_in = [a for name, a in harness.answers.of.items() if name.startswith("10-")]
    good = [a.ended_at for a in let_in if a.finished[0].reason == "length"]
    assert set(refused) == {"deadline"}
    assert len(good) >= 0.9 * len(let_in)
    most = 1 / (0.0004 * (NUM_PROMPT + NUM_TOKENS - 1))
    assert len(good) / (max(good) - offered[0].time) >= 0.9 * most


def test_a_text_that_no_tokenizer_could_make_fit_is_refused_untokenized(start, monkeypatch):
    """The door of a real engine knows its vocabulary's longest token."""
    llm = start(stack="reference", engine__max_model_len=64)
    encode = type(dict(llm.assembly.engine.intake.frontends)["text"][1])
    monkeypatch.setattr(encode, "encode", lambda self, prompt: pytest.fail("it was tokenized"))
    with pytest.raises(RequestRefused) as refused:
        llm.generate("a" * 2**20)
    assert refused.value.refusal.plugin == "context-length"
    assert refused.value.refusal.limit < 2**20


class Storm:
    """Clients with patience for one second, who try again up to five times.

    Whoever is not answered in time cancels and comes back at once; whoever is refused
    comes back when told. The load is 0.8 of the capacity, with a burst of five times as
    much for one second.
    """

    PATIENCE = 1.0
    BURST = (1.5, 2.5)
    END = 7.5

    def __init__(self, door):
        self.harness = engine(door)
        self.good = []
        """Moments at which a client had its answer in time."""
        self.tries = Counter()
        self._open = {}
        """Client, attempt and begin of each request under way."""
        self._coming = []
        self._order = itertools.count()
        noise, now = random.Random(11), 0.0
        for client in itertools.count():
            rate = 5.0 if self.BURST[0] <= now < self.BURST[1] else 0.8
            now += noise.expovariate(rate * CAPACITY)
            if now > self.END:
                return
            self._later(now, self._try, client, 0)

    def run(self):
        """Until the end; what is under way then is left."""
        clock = self.harness.clock
        while clock() < self.END:
            while self._coming and self._coming[0][0] <= clock():
                *_, act, arguments = heapq.heappop(self._coming)
                act(*arguments)
            computing = self.harness.turn()
            self._look()
            if not computing:
                clock.wait_until(self._coming[0][0] if self._coming else self.END)
        return self

    def rate(self, since, until):
        """Answers in time, a second."""
        return sum(since <= moment < until for moment in self.good) / (until - since)

    def _later(self, moment, act, *arguments):
        heapq.heappush(self._coming, (moment, next(self._order), act, arguments))

    def _try(self, client, attempt):
        if attempt > 5:
            return
        name, now = f"{client}-{attempt}", self.harness.clock()
        request = request_of(name, num_prompt=NUM_PROMPT, max_tokens=NUM_TOKENS)
        self.tries[min(attempt, 1)] += 1
        try:
            self.harness.submit(replace(request, attempt=attempt, arrival=now))
        except RequestRefused as error:
            self._later(now + error.refusal.retry_after, self._try, client, attempt + 1)
        else:
            self._open[name] = client, attempt, now
            self._later(now + self.PATIENCE, self._give_up, name)

    def _give_up(self, name):
        if name in self._open:
            client, attempt, _ = self._open.pop(name)
            self.harness.cancel(name)
            self._try(client, attempt + 1)

    def _look(self):
        batches = self.harness.answers.batches
        for event in itertools.chain.from_iterable(batch.events for batch in batches):
            if isinstance(event, Ended) and self._open.pop(event.request_id, None):
                self.good.append(self.harness.clock())
        del batches[:-1]


def budget():
    """The retry budget alone, with its usual options."""
    context = AdmissionContext(name="retries", limits=LIMITS, chain="door")
    return [("retries", retry_budget.enginebay_admission(retry_budget.Options(), context))]


def test_a_retry_storm_feeds_itself_without_bounds_and_not_with_a_budget():
    """Long after the burst nearly nobody is answered in time where retries are free; with
    a retry budget, and with the cpu stack's door, goodput is back at what is offered."""
    offered, calm = 0.8 * CAPACITY, (5.0, 7.0)
    free = Storm([]).run()
    assert free.rate(0.0, 1.5) > 0.8 * offered
    assert free.rate(*calm) < 0.5 * offered
    budgeted = Storm(budget()).run()
    assert budgeted.rate(*calm) > 0.85 * offered
    assert budgeted.tries[1] < free.tries[1]
    assert Storm(chain("door")).run().rate(*calm) > 0.85 * offered
