"""What travels: requests in, plans and results inside, events out.

Everything here is a frozen ``msgspec.Struct`` without tensors, callables or open
files, so a thread, another process and a recorded replay are the same thing to
whoever stands outside the engine. Times are seconds on the engine's monotonic
clock; token counts are tokens; positions are absolute, starting at 0.

A field may be added to any of these types (a minor change of the contract); one is
never renamed, removed or given another meaning (a major change).
"""

from .events import (
    Alternative,
    ChoiceFinished,
    Delta,
    Ended,
    Event,
    EventBatch,
    Failure,
    PromptScored,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from .frozen import (
    FinishReason,
    Frozen,
    TokenIds,
)
from .plan import (
    BlockOp,
    SequenceResult,
    SequenceStart,
    Span,
    StepPlan,
    StepResult,
)
from .request import (
    Accepted,
    ChatPrompt,
    EncodedPrompt,
    Invalid,
    Prompt,
    Refusal,
    Request,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    Written,
)

__all__ = [
    "Accepted",
    "Alternative",
    "BlockOp",
    "ChatPrompt",
    "ChoiceFinished",
    "Delta",
    "EncodedPrompt",
    "Ended",
    "Event",
    "EventBatch",
    "Failure",
    "FinishReason",
    "Frozen",
    "Invalid",
    "Prompt",
    "PromptScored",
    "Refusal",
    "Request",
    "SamplingParams",
    "SequenceResult",
    "SequenceStart",
    "Span",
    "StepPlan",
    "StepResult",
    "TextPrompt",
    "TokenIds",
    "TokenLogprob",
    "TokenPrompt",
    "ToolCallDelta",
    "Usage",
    "Written",
]
