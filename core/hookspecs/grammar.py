"""Grammar: a JSON schema, regex, choice or EBNF becomes a token mask at a state."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..flow import TokenIds
from .markers import hookspec

if TYPE_CHECKING:
    from .format import TextAssets


class Matcher(Protocol):
    """The state of one choice in its grammar."""

    def mask(self) -> bytes:
        """One bit a token, lowest bit first: 1 where the grammar allows it."""

    def advance(self, token_ids: TokenIds) -> None:
        """Accept tokens. :raises ValueError: the grammar does not allow one."""

    def rewind(self, num_tokens: int) -> None:
        """Forget the last tokens (rejected drafts)."""

    @property
    def complete(self) -> bool:
        """True when only an end-of-sequence token may follow."""


class Grammar(Protocol):
    """Compiles constraints off the step thread, in bounded time."""

    def compile(self, kind: str, source: str) -> Matcher:
        """:raises InvalidRequest: invalid or unsupported; says which part"""


@dataclass(frozen=True)
class GrammarContext:
    """What a grammar engine is built with."""

    text: "TextAssets"
    vocab_size: int


@hookspec(firstresult=True)
def enginebay_grammar(options: Any, context: GrammarContext) -> Grammar:  # type: ignore[empty-body]
    """Build the grammar engine. Called once, at assembly, when the stack names one.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: tokenizer and vocabulary size
    """
