"""Tally: what happened since observers were last told of a step."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from .hookspecs.observer import PreemptionRecord, ServedRecord, StepRecord

if TYPE_CHECKING:
    from .build import Preemption
    from .engine import Engine
    from .flow import StepPlan, StepResult
    from .sequence import Sequence

_COUNTED: Final = ("num_prefill_tokens", "num_decode_tokens", "num_sequences")
"""Fields of a record without a default."""


class Tally:
    """Sums and lists that become a ``StepRecord``. Owned by the step thread."""

    def __init__(self) -> None:
        self._prefilled: dict[int, dict[str, int]] = {}
        """Prefill tokens by tenant, of each plan in flight."""
        self._last_token: dict[int, float] = {}
        """When each sequence got its last token."""
        self._blocks = 0, 0, 0
        """Used and cached blocks, and those evicted since the start, as last seen."""
        self._evicted = 0
        self.clear()

    def clear(self) -> None:
        """Begin anew: a record was made, or nobody wants one."""
        # Plain dicts: a Counter is Python code, which every step would run several times.
        self._counts = dict.fromkeys(_COUNTED, 0)
        self._preemptions: list[PreemptionRecord] = []
        self._computed: dict[str, int] = {}
        self._generated: dict[str, int] = {}
        self._accepted: list[int] = []
        self._intervals: list[float] = []
        self._firsts: list[float] = []

    def add(self, **counts: int) -> None:
        """Counts by the name of their field."""
        for name, count in counts.items():
            self._counts[name] = self._counts.get(name, 0) + count

    def started(self, sequence: Sequence) -> None:
        """A sequence got a seat; its prompt was looked up when this was its first."""
        if not sequence.num_preemptions and sequence.sampling.prompt_logprobs is None:
            self.add(
                num_prefix_queries=sequence.num_prompt,
                num_prefix_hits=min(sequence.num_cached, sequence.num_prompt),
            )

    def preempted(self, preemption: Preemption) -> None:
        """A sequence lost its seat."""
        sequence = preemption.sequence
        self._preemptions.append(
            PreemptionRecord(
                request_id=sequence.request_id,
                tenant=sequence.tenant,
                index=sequence.index,
                by=preemption.by,
                how=preemption.how,
                reason=preemption.reason,
                num_tokens=preemption.num_tokens,
            )
        )

    def planned(self, plan: StepPlan, sequences: list[Sequence]) -> None:
        """:param sequences: of the plan's spans, in their order"""
        prefilled: dict[str, int] = {}
        for span, sequence in zip(plan.spans, sequences, strict=True):
            one = span.num_tokens == 1 + len(span.drafts)
            if not one or span.start < sequence.num_prompt:
                tenant = sequence.tenant
                prefilled[tenant] = prefilled.get(tenant, 0) + span.num_tokens
        self._prefilled[plan.step] = prefilled
        if plan.block_ops:
            moved = Counter(op.kind for op in plan.block_ops)
            self.add(num_saved_blocks=moved["save"], num_loaded_blocks=moved["load"])

    def ready(self, sequence: Sequence, count: int, now: float) -> None:
        """A sequence got tokens."""
        tenant = sequence.group.request.tenant
        self._generated[tenant] = self._generated.get(tenant, 0) + count
        before = self._last_token.get(sequence.id)
        self._last_token[sequence.id] = now
        if before is not None:
            self._intervals.append(now - before)
            return
        self._firsts.append(now - sequence.arrival)
        cached = min(sequence.num_cached, sequence.num_prompt)
        self.add(num_prompt_tokens=sequence.num_prompt, num_cached_prompt_tokens=cached)

    def finished(self, sequence: Sequence) -> None:
        """A sequence left."""
        self._last_token.pop(sequence.id, None)

    def committed(self, plan: StepPlan, result: StepResult) -> None:
        """A step's results are in."""
        prefilled = self._prefilled.pop(plan.step, {})
        prefill = sum(prefilled.values())
        for tenant, count in prefilled.items():
            self._computed[tenant] = self._computed.get(tenant, 0) + count
        self.add(
            num_prefill_tokens=prefill,
            num_decode_tokens=plan.num_tokens - prefill,
            num_sequences=len(plan.spans),
        )
        drafted = [span for span in plan.spans if span.drafts]
        if drafted:
            drawn = {output.sequence_id: len(output.token_ids) for output in result.outputs}
            for span in drafted:
                stood = min(drawn.get(span.sequence_id, 0) - 1, len(span.drafts))
                self._accepted += [0] * (stood - len(self._accepted))
                for place in range(stood):
                    self._accepted[place] += 1
                self.add(num_drafts=1, num_draft_tokens=len(span.drafts))

    def record(self, engine: Engine, **facts: Any) -> StepRecord:
        """What happened since the last record, and how the engine stands."""
        used, cached, evicted = self.blocks(engine)
        served = [
            ServedRecord(
                tenant=tenant,
                num_prefill_tokens=self._computed.get(tenant, 0),
                num_generated=self._generated.get(tenant, 0),
            )
            for tenant in self._computed | self._generated
        ]
        swap = engine.blocks.swap
        record = StepRecord(
            num_generated=sum(self._generated.values()),
            num_running=len(engine.roster.seats),
            num_waiting=engine.intake.num_waiting,
            num_used_blocks=used,
            num_blocks=engine.limits.num_blocks,
            num_preemptions=len(self._preemptions),
            num_evicted_blocks=evicted - self._evicted,
            num_cached_blocks=cached,
            oldest_wait=engine.intake.oldest_wait(facts["time"]),
            token_intervals=tuple(self._intervals),
            first_token_delays=tuple(self._firsts),
            preemptions=tuple(self._preemptions),
            served=tuple(served),
            accepted_drafts=tuple(self._accepted),
            num_swap_blocks=swap.num_slots,
            num_used_swap_blocks=swap.num_used,
            **self._counts,
            **facts,
        )
        self._evicted = evicted
        self.clear()
        return record

    def blocks(self, engine: Engine) -> tuple[int, int, int]:
        """Used and cached blocks, and evicted ones since the start. A failed engine's
        allocator is not asked."""
        if engine.state != "failed":
            allocator = engine.allocator
            used = allocator.num_blocks - allocator.num_free
            self._blocks = used, engine.blocks.num_cached, engine.blocks.num_evicted
        return self._blocks
