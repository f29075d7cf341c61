"""Evidence: metrics, timelines and records of whole runs agree with what was planned,
drawn, said and refused."""

import random
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from enginebay.conformance.harness import Harness
from enginebay.conformance.mutants.caching import Caching
from enginebay.conformance.traffic import Arrival, Leaving, request_of
from enginebay.conformance.worlds import TENANTS, limits_of, require_all_well
from enginebay.errors import RequestRefused
from enginebay.flow import Refusal
from enginebay.hookspecs.observer import ObserverContext
from enginebay.plugins.observers import metrics
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.timeline import latencies
from enginebay.trace import chrome_trace

BLOCK_BYTES = 1000


class Kept:
    """Keeps each plan's own story, independently of the watch: the executor's plans."""

    def __init__(self, executor):
        self.plans, self.results = {}, {}
        execute, collect = executor.execute, executor.collect

        def keep_plan(plan):
            self.plans[plan.step] = plan
            return execute(plan)

        def keep_result(handle):
            result = collect(handle)
            self.results[result.step] = result
            return result

        executor.execute, executor.collect = keep_plan, keep_result

    def count(self, kind):
        """Block operations of a kind over all plans."""
        return sum(op.kind == kind for plan in self.plans.values() for op in plan.block_ops)


class Full:
    """Admission that refuses every seventh request, for either of two reasons."""

    def __init__(self):
        self.asked = 0

    def ask(self, ask, load):
        self.asked += 1
        if self.asked % 7:
            return None
        kind = "caller" if self.asked % 2 else "server"
        return Refusal(plugin="full", reason=f"too_{kind}", kind=kind, message="no")

    def release(self, request_id):
        """Nothing is reserved."""


class World:
    """A contended engine with metrics, and its traffic, from a seed."""

    def __init__(self, seed):
        noise = random.Random(seed)
        limits = limits_of(
            num_blocks=16, block_size=4, max_model_len=60, num_swap_blocks=noise.choice((8, 64))
        )
        self.readings = []
        self.harness = Harness(
            lambda given: Chunked(Options(preemption=noise.choice(("swap", "cheapest"))), given),
            limits,
            make_allocator=Caching,
            depth=1 + seed % 2,
            door=[("full", Full())],
        )
        context = ObserverContext(
            model_name="m",
            limits=limits,
            timeline=self.harness.intake.timeline,
            block_bytes=BLOCK_BYTES,
        )
        self.metrics = metrics.enginebay_observer(metrics.Options(), context)
        self.harness.engine.watch.observers.append(("metrics", self.metrics))
        self.kept = Kept(self.harness.executor)
        self.happenings = []
        self.noise = noise
        time = 0.0
        for number in range(40):
            time += noise.expovariate(1 / 0.004)
            request = request_of(
                f"r{number}",
                num_prompt=noise.randint(4, 24),
                max_tokens=noise.randint(1, 30),
                n=noise.choice((1, 1, 1, 3)),
                tenant=noise.choice(TENANTS),
                deadline=noise.choice((None, None, None, 0.1)),
            )
            self.happenings.append(Arrival(time, request))
            if noise.random() < 0.2:
                self.happenings.append(Leaving(time + noise.expovariate(1 / 0.05), request.id))

    def play(self):
        """To the end; reads the metrics on the way."""
        self.harness.play(
            self.happenings, each_turn=self._look, refused=lambda request, error: self.on(error)
        )
        self.harness.engine.watch.idle(self.harness.engine)
        self.readings.append(read(self.metrics))

    def on(self, error):
        """Only refusals were arranged."""
        assert isinstance(error, RequestRefused)

    def _look(self):
        if self.noise.random() < 0.1:
            self.readings.append(read(self.metrics))

    def events(self, *kinds):
        """All timelines' events of some kinds."""
        timeline = self.harness.intake.timeline
        told = [e for name in timeline.request_ids() for e in timeline.of(name)]
        return [event for event in told if event["what"] in kinds]


def read(observer):
    """Values by name and labels, without ``model_name``."""
    values = {}
    for family in text_string_to_metric_families(observer.render()):
        for sample in family.samples:
            labels = frozenset(i for i in sample.labels.items() if i[0] != "model_name")
            values[sample.name, labels] = sample.value
    return values


def by(values, name, *labels):
    """A counter's values by its labels' values, without those that are zero."""
    return {
        tuple(dict(key[1])[label] for label in labels): value
        for key, value in values.items()
        if key[0] == f"{name}_total" and value
    }


@pytest.fixture(scope="module", params=range(4))
def world(request):
    """A run that is over."""
    world = World(request.param)
    world.play()
    require_all_well(world.harness, "evidence")
    return world


def test_the_world_is_contended(world):
    """Otherwise the others prove nothing."""
    whats = Counter(event["what"] for event in world.events("preempted", "refused"))
    assert min(whats["preempted"], whats["refused"]) > 0
    assert world.kept.count("save")


def test_tokens_are_those_that_readers_got(world):
    """Generated tokens, in all and by tenant, and what was generated for nothing."""
    values, answers = world.readings[-1], world.harness.answers.of
    tokens = Counter()
    aborted = Counter()
    for answer in answers.values():
        for index, end in answer.finished.items():
            count = len(answer.tokens.get(index, []))
            tokens[answer.request.tenant] += count
            if end.reason not in ("stop", "length"):
                aborted[("abort" if end.reason == "cancelled" else end.reason,)] += count
    assert by(values, "vllm:generation_tokens") == {(): tokens.total()}
    told = by(values, "enginebay:tenant_generation_tokens", "tenant")
    assert told == {(tenant,): count for tenant, count in tokens.items()}
    assert by(values, "enginebay:aborted_tokens", "finished_reason") == +aborted


def test_ends_are_those_that_were_told(world):
    """Choices by reason, and requests that missed their deadline."""
    values, answers = world.readings[-1], world.harness.answers.of
    ends = Counter(end.reason for answer in answers.values() for end in answer.finished.values())
    told = by(values, "vllm:request_success", "finished_reason")
    assert told == {("abort" if r == "cancelled" else r,): n for r, n in ends.items()}
    missed = sum(
        any(end.reason == "deadline" for end in answer.finished.values())
        for answer in answers.values()
    )
    late = by(values, "enginebay:deadline_misses").get((), 0)
    assert missed <= late <= sum(a.request.deadline is not None for a in answers.values())


def test_refusals_are_those_that_callers_got(world):
    """By plugin, reason and kind."""
    values, refusals = world.readings[-1], world.harness.refusals
    told = by(values, "enginebay:refusals", "plugin", "reason", "kind")
    assert told == Counter((r.plugin, r.reason, r.kind) for r in refusals)
    assert by(values, "enginebay:refused_requests", "kind") == Counter((r.kind,) for r in refusals)
    assert by(values, "vllm:admission_rejections", "reason") == Counter(
        (r.reason,) for r in refusals
    )
    assert len(world.events("refused")) == len(refusals)


def test_moved_blocks_are_those_of_the_plans(world):
    """Out and in, as blocks and as bytes."""
    values, kept = world.readings[-1], world.kept
    moved = {("out",): kept.count("save"), ("in",): kept.count("load")}
    moved = {key: count for key, count in moved.items() if count}
    assert by(values, "enginebay:swapped_blocks", "direction") == moved
    assert by(values, "enginebay:swapped_bytes", "direction") == {
        key: BLOCK_BYTES * count for key, count in moved.items()
    }


def test_preemptions_are_those_of_the_timelines(world):
    """By how and why."""
    values = world.readings[-1]
    marked = Counter((e["how"], e["reason"]) for e in world.events("preempted"))
    assert by(values, "enginebay:preemptions", "how", "reason") == marked
    assert by(values, "vllm:num_preemptions") == {(): marked.total()}


def test_computed_positions_are_those_of_the_plans(world):
    """Every planned position is prefill or decode, and is in some timeline; those computed
    twice are counted from the plans' own spans."""
    values, plans = world.readings[-1], world.kept.plans
    planned = sum(plan.num_tokens for plan in plans.values())
    assert values["vllm:iteration_tokens_total_sum", frozenset()] == planned
    scheduled = world.events("scheduled")
    assert sum(event["num_tokens"] for event in scheduled) == planned
    assert sum(event["marks"] for event in scheduled) == sum(len(p.spans) for p in plans.values())
    seen, again, prompts = {}, 0, {}
    for _, plan in sorted(plans.items()):
        for start in plan.started:
            prompts[start.sequence_id] = start.num_prompt
        for span in plan.spans:
            end = span.start + span.num_tokens
            known = seen.get(span.sequence_id, 0)
            again += max(min(known, end) - span.start, 0)
            seen[span.sequence_id] = max(known, end)
    assert by(values, "enginebay:recomputed_tokens").get((), 0) == again
    prefill = sum(
        span.num_tokens
        for plan in plans.values()
        for span in plan.spans
        if span.num_tokens > 1 or span.start < prompts[span.sequence_id]
    )
    assert by(values, "enginebay:prefill_tokens") == {(): prefill}
    tenants = by(values, "enginebay:tenant_prefill_tokens", "tenant")
    assert sum(tenants.values()) == prefill


def test_prefix_counters_are_those_of_the_first_starts(world):
    """Looked up once a choice; found is what its first span did not compute."""
    values = world.readings[-1]
    queries, hits, seen = 0, 0, set()
    for _, plan in sorted(world.kept.plans.items()):
        first = {span.sequence_id: span.start for span in plan.spans}
        for start in plan.started:
            if start.sequence_id not in seen:
                seen.add(start.sequence_id)
                queries += start.num_prompt
                hits += first[start.sequence_id]
    assert by(values, "vllm:prefix_cache_queries") == {(): queries}
    assert by(values, "vllm:prefix_cache_hits").get((), 0) == hits
    prompts = by(values, "vllm:prompt_tokens")[()]
    sources = by(values, "vllm:prompt_tokens_by_source", "source")
    assert sum(sources.values()) == prompts
    got = [a.tokens for a in world.harness.answers.of.values() if a.tokens]
    assert values["vllm:time_to_first_token_seconds_count", frozenset()] == sum(
        bool(tokens) for choices in got for tokens in choices.values()
    )


def test_counters_never_fall_and_gauges_come_to_rest(world):
    """At every reading between the first and the last."""
    assert len(world.readings) > 3
    for before, after in zip(world.readings, world.readings[1:], strict=False):
        for key, value in before.items():
            if key[0].endswith(("_total", "_count", "_bucket", "_sum")):
                assert after[key] >= value, key
    last = {name: value for (name, _), value in world.readings[-1].items()}
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert last[f"vllm:{name}"] == 0
    for name in ("used_blocks", "used_swap_blocks", "queue_age_seconds"):
        assert last[f"enginebay:{name}"] == 0
    assert last["enginebay:cached_blocks"] == world.harness.allocator.num_cached
    assert last["enginebay:evicted_blocks_total"] == world.harness.allocator.num_evicted


def test_every_timeline_tells_the_whole_story(world):
    """Each step and token with its time; one end; the latencies are in order."""
    timeline = world.harness.intake.timeline
    for name, answer in world.harness.answers.of.items():
        events = timeline.of(name)
        whats = Counter(event["what"] for event in events)
        assert (whats["accepted"], whats["admitted"], whats["released"]) == (1, 1, 1)
        assert whats["finished"] == answer.request.sampling.n
        for index in answer.finished:
            own = [e for e in events if e.get("index") == index]
            ready = [e for e in own if e["what"] == "token_ready"]
            assert sum(e["count"] for e in ready) == len(answer.tokens.get(index, []))
            for event in own:
                if "times" in event:
                    assert len(event["times"]) == event["marks"]
            ends = [end for e in own for end in e.get("ends", [])]
            assert ends == sorted(ends)
        found = latencies(events)
        if found.first_token is not None:
            assert 0 <= found.queue <= found.first_token <= found.engine


def test_the_whole_run_is_a_trace(world):
    """Every choice has a row, every step is a span."""
    timeline = world.harness.intake.timeline
    trace = chrome_trace({name: timeline.of(name) for name in timeline.request_ids()})
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    steps = [e for e in spans if e["cat"] in ("prefill", "decode")]
    assert len(steps) == sum(len(plan.spans) for plan in world.kept.plans.values())
    assert all(event["dur"] >= 0 for event in spans)
