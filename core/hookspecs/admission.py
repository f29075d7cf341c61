"""Admission: two ordered chains, ``door`` before tokenizing and ``budget`` after."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..flow import Frozen, Refusal, Usage
from .markers import hookspec

if TYPE_CHECKING:
    from .model import Limits


class Ask(Frozen, frozen=True, kw_only=True):
    """The facts of one request that admission may judge."""

    request_id: str
    tenant: str
    n: int
    arrival: float
    deadline: float | None = None
    priority: int = 0
    attempt: int = 0
    """How often the caller has tried before, as far as its transport knows."""
    prompt_chars: int = 0
    """Characters of the prompt's text as it came; 4 for each token given as an id."""
    num_prompt_tokens: int | None = None
    """``None`` at the door, where nothing is tokenized yet."""
    max_tokens: int | None = None
    """As the caller asked; at the budget already cut to the context limit."""


class Load(Frozen, frozen=True, kw_only=True):
    """The engine's state when it is asked."""

    now: float
    num_waiting: int
    """Choices not yet started, those still being tokenized included; without the
    request that is being asked about."""
    num_running: int
    waiting_tokens: int
    """Prompt tokens of those, once for each choice."""
    num_free_blocks: int
    num_blocks: int
    requests_per_second: float
    """Finished lately, in the time that the engine was busy and somebody waited; in all
    the time that it was busy as long as that is not known; 0 when unknown."""
    num_seats: int = 0
    """Sequences that may run at a time."""
    oldest_wait: float = 0.0
    """Seconds that the request which has waited longest has waited."""
    prompt_tokens_per_second: float = 0.0
    """Computed lately, over the same time; 0 when unknown."""
    generated_tokens_per_second: float = 0.0
    """Likewise."""


class Admission(Protocol):
    """One member of an admission chain. Called from any thread, one call at a time.

    What ``ask`` reserved is given back by exactly one ``release``: when a later
    member refuses, or when the admitted request ends.
    """

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        """``None`` admits; a ``Refusal`` says which limit was met (promise P7)."""

    def release(self, request_id: str) -> None: ...


@runtime_checkable
class Settling(Protocol):
    """Optional: a member that wants to know what a request used in the end."""

    def settle(self, request_id: str, usage: Usage) -> None:
        """An admitted request ended, by itself or cut; its ``release`` follows. Not
        called for one that a later member turned away: it used nothing."""


@dataclass(frozen=True)
class AdmissionContext:
    """What an admission plugin is built with."""

    name: str
    """The name this member goes by in refusals (``as``, or the plugin's)."""
    limits: "Limits"
    """``num_blocks`` is 0 as long as nobody knows it; ``Load`` does."""
    chain: Literal["door", "budget"] = "budget"
    longest_token: int = 0
    """Characters of the vocabulary's longest token: no token stands for more text; 0:
    unknown."""


@hookspec(firstresult=True)
def enginebay_admission(options: Any, context: AdmissionContext) -> Admission:  # type: ignore[empty-body]
    """Build one member of the door or budget chain. Called once a place in a chain.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: its name in the chain and the engine's limits
    """
