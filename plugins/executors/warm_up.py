"""The plans of a warm-up: the widest step that an engine's limits allow, then decodes."""

from enginebay.flow import SamplingParams, SequenceStart, Span, StepPlan
from enginebay.hookspecs.model import Limits


def prompt_plan(limits: Limits, most_tokens: int) -> StepPlan:
    """As many sequences as have seats, and together as many prompt tokens as a step
    takes: activations and logits are then as large as they get.

    :param most_tokens: of the step, whatever the limits allow
    """
    sizes = _sizes(limits, most_tokens)
    starts, spans, block = [], [], 0
    for number, size in enumerate(sizes, start=1):
        blocks = -(-(size + 2) // limits.block_size)
        table = tuple(min(place, limits.num_blocks - 1) for place in range(block, block + blocks))
        block += blocks
        starts.append(
            SequenceStart(
                sequence_id=-number,
                request_id="warm-up",
                index=0,
                token_ids=(0,) * size,
                num_prompt=size,
                sampling=SamplingParams(seed=0),
                seed=0,
            )
        )
        spans.append(
            Span(sequence_id=-number, start=0, num_tokens=size, logits_from=size - 1, table=table)
        )
    return StepPlan(step=-1, started=tuple(starts), spans=tuple(spans))


def decode_plan(prompts: StepPlan, number: int) -> StepPlan:
    """One token of every sequence; ``number`` decodes went before."""
    spans = []
    for span in prompts.spans:
        position = span.num_tokens + number
        spans.append(
            Span(sequence_id=span.sequence_id, start=position, num_tokens=1, logits_from=position)
        )
    return StepPlan(step=-1, spans=tuple(spans))


def _sizes(limits: Limits, most_tokens: int) -> list[int]:
    """Prompt tokens of each sequence: equal shares, two positions left for decoding."""
    total = max(1, min(most_tokens, limits.max_step_tokens))
    longest = max(1, limits.max_model_len - 2)
    for count in range(min(limits.max_sequences, total), 0, -1):
        share = min(-(-total // count), longest)
        sizes = [min(share, total - place * share) for place in range(count)]
        sizes = [size for size in sizes if size > 0]
        if sum(-(-(size + 2) // limits.block_size) for size in sizes) <= limits.num_blocks:
            return sizes
    return [max(1, min(total, longest, limits.num_blocks * limits.block_size - 2))]
