"""The metrics observer: vLLM's names, right values, one registry an engine."""

import re
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from enginebay.errors import StackError
from enginebay.flow import Refusal, Usage
from enginebay.hookspecs.model import Limits
from enginebay.hookspecs.observer import (
    ObserverContext,
    PreemptionRecord,
    RequestRecord,
    ServedRecord,
    StepRecord,
)
from enginebay.plugins.observers import metric_names, metrics, tallies
from enginebay.timeline import Timeline

LIMITS = Limits(max_model_len=64, max_step_tokens=16, max_sequences=4, block_size=16, num_blocks=8)


def make(**options):
    context = ObserverContext(
        model_name="tiny", limits=LIMITS, timeline=Timeline(4), block_bytes=100
    )
    return metrics.enginebay_observer(metrics.Options(**options), context)


def step(**fields):
    known = {
        "step": 1,
        "time": 10.0,
        "duration": 0.03,
        "executor_duration": 0.02,
        "num_prefill_tokens": 7,
        "num_decode_tokens": 3,
        "num_generated": 4,
        "num_sequences": 4,
        "num_running": 4,
        "num_waiting": 2,
        "num_used_blocks": 6,
        "num_blocks": 8,
        "num_prompt_tokens": 9,
        "num_cached_prompt_tokens": 4,
    }
    return StepRecord(**{**known, **fields})


def request(**fields):
    known = {
        "request_id": "r",
        "tenant": "t",
        "usage": Usage(prompt_tokens=30, completion_tokens=12, cached_tokens=16, num_preemptions=3),
        "reasons": ("stop", "length"),
        "n": 2,
        "max_tokens": 6,
        "arrival": 1.0,
        "started": 1.5,
        "first_token": 3.5,
        "finished": 7.5,
        "prefill_computed_tokens": 14,
        "choice_tokens": (8, 4),
    }
    return RequestRecord(**{**known, **fields})


def read(observer):
    """Values by sample name and labels other than ``model_name``, which must be there."""
    values = {}
    for family in text_string_to_metric_families(observer.render()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "tiny"
            values[sample.name, tuple(sorted(labels.items()))] = sample.value
    return values


def test_names_of_vllm_are_present_from_the_start():
    """Dashboards and routers read these names before the first request came."""
    names = {name for name, _ in read(make())}
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
        "num_preemptions_total",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket",
        "request_queue_time_seconds_bucket",
        "request_prefill_time_seconds_bucket",
        "request_decode_time_seconds_bucket",
        "request_inference_time_seconds_bucket",
        "request_prompt_tokens_bucket",
        "request_generation_tokens_bucket",
        "iteration_tokens_total_bucket",
        "request_params_n_bucket",
        "request_params_max_tokens_bucket",
    ):
        assert f"vllm:{name}" in names


def test_a_step_moves_gauges_counters_and_histograms():
    """Every field of the record is found again in the text."""
    observer = make()
    observer.on_step(
        step(num_preemptions=1, token_intervals=(0.03, 0.5), first_token_delays=(0.25,))
    )
    values = read(observer)
    assert values["vllm:num_requests_running", ()] == 4
    assert values["vllm:num_requests_waiting", ()] == 2
    assert values["vllm:kv_cache_usage_perc", ()] == 0.75
    assert values["enginebay:used_blocks", ()] == 6
    assert values["vllm:num_preemptions_total", ()] == 1
    assert values["vllm:prompt_tokens_total", ()] == 9
    assert values["vllm:prompt_tokens_cached_total", ()] == 4
    by_source = "vllm:prompt_tokens_by_source_total"
    assert values[by_source, (("source", "local_compute"),)] == 5
    assert values[by_source, (("source", "local_cache_hit"),)] == 4
    assert values["enginebay:prefill_tokens_total", ()] == 7
    assert values["vllm:generation_tokens_total", ()] == 4
    assert values["vllm:iteration_tokens_total_sum", ()] == 10
    assert values["vllm:time_to_first_token_seconds_count", ()] == 1
    assert values["vllm:inter_token_latency_seconds_sum", ()] == pytest.approx(0.53)
    assert values["enginebay:step_duration_seconds_sum", ()] == 0.03
    assert values["enginebay:executor_duration_seconds_sum", ()] == 0.02


def test_every_counter_is_shown_from_zero():
    """A rate over the first minute needs the zero before it; labels known are there too."""
    values = read(make())
    for name, (_, labels) in metric_names.COUNTERS.items():
        found = {key[1] for key in values if key[0] == f"{name}_total"}
        known = metric_names.KNOWN.get(name, () if labels else ((),))
        assert found == {tuple(sorted(zip(labels, label, strict=True))) for label in known}
    counters = [value for (name, _), value in values.items() if name.endswith("_total")]
    assert counters
    assert not any(counters)


def test_what_memory_cost_is_counted():
    """Preemptions by how and why, blocks and bytes moved, positions computed again."""
    observer = make()
    facts = {"request_id": "r", "tenant": "t", "index": 0, "by": "s", "num_tokens": 9}
    observer.on_step(
        step(
            num_preemptions=2,
            preemptions=(
                PreemptionRecord(how="swap", reason="blocks", **facts),
                PreemptionRecord(how="recompute", reason="unfair", **facts),
            ),
            num_recomputed_tokens=9,
            num_saved_blocks=3,
            num_loaded_blocks=2,
            num_evicted_blocks=5,
            num_cached_blocks=4,
            num_swap_blocks=16,
            num_used_swap_blocks=1,
            oldest_wait=2.5,
        )
    )
    values = read(observer)
    name = "enginebay:preemptions_total"
    assert values[name, (("how", "swap"), ("reason", "blocks"))] == 1
    assert values[name, (("how", "recompute"), ("reason", "unfair"))] == 1
    assert values[name, (("how", "recompute"), ("reason", "blocks"))] == 0
    assert values["enginebay:recomputed_tokens_total", ()] == 9
    assert values["enginebay:evicted_blocks_total", ()] == 5
    for direction, blocks in (("out", 3), ("in", 2)):
        label = (("direction", direction),)
        assert values["enginebay:swapped_blocks_total", label] == blocks
        assert values["enginebay:swapped_bytes_total", label] == 100 * blocks
    for name, value in (
        ("cached_blocks", 4),
        ("swap_blocks", 16),
        ("used_swap_blocks", 1),
        ("queue_age_seconds", 2.5),
    ):
        assert values[f"enginebay:{name}", ()] == value


def test_drafts_are_counted_under_their_names():
    """Tried, drafted, accepted, and accepted by place."""
    observer = make()
    observer.on_step(step(num_drafts=3, num_draft_tokens=9, accepted_drafts=(3, 1)))
    values = read(observer)
    for name, value in (("drafts", 3), ("draft_tokens", 9), ("accepted_tokens", 4)):
        assert values[f"vllm:spec_decode_num_{name}_total", ()] == value
    places = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    assert [values[places, (("position", place),)] for place in "01"] == [3, 1]


def test_tenants_past_the_limit_are_told_together():
    """First come; names that callers make up grow nothing, and no token is lost."""
    observer = make(max_tenants=2)
    for number in range(50):
        share = ServedRecord(tenant=f"t{number % 5}", num_prefill_tokens=3, num_generated=1)
        observer.on_step(step(served=(share,)))
    values = read(observer)
    generated = {
        dict(labels)["tenant"]: value
        for (name, labels), value in values.items()
        if name == "enginebay:tenant_generation_tokens_total"
    }
    assert generated == {"t0": 10, "t1": 10, "other": 30}
    assert values["enginebay:tenant_prefill_tokens_total", (("tenant", "other"),)] == 90


def test_what_was_generated_for_nothing():
    """Tokens of choices that were cut, under vLLM's word for it; missed deadlines."""
    observer = make()
    observer.on_request(request(reasons=("cancelled", "stop")))
    observer.on_request(request(reasons=("deadline", "deadline"), deadline=7.0))
    observer.on_request(request(deadline=7.0))
    observer.on_request(request(deadline=8.0))
    values = read(observer)
    aborted = "enginebay:aborted_tokens_total"
    assert values[aborted, (("finished_reason", "abort"),)] == 8
    assert values[aborted, (("finished_reason", "deadline"),)] == 12
    assert (aborted, (("finished_reason", "stop"),)) not in values
    assert values["vllm:request_success_total", (("finished_reason", "abort"),)] == 1
    assert values["enginebay:deadline_misses_total", ()] == 2


def test_a_negative_number_of_tenants_stops_the_start():
    """The message names the option and its value."""
    with pytest.raises(StackError, match="metrics: max_tenants is -1"):
        make(max_tenants=-1)


def test_buckets_are_cumulative_and_include_their_bound():
    """A value on a bound belongs to it; the last bucket counts everything."""
    observer = make(seconds=(0.1, 1.0))
    observer.on_step(step(token_intervals=(0.1, 0.11, 1.0, 7.0)))
    name = "vllm:inter_token_latency_seconds_bucket"
    values = read(observer)
    assert [values[name, (("le", le),)] for le in ("0.1", "1.0", "+Inf")] == [1, 3, 4]


def test_an_idle_record_brings_the_gauges_back_and_counts_no_step():
    """After the last request nothing seems to run, and no empty step blurs a histogram."""
    observer = make()
    observer.on_step(step())
    idle = {"num_sequences": 0, "num_running": 0, "num_waiting": 0, "num_used_blocks": 0}
    observer.on_step(step(**idle))
    values = read(observer)
    assert values["vllm:num_requests_running", ()] == 0
    assert values["vllm:kv_cache_usage_perc", ()] == 0
    assert values["vllm:iteration_tokens_total_count", ()] == 1


def test_a_request_is_told_by_reason_and_by_phase():
    """Queue, prefill, decode and whole time are differences of its moments."""
    observer = make()
    observer.on_request(request())
    values = read(observer)
    assert values["vllm:request_success_total", (("finished_reason", "stop"),)] == 1
    assert values["vllm:request_success_total", (("finished_reason", "length"),)] == 1
    for name, seconds in (
        ("e2e_request_latency", 6.5),
        ("request_queue_time", 0.5),
        ("request_prefill_time", 2.0),
        ("request_decode_time", 4.0),
        ("request_inference_time", 6.0),
    ):
        assert values[f"vllm:{name}_seconds_sum", ()] == seconds
    assert values["vllm:request_prompt_tokens_sum", ()] == 30
    assert values["vllm:request_generation_tokens_sum", ()] == 12
    assert values["vllm:request_params_n_sum", ()] == 2
    assert values["vllm:request_params_max_tokens_sum", ()] == 6
    assert values["vllm:request_max_num_generation_tokens_sum", ()] == 8
    assert values["vllm:request_num_preemptions_sum", ()] == 3
    assert values["vllm:request_time_per_output_token_seconds_sum", ()] == 4.0 / 7
    assert values["vllm:request_prefill_kv_computed_tokens_sum", ()] == 14


def test_a_request_that_never_started_has_no_phases():
    """Cancelled in the queue: an end, an error maybe, but no prefill time of zero."""
    observer = make()
    observer.on_request(request(started=None, first_token=None, error="gone"))
    values = read(observer)
    assert values["vllm:request_queue_time_seconds_count", ()] == 0
    assert values["vllm:request_decode_time_seconds_count", ()] == 0
    assert values["vllm:e2e_request_latency_seconds_count", ()] == 1
    assert values["enginebay:request_errors_total", ()] == 1


def test_refusals_are_counted_by_who_and_why():
    """P7 in figures."""
    observer = make()
    for reason in ("queue_full", "queue_full", "kv_claimed"):
        observer.on_refusal(Refusal(plugin="q", reason=reason, kind="server", message=""))
    values = read(observer)
    labels = (("kind", "server"), ("plugin", "q"), ("reason", "queue_full"))
    assert values["enginebay:refusals_total", labels] == 2
    assert values["enginebay:refused_requests_total", (("kind", "server"),)] == 3
    assert values["vllm:admission_rejections_total", (("reason", "kv_claimed"),)] == 1


def test_labels_are_bounded():
    """A plugin that invents reasons can't grow the process."""
    observer = make()
    for number in range(3 * tallies.MAX_LABELS):
        observer.on_refusal(Refusal(plugin="q", reason=f"r{number}", kind="server", message=""))
    values = read(observer)
    kept = [key for key in values if key[0] == "vllm:admission_rejections_total"]
    assert len(kept) == tallies.MAX_LABELS + 1
    other = values["vllm:admission_rejections_total", (("reason", "other"),)]
    assert other == 2 * tallies.MAX_LABELS


def test_engines_share_nothing():
    """Two engines in one process count apart, and the global registry stays empty of them."""
    one, other = make(), make()
    one.on_step(step())
    assert read(one)["vllm:prompt_tokens_total", ()] == 9
    assert read(other)["vllm:prompt_tokens_total", ()] == 0
    assert not any("vllm:" in family.name for family in REGISTRY.collect())


def test_every_metric_is_in_the_handbook():
    """With its labels and what it tells, word for word."""
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+:\w+)` \| (\w+) \| (.*?) ?\| (.*) \|$", text, flags=re.M)
    told = {name: (kind, labels, doc) for name, kind, labels, doc in rows}
    histograms = metric_names.TIMES | metric_names.SIZES
    expected = {name: ("gauge", "", doc) for name, doc in metric_names.GAUGES.items()}
    expected["vllm:cache_config_info"] = ("gauge", "`block_size`, `num_gpu_blocks`", "The KV pool.")
    for name, (doc, labels) in metric_names.COUNTERS.items():
        expected[name] = ("counter", ", ".join(f"`{label}`" for label in labels), doc)
    expected |= {name: ("histogram", "", doc) for name, doc in histograms.items()}
    assert told == expected


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_buckets_that_do_not_ascend_stop_the_start(bounds):
    """The message names the option and its value."""
    with pytest.raises(StackError, match=r"metrics: seconds is .*ascend"):
        make(seconds=bounds)
