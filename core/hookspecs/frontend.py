"""Frontend: messages or text become a prompt; text increments become deltas."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..flow import EncodedPrompt, Frozen, Prompt, Request, ToolCallDelta
from .markers import hookspec

if TYPE_CHECKING:
    from .format import TextAssets
    from .model import ModelSpec


class Parsed(Frozen, frozen=True, kw_only=True):
    """What a parser made of an increment of text."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


class Parser(Protocol):
    """Splits one choice's text. A new one for each choice: no shared state."""

    def feed(self, text: str) -> Parsed: ...
    def flush(self) -> Parsed:
        """The rest, when the choice has ended."""


class Frontend(Protocol):
    """Takes the prompt kinds it names. ``encode`` is called from several threads."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Tags of the prompt types it takes: ``chat``, ``text``, ``tokens``."""

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """:raises InvalidRequest: the prompt is wrong; names the field"""

    def parser(self, request: Request) -> Parser: ...


@dataclass(frozen=True)
class FrontendContext:
    """What a frontend is built with."""

    text: "TextAssets"
    spec: "ModelSpec"


@hookspec(firstresult=True)
def enginebay_frontend(options: Any, context: FrontendContext) -> Frontend:  # type: ignore[empty-body]
    """Build a frontend. Called once for each name in the stack's ``frontends``.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: tokenizer, templates and model
    """
