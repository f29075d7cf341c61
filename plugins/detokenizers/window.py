"""Text by decoding a window of tokens twice, for decoders of unknown kind.

The window starts a few tokens before the new one, so that what a decoder does between
neighbours is seen. A decoder that rewrites text further back than that is followed
only from there on.
"""

from itertools import islice, takewhile

import tokenizers

from .assemblers import Prompt

CONTEXT = 6
"""Tokens kept in front of the new one."""
PENDING = 8
"""Tokens that may wait for a character to become complete: 4 bytes and some slack."""


class WindowAssembler:
    """Decodes the last tokens with and without the new one; the difference is its text."""

    tentative = ""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt: Prompt) -> None:
        self._tokenizer = tokenizer
        self._window = [*islice(reversed(prompt), CONTEXT)][::-1]
        self._pending = 0
        self._known = self._decode(self._window)
        whole = self._known
        while whole.endswith("\ufffd") and self._pending < min(3, len(self._window)):
            self._pending += 1
            whole = self._decode(self._window[: -self._pending])
        if whole.endswith("\ufffd"):
            self._pending = 0
        else:
            self._known = whole

    def add(self, token_id: int) -> tuple[str, str]:
        self._window.append(token_id)
        text = self._decode(self._window)
        self._pending += 1
        if text.endswith("\ufffd") and self._pending <= PENDING:
            return "", ""
        new = self._beyond_known(text)
        self._pending = 0
        self._known = text
        if len(self._window) > 2 * CONTEXT:
            self._window = self._window[-CONTEXT:]
            self._known = self._decode(self._window)
        return "", new

    def finish(self) -> str:
        return self._beyond_known(self._decode(self._window)) if self._pending else ""

    def _beyond_known(self, text: str) -> str:
        if text.startswith(self._known):
            return text[len(self._known) :]
        # The decoder changed text that is out already: go on where the two part.
        pairs = zip(self._known, text, strict=False)
        return text[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]

    def _decode(self, token_ids: list[int]) -> str:
        # Some decoders can't take an empty list.
        return self._tokenizer.decode(token_ids, skip_special_tokens=False) if token_ids else ""
