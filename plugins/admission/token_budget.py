"""Admission: tokens of all admitted requests have bounds, prompts and answers apart."""

import msgspec

from enginebay import hookimpl
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import AdmissionContext, Ask, Load

from .bounds import require_budget, require_least, require_order
from .claims import Claims
from .comeback import Comeback

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For the ``budget`` chain, where the prompt's length is known. 0: no bound."""

    max_prompt_tokens: int = 1_048_576
    """Prompt tokens of all admitted, unfinished requests; a prompt counts once, since its
    choices share it."""
    max_output_tokens: int = 4_194_304
    """Tokens that those may generate: ``max_tokens`` for each choice, whatever they have
    generated so far."""
    max_request_prompt_tokens: int = 0
    """Prompt tokens of one request."""
    max_request_output_tokens: int = 0
    """Tokens that one request may generate in all its choices."""
    retry_after: float = 1.0
    """Seconds told to a refused caller while the engine's pace is unknown, and the
    shortest estimate at any time."""
    max_retry_after: float = 60.0
    """The longest estimate, in seconds; up to half as much more is told."""


class Budget:
    """One kind of token: what a request may have of it, and all together."""

    def __init__(self, kind: str, param: str, per_request: int, in_all: int) -> None:
        self.kind = kind
        self.param = param
        self.claims = Claims()
        self.in_all = in_all
        self.per_request = min(per_request or in_all, in_all or per_request)
        """Never more than all together: such a request could never be admitted."""

    def excess(self, amount: int) -> int:
        """Tokens by which ``amount`` more would be too many."""
        return self.claims.total + amount - self.in_all if self.in_all else 0


class TokenBudget:
    """Refuses for good what is over a request's maximum, for now what all have taken."""

    def __init__(self, name: str, max_model_len: int, options: Options) -> None:
        self._name = name
        self._max_model_len = max_model_len
        self._comeback = Comeback(options.retry_after, options.max_retry_after)
        self._prompt = Budget(
            "prompt", "prompt", options.max_request_prompt_tokens, options.max_prompt_tokens
        )
        self._output = Budget(
            "output", "max_tokens", options.max_request_output_tokens, options.max_output_tokens
        )

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        prompt = ask.num_prompt_tokens or 0
        room = max(self._max_model_len - prompt, 0)
        output = ask.n * (room if ask.max_tokens is None else ask.max_tokens)
        wanted = ((self._prompt, prompt), (self._output, output))
        for budget, amount in wanted:
            if budget.per_request and amount > budget.per_request:
                return self._never(budget, amount)
        for budget, amount in wanted:
            if budget.excess(amount) > 0:
                return self._later(budget, amount, ask, load)
        for budget, amount in wanted:
            budget.claims.add(ask.request_id, amount)
        return None

    def release(self, request_id: str) -> None:
        self._prompt.claims.drop(request_id)
        self._output.claims.drop(request_id)

    def _never(self, budget: Budget, amount: int) -> Refusal:
        fix = "shorten the prompt" if budget.kind == "prompt" else "lower max_tokens or n"
        return Refusal(
            plugin=self._name,
            reason=f"{budget.kind}_tokens_of_request",
            kind="invalid",
            message=(
                f"the request needs {amount} {budget.kind} tokens and one request may have "
                f"{budget.per_request}: {fix}"
            ),
            limit=budget.per_request,
            current=amount,
            param=budget.param,
        )

    def _later(self, budget: Budget, amount: int, ask: Ask, load: Load) -> Refusal:
        """``retry_after``: until the mean request has left often enough."""
        requests = budget.excess(amount) / budget.claims.mean
        wait = self._comeback.turn(ask, load, requests)
        return Refusal(
            plugin=self._name,
            reason=f"{budget.kind}_tokens",
            kind="server",
            message=(
                f"admitted requests have {budget.claims.total} of {budget.in_all} "
                f"{budget.kind} tokens and this one needs {amount}. "
                f"Try again in {wait:g} seconds"
            ),
            limit=budget.in_all,
            current=budget.claims.total,
            retry_after=wait,
        )


@hookimpl
def enginebay_admission(options: Options, context: AdmissionContext) -> TokenBudget:
    """Build it for the engine's context length."""
    require_budget(context, "counting tokens")
    bounds = [field for field in Options.__struct_fields__ if field != "max_retry_after"]
    require_least(context, options, 0, *bounds)
    require_order(context, options, ("retry_after", "max_retry_after"))
    return TokenBudget(context.name, context.limits.max_model_len, options)
