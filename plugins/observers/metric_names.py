"""Names of all metrics, what they mean, and the labels that are known from the start.

A counter's name ends in ``_total`` where it is shown. ``vllm:`` names mean what they mean
there, so that its dashboards and routers read them; ours are prefixed ``enginebay:``.
"""

from itertools import product
from typing import Final, get_args

from enginebay.flow import FinishReason

REASONS: Final = {reason: reason for reason in get_args(FinishReason)} | {"cancelled": "abort"}
"""Finish reason -> label: vLLM's word where it has one."""
COMPLETE: Final = ("stop", "length")
"""Reasons of choices that ended as their request asked."""

COUNTERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "vllm:num_preemptions": ("Preemptions.", ()),
    "vllm:prompt_tokens": ("Prompt tokens of choices that got their first token.", ()),
    "vllm:prompt_tokens_by_source": ("The same, by where they came from.", ("source",)),
    "vllm:prompt_tokens_cached": ("The part of them that needed no computing.", ()),
    "vllm:generation_tokens": ("Tokens generated.", ()),
    "vllm:prefix_cache_queries": ("Prompt tokens looked up when a choice started.", ()),
    "vllm:prefix_cache_hits": ("Prompt tokens found there, or shared by a choice.", ()),
    "vllm:request_success": ("Ended choices by reason.", ("finished_reason",)),
    "vllm:admission_rejections": ("Refused requests by reason.", ("reason",)),
    "vllm:spec_decode_num_drafts": ("Times that tokens were drafted.", ()),
    "vllm:spec_decode_num_draft_tokens": ("Drafted tokens.", ()),
    "vllm:spec_decode_num_accepted_tokens": ("Drafted tokens that stood.", ()),
    "vllm:spec_decode_num_accepted_tokens_per_pos": (
        "Drafted tokens that stood, by place in their draft.",
        ("position",),
    ),
    "enginebay:refusals": ("Refused requests.", ("plugin", "reason", "kind")),
    "enginebay:refused_requests": ("Refused requests by whose fault it was.", ("kind",)),
    "enginebay:request_errors": ("Requests that ended with an error.", ()),
    "enginebay:deadline_misses": ("Requests that ended by or after their deadline.", ()),
    "enginebay:aborted_tokens": (
        "Tokens generated for choices that ended before they were complete.",
        ("finished_reason",),
    ),
    "enginebay:preemptions": ("Preemptions.", ("how", "reason")),
    "enginebay:prefill_tokens": ("Positions computed to catch up with known tokens.", ()),
    "enginebay:recomputed_tokens": ("Positions computed again after they were lost.", ()),
    "enginebay:swapped_blocks": ("KV blocks moved to host memory or back.", ("direction",)),
    "enginebay:swapped_bytes": ("Bytes of those blocks.", ("direction",)),
    "enginebay:evicted_blocks": ("Cached KV blocks given to somebody else.", ()),
    "enginebay:tenant_prefill_tokens": ("Positions computed to catch up.", ("tenant",)),
    "enginebay:tenant_generation_tokens": ("Tokens generated.", ("tenant",)),
}
TIMES: Final = {
    "vllm:time_to_first_token_seconds": "From arrival to a choice's first token.",
    "vllm:inter_token_latency_seconds": "Between two steps that gave a choice tokens.",
    "vllm:request_time_per_output_token_seconds": "A request's mean between tokens.",
    "vllm:e2e_request_latency_seconds": "From arrival to the end.",
    "vllm:request_queue_time_seconds": "From arrival to the first start.",
    "vllm:request_prefill_time_seconds": "From the first start to the first token.",
    "vllm:request_decode_time_seconds": "From the first token to the end.",
    "vllm:request_inference_time_seconds": "From the first start to the end.",
    "enginebay:step_duration_seconds": "A step, from planning to emitting.",
    "enginebay:executor_duration_seconds": "A step's part inside the executor.",
}
SIZES: Final = {
    "vllm:iteration_tokens_total": "Tokens computed in a step.",
    "vllm:request_prompt_tokens": "Prompt tokens of a request.",
    "vllm:request_generation_tokens": "Generated tokens of a request.",
    "vllm:request_max_num_generation_tokens": "Generated tokens of its longest choice.",
    "vllm:request_prefill_kv_computed_tokens": "Prompt tokens not taken from the cache.",
    "vllm:request_num_preemptions": "Preemptions of a request's choices.",
    "vllm:request_params_n": "Choices asked for.",
    "vllm:request_params_max_tokens": "Tokens allowed a choice.",
}
GAUGES: Final = {
    "vllm:num_requests_running": "Sequences holding a seat.",
    "vllm:num_requests_waiting": "Choices not yet started.",
    "vllm:kv_cache_usage_perc": "Used part of the KV blocks; 1 is all.",
    "enginebay:used_blocks": "KV blocks in use.",
    "enginebay:cached_blocks": "KV blocks that nobody holds and that may be found again.",
    "enginebay:blocks": "KV blocks in the pool.",
    "enginebay:used_swap_blocks": "Host slots that hold a KV block.",
    "enginebay:swap_blocks": "Host slots for KV blocks.",
    "enginebay:queue_age_seconds": "How long the request that waits longest has waited.",
}
KNOWN: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "vllm:prompt_tokens_by_source": (("local_compute",), ("local_cache_hit",)),
    "vllm:request_success": tuple((reason,) for reason in REASONS.values()),
    "enginebay:refused_requests": (("invalid",), ("caller",), ("server",)),
    "enginebay:aborted_tokens": tuple(
        (label,) for reason, label in REASONS.items() if reason not in COMPLETE
    ),
    "enginebay:preemptions": tuple(product(("recompute", "swap"), ("blocks", "policy"))),
    "enginebay:swapped_blocks": (("out",), ("in",)),
    "enginebay:swapped_bytes": (("out",), ("in",)),
}
"""Label values that are shown from 0 on."""
