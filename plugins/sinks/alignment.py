"""Which characters of the text each token added.

Text comes out later than tokens (characters and possible stop strings are held back)
and may lack some of them (special tokens, a stop string that was cut). Walking through
both keeps three things true of every answer, streamed or whole: one entry a generated
token, the bytes of all entries joined are the text, and an offset points at where its
token's text begins.
"""

import codecs
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shown(Generic[T]):
    """A token beside the text it made."""

    entry: T
    data: bytes
    """Bytes it added to the text; empty for a token that is not shown."""
    text: str
    """Characters it completed."""
    offset: int
    """Characters in front of it."""


class Aligner(Generic[T]):
    """Matches tokens with the text of one choice, as both arrive."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._start = offset
        self._text = ""
        self._waiting: deque[tuple[T, bytes]] = deque()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add_token(self, entry: T, data: bytes) -> None:
        """A token was generated; ``data`` are its own UTF-8 bytes."""
        self._waiting.append((entry, data))

    def add_text(self, text: str) -> None:
        """Text was released."""
        self._text += text

    def take(self, *, final: bool = False) -> list[Shown[T]]:
        """The tokens whose text is known by now; all of them when ``final``."""
        shown: list[Shown[T]] = []
        while self._waiting:
            entry, data = self._waiting[0]
            matched = self._match(data, final=final)
            if matched is None:
                break
            self._waiting.popleft()
            data, piece = matched
            begin = self._offset + len(piece) - _own_length(data, piece)
            shown.append(Shown(entry, data, piece, begin))
            self._offset += len(piece)
            self._text = self._text[len(piece) :]
        return shown

    def _match(self, data: bytes, *, final: bool) -> tuple[bytes, str] | None:
        """(bytes shown, characters completed); ``None``: more text must come first."""
        before = self._decoder.getstate()
        piece = self._decoder.decode(data)
        if self._text.startswith(piece):
            return data, piece
        if self._offset == self._start and piece[:1] == " " and self._text[:1] not in ("", " "):
            # A SentencePiece decoder drops the space in front of the first word.
            data, piece = data[1:], piece[1:]
            if self._text.startswith(piece):
                return data, piece
        if piece.startswith(self._text):
            if not final:
                self._decoder.setstate(before)
                return None
            if self._text:  # a stop string cut it
                return self._text.encode(), self._text
        self._decoder.setstate(before)
        return b"", ""


def _own_length(data: bytes, piece: str) -> int:
    """Characters of ``piece`` that are the token's; a U+FFFD in front of a whole one
    stands for bytes of tokens before it."""
    try:
        return len(data.decode())
    except UnicodeDecodeError:
        return len(piece)
