"""Drafter: proposes tokens for the target to verify. Never decides acceptance."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..flow import TokenIds
from .markers import hookspec
from .scheduler import SequenceView


class DraftView(SequenceView, Protocol):
    """A sequence with its tokens."""

    @property
    def token_ids(self) -> Sequence[int]: ...


class Drafter(Protocol):
    """Called after commit and before plan, from the step thread alone."""

    def propose(self, sequences: Sequence[DraftView], k: int) -> Sequence[TokenIds]:
        """For each sequence up to ``k`` guesses of its next tokens; fewer is fine."""


@dataclass(frozen=True)
class DrafterContext:
    """What a drafter is built with."""

    vocab_size: int
    max_model_len: int


@hookspec(firstresult=True)
def enginebay_drafter(options: Any, context: DrafterContext) -> Drafter:  # type: ignore[empty-body]
    """Build the drafter. Called once, at assembly, when the stack names one.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the target's vocabulary and context length
    """
