"""Everything one choice said, for an answer that is sent whole."""

from dataclasses import dataclass, field

from enginebay.flow import Delta, ToolCallDelta

from .wire import FunctionBody, ToolCallBody


@dataclass
class Record:
    """The deltas of one choice, put together."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    """Content and reasoning in the order they came."""
    _calls: dict[int, list[ToolCallDelta]] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        """Take in one delta."""
        self.reasoning.append(delta.reasoning)
        self.content.append(delta.content)
        self.text += delta.reasoning + delta.content
        self.token_ids += delta.token_ids
        for call in delta.tool_calls:
            self._calls.setdefault(call.index, []).append(call)

    def tool_calls(self) -> list[ToolCallBody]:
        """Whole calls, in order."""
        return [_whole(pieces) for _, pieces in sorted(self._calls.items())]


def _whole(pieces: list[ToolCallDelta]) -> ToolCallBody:
    return ToolCallBody(
        id=next((piece.id for piece in pieces if piece.id is not None), ""),
        type="function",
        function=FunctionBody(
            name=next((piece.name for piece in pieces if piece.name is not None), ""),
            arguments="".join(piece.arguments for piece in pieces),
        ),
    )
