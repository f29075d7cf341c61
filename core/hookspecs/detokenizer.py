"""Detokenizer: ids become text, held back where it could still change."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..flow import Frozen, TokenIds
from .markers import hookspec

if TYPE_CHECKING:
    from .format import TextAssets


class Piece(Frozen, frozen=True, kw_only=True):
    """Text that a token released, and the stop string it completed, if any."""

    text: str = ""
    stop: str | None = None


class TextStream(Protocol):
    """The text of one choice, token by token (promise P3).

    All pieces joined equal decode(prompt + output) minus decode(prompt), cut at the
    stop. Bytes that do not yet form a character wait; so does text that may be the
    beginning of a stop string.
    """

    def feed(self, token_id: int, *, may_stop: bool = True) -> Piece:
        """Add one token. With ``may_stop`` false no stop string is looked for."""

    def flush(self) -> str:
        """The held text, when the choice ended for another reason than a stop string;
        an incomplete character becomes U+FFFD here and nowhere else."""


class Detokenizer(Protocol):
    """Opens text streams: ``open`` is called from several threads, all else from the
    step thread alone."""

    def open(
        self,
        prompt_ids: TokenIds,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> TextStream: ...
    def token_bytes(self, token_id: int) -> bytes:
        """A token's own UTF-8 bytes, which may be part of a character."""


@dataclass(frozen=True)
class DetokenizerContext:
    """What a detokenizer is built with."""

    text: "TextAssets"


@hookspec(firstresult=True)
def enginebay_detokenizer(options: Any, context: DetokenizerContext) -> Detokenizer:  # type: ignore[empty-body]
    """Build the detokenizer. Called once, at assembly.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: the tokenizer
    """
