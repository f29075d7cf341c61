"""The cost model: what a step takes on the imagined hardware. It is printed with results."""

from typing import Final

import msgspec

from enginebay.errors import EnginebayError
from enginebay.flow import Frozen, StepPlan


class CostError(EnginebayError):
    """A cost model can't be made from what was given."""


class Cost(Frozen, frozen=True, kw_only=True):
    """Seconds. A step takes the sum over what its plan does."""

    step: float = 0.004
    """Once a step: launch, sampling, reading the weights."""
    token: float = 0.00005
    """For each position computed."""
    context: float = 1e-8
    """For each cached position that a sequence's attention reads, once a span: its start
    and its own positions."""
    block: float = 0.0001
    """For each KV block copied, saved to host memory or loaded back."""

    def __call__(self, plan: StepPlan) -> float:
        """Seconds of a plan, but for blocks saved and loaded: the executor adds those."""
        spans = plan.spans
        copies = sum(op.kind == "copy" for op in plan.block_ops)
        return (
            self.step
            + self.token * sum(span.num_tokens for span in spans)
            + self.context * sum(span.start + span.num_tokens for span in spans)
            + self.block * copies
        )

    def __str__(self) -> str:
        return (
            f"{self.step:g} s a step + {self.token:g} s a computed token + "
            f"{self.context:g} s a context token read + {self.block:g} s a moved block"
        )


FIELDS: Final = Cost.__struct_fields__


def parse_cost(text: str, fit: str = "") -> Cost:
    """``"step=0.01,token=2e-4"`` over the defaults, or over what ``fit`` gives.

    :param fit: see ``fitted``
    :raises CostError: names the key, the value, and what is known
    """
    cost = fitted(fit) if fit else Cost()
    values: dict[str, float] = {}
    for item in filter(None, text.split(",")):
        key, _, value = item.partition("=")
        if key not in FIELDS:
            raise CostError(f"--cost {text!r}: unknown key {key!r}; known: {', '.join(FIELDS)}")
        try:
            values[key] = float(value)
        except ValueError:
            raise CostError(f"--cost {text!r}: {key} = {value!r} is not a number") from None
        if not 0 <= values[key] < float("inf"):
            raise CostError(f"--cost {text!r}: {key} = {value} must be 0 or more")
    return msgspec.structs.replace(cost, **values)


def fitted(text: str) -> Cost:
    """A cost from two measured steps, ``"1:0.021,512:1.9"``: tokens computed, seconds.

    Take a decode step of one sequence and a prefill step, both of short contexts: step
    and token are the line through them, and reading context costs nothing.

    :raises CostError: not two points, or no line with slope and intercept of 0 or more
    """
    told = f"--fit {text!r}: give two steps as TOKENS:SECONDS,TOKENS:SECONDS"
    try:
        points = [(int(n), float(s)) for n, s in (p.split(":") for p in text.split(","))]
        (few, quick), (many, slow) = sorted(points)
    except ValueError:
        raise CostError(told) from None
    if not 0 < few < many or not 0 < quick <= slow:
        raise CostError(f"{told}; more tokens must take longer")
    token = (slow - quick) / (many - few)
    step = quick - few * token
    if step < 0:
        raise CostError(f"{told}; these leave {step:g} s for the step itself")
    return Cost(step=step, token=token, context=0.0)
