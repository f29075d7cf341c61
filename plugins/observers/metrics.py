"""Observer: Prometheus metrics under vLLM's names, so that its dashboards read them.

What vLLM has no name for is prefixed ``enginebay:``; ``metric_names`` lists them all.
Every engine has a registry of its own; nothing is global. All series carry
``model_name``. Label values known beforehand are shown from 0 on.
"""

from collections.abc import Iterator
from threading import Lock

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.observer import ObserverContext, RequestRecord, StepRecord

from .metric_names import COMPLETE, COUNTERS, GAUGES, KNOWN, REASONS, SIZES, TIMES
from .tallies import Counter, Histogram, ascending

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The buckets of all histograms, and how many tenants are told apart."""

    seconds: tuple[float, ...] = (
        *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
        *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
    )
    """Upper bounds of every histogram of times, ascending."""
    counts: tuple[float, ...] = (
        *(1, 2, 5, 10, 20, 50, 100, 200, 500),
        *(1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000),
    )
    """Upper bounds of every histogram of token and choice counts, ascending."""
    max_tenants: int = 50
    """Tenants that have series of their own, first come; the rest are told as ``other``."""


class Metrics(Collector):
    """Tallies records as they come; builds Prometheus' text when asked."""

    def __init__(self, context: ObserverContext, options: Options) -> None:
        self._labels = {"model_name": context.model_name}
        self._limits = context.limits
        self._block_bytes = context.block_bytes
        self._max_tenants = options.max_tenants
        self._tenants: dict[str, str] = {}
        """Tenant -> label, of those that have one of their own."""
        self._lock = Lock()
        self._last: StepRecord | None = None
        self._counters = {
            name: Counter(*labels, known=KNOWN.get(name, ()))
            for name, (_, labels) in COUNTERS.items()
        }
        self._histograms = {name: Histogram(options.seconds) for name in TIMES}
        self._histograms |= {name: Histogram(options.counts) for name in SIZES}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_step(self, record: StepRecord) -> None:
        """A record without sequences counts no step; it may count what came between."""
        with self._lock:
            self._last = record
            self._count(record)
            self._count_memory(record)
            if not record.num_sequences:
                return
            histograms = self._histograms
            tokens = record.num_prefill_tokens + record.num_decode_tokens
            histograms["vllm:iteration_tokens_total"].observe(tokens)
            histograms["enginebay:step_duration_seconds"].observe(record.duration)
            histograms["enginebay:executor_duration_seconds"].observe(record.executor_duration)

    def _count(self, record: StepRecord) -> None:
        """Tokens: by whom, from where, when. Most steps only decode: they pass the rest by."""
        counters, histograms = self._counters, self._histograms
        counters["vllm:generation_tokens"].add(record.num_generated)
        histograms["vllm:inter_token_latency_seconds"].observe(*record.token_intervals)
        for share in record.served:
            tenant = self._tenant(share.tenant)
            counters["enginebay:tenant_prefill_tokens"].add(share.num_prefill_tokens, tenant)
            counters["enginebay:tenant_generation_tokens"].add(share.num_generated, tenant)
        if record.num_prefill_tokens or record.num_prefix_queries or record.num_prompt_tokens:
            self._count_prompts(record)
        if record.num_drafts:
            counters["vllm:spec_decode_num_drafts"].add(record.num_drafts)
            counters["vllm:spec_decode_num_draft_tokens"].add(record.num_draft_tokens)
            accepted = sum(record.accepted_drafts)
            counters["vllm:spec_decode_num_accepted_tokens"].add(accepted)
            for place, count in enumerate(record.accepted_drafts):
                counters["vllm:spec_decode_num_accepted_tokens_per_pos"].add(count, str(place))

    def _count_prompts(self, record: StepRecord) -> None:
        counters, histograms = self._counters, self._histograms
        prompt, cached = record.num_prompt_tokens, record.num_cached_prompt_tokens
        counters["vllm:prompt_tokens"].add(prompt)
        counters["vllm:prompt_tokens_cached"].add(cached)
        counters["vllm:prompt_tokens_by_source"].add(prompt - cached, "local_compute")
        counters["vllm:prompt_tokens_by_source"].add(cached, "local_cache_hit")
        counters["vllm:prefix_cache_queries"].add(record.num_prefix_queries)
        counters["vllm:prefix_cache_hits"].add(record.num_prefix_hits)
        counters["enginebay:prefill_tokens"].add(record.num_prefill_tokens)
        histograms["vllm:time_to_first_token_seconds"].observe(*record.first_token_delays)

    def _count_memory(self, record: StepRecord) -> None:
        """What was lost, moved and computed again."""
        counters = self._counters
        counters["vllm:num_preemptions"].add(record.num_preemptions)
        counters["enginebay:recomputed_tokens"].add(record.num_recomputed_tokens)
        counters["enginebay:evicted_blocks"].add(record.num_evicted_blocks)
        for preemption in record.preemptions:
            counters["enginebay:preemptions"].add(1, preemption.how, preemption.reason)
        moved = (("out", record.num_saved_blocks), ("in", record.num_loaded_blocks))
        for direction, blocks in moved:
            if blocks:
                counters["enginebay:swapped_blocks"].add(blocks, direction)
                counters["enginebay:swapped_bytes"].add(blocks * self._block_bytes, direction)

    def on_request(self, record: RequestRecord) -> None:
        """Times that did not happen, of a request that never started, are not counted."""
        usage, started, first = record.usage, record.started, record.first_token
        with self._lock:
            self._count_ends(record)
            histograms = self._histograms
            for name, begin, end in (
                ("vllm:e2e_request_latency_seconds", record.arrival, record.finished),
                ("vllm:request_queue_time_seconds", record.arrival, started),
                ("vllm:request_inference_time_seconds", started, record.finished),
                ("vllm:request_prefill_time_seconds", started, first),
                ("vllm:request_decode_time_seconds", first, record.finished),
            ):
                if begin is not None and end is not None:
                    histograms[name].observe(end - begin)
            longest = max(record.choice_tokens, default=0)
            if first is not None and longest > 1:
                mean = (record.finished - first) / (longest - 1)
                histograms["vllm:request_time_per_output_token_seconds"].observe(mean)
            for name, size in (
                ("vllm:request_prompt_tokens", usage.prompt_tokens),
                ("vllm:request_generation_tokens", usage.completion_tokens),
                ("vllm:request_max_num_generation_tokens", longest),
                ("vllm:request_prefill_kv_computed_tokens", record.prefill_computed_tokens),
                ("vllm:request_num_preemptions", usage.num_preemptions),
                ("vllm:request_params_n", record.n),
                ("vllm:request_params_max_tokens", record.max_tokens),
            ):
                histograms[name].observe(size)

    def _count_ends(self, record: RequestRecord) -> None:
        counters = self._counters
        for reason in record.reasons:
            counters["vllm:request_success"].add(1, REASONS[reason])
        for reason, tokens in zip(record.reasons, record.choice_tokens, strict=False):
            if reason not in COMPLETE:
                counters["enginebay:aborted_tokens"].add(tokens, REASONS[reason])
        counters["enginebay:request_errors"].add(record.error is not None)
        late = record.deadline is not None and record.finished > record.deadline
        counters["enginebay:deadline_misses"].add(late or "deadline" in record.reasons)

    def _tenant(self, name: str) -> str:
        """The label of a tenant."""
        if name not in self._tenants and len(self._tenants) < self._max_tenants:
            self._tenants[name] = name
        return self._tenants.get(name, "other")

    def on_refusal(self, refusal: Refusal) -> None:
        with self._lock:
            self._counters["vllm:admission_rejections"].add(1, refusal.reason)
            self._counters["enginebay:refused_requests"].add(1, refusal.kind)
            self._counters["enginebay:refusals"].add(
                1, refusal.plugin, refusal.reason, refusal.kind
            )

    def render(self) -> str:
        """Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def collect(self) -> Iterator[Metric]:
        """For the registry; complete under the lock, so that a scrape is one moment."""
        with self._lock:
            families: list[Metric] = [*self._gauges()]
            for name, counter in self._counters.items():
                families.append(counter.family(name, COUNTERS[name][0], self._labels))
            for name, histogram in self._histograms.items():
                doc = TIMES.get(name) or SIZES[name]
                families.append(histogram.family(name, doc, self._labels))
        return iter(families)

    def _gauges(self) -> Iterator[Metric]:
        last = self._last or _nothing(self._limits)
        blocks = last.num_blocks
        values = {
            "vllm:num_requests_running": last.num_running,
            "vllm:num_requests_waiting": last.num_waiting,
            "vllm:kv_cache_usage_perc": last.num_used_blocks / blocks if blocks else 0.0,
            "enginebay:used_blocks": last.num_used_blocks,
            "enginebay:cached_blocks": last.num_cached_blocks,
            "enginebay:blocks": blocks,
            "enginebay:used_swap_blocks": last.num_used_swap_blocks,
            "enginebay:swap_blocks": last.num_swap_blocks,
            "enginebay:queue_age_seconds": last.oldest_wait,
        }
        for name, value in values.items():
            yield _gauge(name, GAUGES[name], self._labels, value)
        facts = {"block_size": str(self._limits.block_size), "num_gpu_blocks": str(blocks)}
        yield _gauge("vllm:cache_config_info", "The KV pool.", {**self._labels, **facts}, 1)


def _nothing(limits: Limits) -> StepRecord:
    """An engine before its first step."""
    return StepRecord(
        step=-1,
        time=0.0,
        duration=0.0,
        executor_duration=0.0,
        num_prefill_tokens=0,
        num_decode_tokens=0,
        num_generated=0,
        num_sequences=0,
        num_running=0,
        num_waiting=0,
        num_used_blocks=0,
        num_blocks=limits.num_blocks,
        num_swap_blocks=limits.num_swap_blocks,
    )


def _gauge(name: str, doc: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, doc, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


@hookimpl
def enginebay_observer(options: Options, context: ObserverContext) -> Metrics:
    """Build the metrics of one engine."""
    for field in ("seconds", "counts"):
        if not ascending(getattr(options, field)):
            msg = f"metrics: {field} is {getattr(options, field)}; it must ascend, with 1 or more"
            raise StackError(msg)
    if options.max_tenants < 0:
        msg = f"metrics: max_tenants is {options.max_tenants}; 0 or more, 0: none by name"
        raise StackError(msg)
    return Metrics(context, options)
