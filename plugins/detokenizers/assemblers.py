"""Tokens become text in order: byte-level and SentencePiece kinds.

The text before the first generated token matters in three ways: an incomplete
character at the prompt's end is completed by the output, and then belongs to it; the
space in front of a sequence is dropped only if the prompt had no text; and a token is
the first one only if the prompt had none.
"""

import codecs
from collections.abc import Iterator
from typing import Protocol

from enginebay.flow import TokenIds

from .byte_run import ByteRun
from .vocabulary import Vocabulary


class Prompt:
    """The prompt's tokens without the skipped ones, read from either end.

    A long prompt is never read whole: only its ends matter.
    """

    def __init__(self, token_ids: TokenIds, skipped: frozenset[int]) -> None:
        self._token_ids = token_ids
        self._skipped = skipped

    def __iter__(self) -> Iterator[int]:
        return (each for each in self._token_ids if each not in self._skipped)

    def __reversed__(self) -> Iterator[int]:
        return (each for each in reversed(self._token_ids) if each not in self._skipped)


class Assembler(Protocol):
    """One choice's tokens, in order; control tokens that are skipped never get here."""

    @property
    def tentative(self) -> str:
        """Text that ends with a character the last token completed, and that a later
        token may still change; empty otherwise."""

    def add(self, token_id: int) -> tuple[str, str]:
        """:return: text that was tentative and is final now, and the token's own text"""

    def finish(self) -> str:
        """The rest; an incomplete character becomes U+FFFD."""


def incomplete_tail(data: bytes) -> bytes:
    """The bytes at the end that begin a character without ending it (at most 3)."""
    for size in range(1, min(3, len(data)) + 1):
        tail = data[-size:]
        if tail[0] >= 0xC0:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            return tail if decoder.decode(tail) == "" else b""
        if tail[0] < 0x80:
            break
    return b""


class ByteLevelAssembler:
    """Every token is bytes; malformed ones become U+FFFD as Unicode recommends
    (one for each maximal part of a character: section 3.9, "U+FFFD Substitution")."""

    tentative = ""

    def __init__(self, vocabulary: Vocabulary, prompt: Prompt) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tail = b""
        for token_id in reversed(prompt):
            tail = vocabulary.own_bytes(token_id) + tail
            if len(tail) >= 3:
                break
        tail = incomplete_tail(tail)
        self._decoder.decode(tail)
        self._open = bool(tail)
        """Whether a character lacks bytes."""

    def add(self, token_id: int) -> tuple[str, str]:
        if not self._open:
            text = self._vocabulary.text(token_id)
            if text is not None:
                return "", text
        data = self._vocabulary.get(token_id)
        if not isinstance(data, bytes):
            return "", ""
        text = self._decoder.decode(data)
        self._open = bool(self._decoder.getstate()[0])
        return "", text

    def finish(self) -> str:
        return self._decoder.decode(b"", True)


class PieceAssembler:
    """SentencePiece kinds: most tokens are text, some are single bytes."""

    def __init__(self, vocabulary: Vocabulary, prompt: Prompt, max_byte_run: int) -> None:
        self._vocabulary = vocabulary
        self._rules = vocabulary.rules
        self._first = True
        self._strip_left = self._rules.strip_count
        self.tentative = ""
        self._run = ByteRun(max_byte_run)
        self._read_prompt(prompt)
        self._run = ByteRun(max_byte_run, incomplete_tail(self._last_bytes(prompt)))

    def add(self, token_id: int) -> tuple[str, str]:
        entry = self._vocabulary.get(token_id)
        self.tentative = ""
        if entry is None:
            return "", ""
        if isinstance(entry, bytes):
            self._first = False
            completed = self._run.add(entry)
            final = self._run.overflow()
            if final:
                seen = len(final) - len(completed)
                return self._strip(final[:seen]), self._strip(final[seen:])
            if completed:
                self.tentative = self._stripped(self._run.text)
            return "", ""
        final = self._strip(self._run.end())
        return final, self._strip(self._own_text(entry))

    def finish(self) -> str:
        return self._strip(self._run.end())

    def _own_text(self, text: str) -> str:
        first, self._first = self._first, False
        if first and self._rules.drop_first and self._rules.mark:
            return text.replace(self._rules.mark, "")
        return self._vocabulary.spaced(text if first else self._rules.joiner + text)

    def _stripped(self, text: str) -> str:
        left = self._strip_left
        while left and text.startswith(self._rules.strip):
            text, left = text[len(self._rules.strip) :], left - 1
        return text

    def _strip(self, text: str) -> str:
        if not self._strip_left or not text:
            return text
        stripped = self._stripped(text)
        dropped = len(text) - len(stripped)
        self._strip_left = 0 if stripped else self._strip_left - dropped
        return stripped

    def _read_prompt(self, prompt: Prompt) -> None:
        """As far as it decides what happens to the first characters."""
        for token_id in prompt:
            self.add(token_id)
            if not self._first and not self._strip_left:
                return
        self._strip(self._run.end())

    def _last_bytes(self, prompt: Prompt) -> bytes:
        data = b""
        for token_id in reversed(prompt):
            entry = self._vocabulary.get(token_id)
            if isinstance(entry, str) or len(data) >= 3:
                break
            data = (entry or b"") + data
        return data
