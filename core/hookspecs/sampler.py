"""Sampler: an ordered chain in three stages, *edit*, *shape*, *draw*."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from ..flow import Frozen, SamplingParams, TokenIds
from .markers import hookspec

if TYPE_CHECKING:
    import torch

    from ..candidates import Candidates
    from .format import TextAssets


class Field(Frozen, frozen=True, kw_only=True):
    """A request field that a transform owns: its type, range and neutral value."""

    name: str
    type: Literal["number", "integer", "boolean", "object", "array"]
    neutral: Any
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    doc: str = ""


@dataclass(frozen=True)
class RowView:
    """What a transform may know about the row it works on.

    ``output_ids`` are the tokens generated before the position being drawn, accepted
    drafts of this very step included (Chen et al., arXiv 2302.01318).
    """

    params: Mapping[str, Any]
    """Parsed values of all fields in the chain, neutral ones included."""
    sampling: SamplingParams
    prompt_ids: TokenIds | list[int]
    output_ids: TokenIds | list[int]
    position: int
    """Absolute position of the token being drawn."""
    index: int
    """Which choice of the request."""
    seed: int
    end_ids: frozenset[int]
    """End-of-sequence and stop token ids in force for this request."""


class Transform(Protocol):
    """What all three stages share."""

    @property
    def fields(self) -> tuple[Field, ...]: ...
    def parse(self, name: str, value: Any, vocab_size: int) -> Any:
        """Check one owned field's value beyond its ``Field`` and normalize it.

        :raises ValueError: says what is wrong; becomes a 400 naming the field
        """

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """False when every owned field is neutral: the row is then skipped."""


@runtime_checkable
class Edit(Transform, Protocol):
    """Changes the full row in place: masks, biases, penalties."""

    def edit(self, row: "torch.Tensor", view: RowView) -> None:
        """``row``: float32 [V], this row's private copy; -inf bans a token."""


@runtime_checkable
class Shape(Transform, Protocol):
    """Narrows or rescales the candidates. Ties go to the lower id."""

    def shape(self, candidates: "Candidates", view: RowView) -> "Candidates": ...


@runtime_checkable
class Greedy(Protocol):
    """A capability of a shape: with some values it leaves the most likely token alone.

    Then nothing after it can matter, and the chain takes the argmax without running it.
    """

    def greedy(self, params: Mapping[str, Any]) -> bool: ...


@runtime_checkable
class Draw(Transform, Protocol):
    """Picks one candidate. The last member of the chain, exactly one."""

    def draw(self, candidates: "Candidates", view: RowView) -> int:
        """A token id; depends on nothing but the arguments."""


@dataclass(frozen=True)
class SamplerContext:
    """What a sampler plugin is built with."""

    vocab_size: int
    text: "TextAssets | None" = None
    """The tokenizer, for fields that hold text."""


@hookspec(firstresult=True)
def enginebay_sampler(options: Any, context: SamplerContext) -> Transform:  # type: ignore[empty-body]
    """Build one member of the sampler chain.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the vocabulary's size, and the tokenizer
    """
