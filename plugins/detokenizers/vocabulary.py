"""Each token's own text or bytes, worked out once and kept."""

import re
from typing import Final

import tokenizers

from .rules import Rules, byte_of_character

_BYTE_TOKEN: Final = re.compile("<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """What a token stands for under a tokenizer's rules, wherever it appears."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, rules: Rules) -> None:
        self.rules = rules
        self._tokenizer = tokenizer
        self._bytes = byte_of_character() if rules.byte_level else {}
        self._kept: dict[int, str | bytes | None] = {}
        self._texts: dict[int, str | None] = {}

    def get(self, token_id: int) -> str | bytes | None:
        """Text; bytes that may be part of a character; or ``None``: no such token.

        A byte-level vocabulary answers bytes always, a SentencePiece one only for a
        byte token, and keeps the mark, which means nothing in the first token.
        """
        try:
            return self._kept[token_id]
        except KeyError:
            token = self._tokenizer.id_to_token(token_id) if token_id >= 0 else None
            entry = None if token is None else self._read(token)
            self._kept[token_id] = entry
            return entry

    def text(self, token_id: int) -> str | None:
        """The token's text where it is whole characters; else ``None``."""
        try:
            return self._texts[token_id]
        except KeyError:
            try:
                text = self.own_bytes(token_id).decode()
            except UnicodeDecodeError:
                text = None
            self._texts[token_id] = text
            return text

    def own_bytes(self, token_id: int) -> bytes:
        """UTF-8 of the token as it stands inside a text."""
        entry = self.get(token_id)
        if entry is None:
            return b""
        return entry if isinstance(entry, bytes) else self.spaced(entry).encode()

    def spaced(self, text: str) -> str:
        """``text`` with a space for each mark."""
        mark = self.rules.mark
        return text.replace(mark, " ") if mark else text

    def _read(self, token: str) -> str | bytes:
        if self.rules.byte_level:
            return self._read_byte_level(token)
        for old, new in self.rules.replaced:
            token = token.replace(old, new)
        byte = _BYTE_TOKEN.fullmatch(token) if self.rules.byte_fallback else None
        return token if byte is None else bytes([int(byte[1], 16)])

    def _read_byte_level(self, token: str) -> bytes:
        # An added token may hold characters that stand for no byte: it is taken as text.
        try:
            return bytes([self._bytes[character] for character in token])
        except KeyError:
            return token.encode()
