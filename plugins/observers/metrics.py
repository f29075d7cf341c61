"""Observer: Prometheus metrics under vLLM's names, so that its dashboards read them.

What vLLM has no name for is prefixed ``enginebay:``. Every engine has a registry of its
own; nothing is global. All series carry ``model_name``.
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

from .tallies import Counter, Histogram, ascending

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The buckets of all histograms."""

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


COUNTERS = {
    "vllm:num_preemptions": ("Preemptions.", ()),
    "vllm:prompt_tokens": ("Prompt tokens computed.", ()),
    "vllm:generation_tokens": ("Tokens generated.", ()),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", ()),
    "vllm:prefix_cache_hits": ("Prompt tokens found in the prefix cache.", ()),
    "vllm:request_success": ("Finished choices by reason.", ("finished_reason",)),
    "vllm:admission_rejections": ("Refused requests by reason.", ("reason",)),
    "enginebay:refusals": ("Refused requests.", ("plugin", "reason", "kind")),
    "enginebay:request_errors": ("Requests that ended with an error.", ()),
}
TIMES = {
    "vllm:time_to_first_token_seconds": "From arrival to a choice's first token.",
    "vllm:inter_token_latency_seconds": "Between two steps that gave a choice tokens.",
    "vllm:e2e_request_latency_seconds": "From arrival to the end.",
    "vllm:request_queue_time_seconds": "From arrival to the first start.",
    "vllm:request_prefill_time_seconds": "From the first start to the first token.",
    "vllm:request_decode_time_seconds": "From the first token to the end.",
    "vllm:request_inference_time_seconds": "From the first start to the end.",
    "enginebay:step_duration_seconds": "A step, from planning to emitting.",
    "enginebay:executor_duration_seconds": "A step's part inside the executor.",
}
SIZES = {
    "vllm:iteration_tokens_total": "Tokens computed in a step.",
    "vllm:request_prompt_tokens": "Prompt tokens of a request.",
    "vllm:request_generation_tokens": "Generated tokens of a request.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens not taken from the cache.",
    "vllm:request_params_n": "Choices asked for.",
    "vllm:request_params_max_tokens": "Tokens allowed a choice.",
}


class Metrics(Collector):
    """Tallies records as they come; builds Prometheus' text when asked."""

    def __init__(self, model_name: str, limits: Limits, options: Options) -> None:
        self._labels = {"model_name": model_name}
        self._limits = limits
        self._lock = Lock()
        self._last: StepRecord | None = None
        self._counters = {name: Counter(*labels) for name, (_, labels) in COUNTERS.items()}
        self._histograms = {name: Histogram(options.seconds) for name in TIMES}
        self._histograms |= {name: Histogram(options.counts) for name in SIZES}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def on_step(self, record: StepRecord) -> None:
        """A record without sequences only moves the gauges."""
        with self._lock:
            self._last = record
            self._counters["vllm:num_preemptions"].add(record.num_preemptions)
            if not record.num_sequences:
                return
            self._counters["vllm:prompt_tokens"].add(record.num_prefill_tokens)
            self._counters["vllm:generation_tokens"].add(record.num_generated)
            histograms = self._histograms
            tokens = record.num_prefill_tokens + record.num_decode_tokens
            histograms["vllm:iteration_tokens_total"].observe(tokens)
            histograms["vllm:time_to_first_token_seconds"].observe(*record.first_token_delays)
            histograms["vllm:inter_token_latency_seconds"].observe(*record.token_intervals)
            histograms["enginebay:step_duration_seconds"].observe(record.duration)
            histograms["enginebay:executor_duration_seconds"].observe(record.executor_duration)

    def on_request(self, record: RequestRecord) -> None:
        """Times that did not happen, of a request that never started, are not counted."""
        usage, started, first = record.usage, record.started, record.first_token
        with self._lock:
            counters, histograms = self._counters, self._histograms
            for reason in record.reasons:
                counters["vllm:request_success"].add(1, reason)
            counters["vllm:prefix_cache_queries"].add(usage.prompt_tokens)
            counters["vllm:prefix_cache_hits"].add(usage.cached_tokens)
            counters["enginebay:request_errors"].add(record.error is not None)
            for name, begin, end in (
                ("vllm:e2e_request_latency_seconds", record.arrival, record.finished),
                ("vllm:request_queue_time_seconds", record.arrival, started),
                ("vllm:request_inference_time_seconds", started, record.finished),
                ("vllm:request_prefill_time_seconds", started, first),
                ("vllm:request_decode_time_seconds", first, record.finished),
            ):
                if begin is not None and end is not None:
                    histograms[name].observe(end - begin)
            for name, size in (
                ("vllm:request_prompt_tokens", usage.prompt_tokens),
                ("vllm:request_generation_tokens", usage.completion_tokens),
                ("vllm:request_prefill_kv_computed_tokens", record.prefill_computed_tokens),
                ("vllm:request_params_n", record.n),
                ("vllm:request_params_max_tokens", record.max_tokens),
            ):
                histograms[name].observe(size)

    def on_refusal(self, refusal: Refusal) -> None:
        with self._lock:
            self._counters["vllm:admission_rejections"].add(1, refusal.reason)
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
        last = self._last
        running, waiting, used, blocks = (
            (last.num_running, last.num_waiting, last.num_used_blocks, last.num_blocks)
            if last
            else (0, 0, 0, self._limits.num_blocks)
        )
        usage = used / blocks if blocks else 0.0
        for name, doc, value in (
            ("vllm:num_requests_running", "Sequences holding a seat.", running),
            ("vllm:num_requests_waiting", "Requests not yet started.", waiting),
            ("vllm:kv_cache_usage_perc", "Used part of the KV blocks; 1 is all.", usage),
            ("enginebay:used_blocks", "KV blocks in use.", used),
            ("enginebay:blocks", "KV blocks in the pool.", blocks),
        ):
            yield _gauge(name, doc, self._labels, value)
        facts = {"block_size": str(self._limits.block_size), "num_gpu_blocks": str(blocks)}
        yield _gauge("vllm:cache_config_info", "The KV pool.", {**self._labels, **facts}, 1)


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
    return Metrics(context.model_name, context.limits, options)
