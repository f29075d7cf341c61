"""Text becomes token ids, from any number of threads at once.

A fast tokenizer's truncation and padding are shared state: changing them while another
thread encodes fails that thread's call. Nothing here ever sets them; a tokenizer that
comes with one of them switched on is copied first.
"""

import threading
from collections.abc import Mapping

import tokenizers

from enginebay.errors import InvalidRequest
from enginebay.hookspecs.format import TextAssets

from .control_tokens import ControlTokenizer


class TextEncoder:
    """Encodes whole texts, with control tokens or with their text taken literally."""

    def __init__(self, text: TextAssets, vocab_size: int) -> None:
        tokenizer = text.tokenizer
        if tokenizer.truncation is not None or tokenizer.padding is not None:
            tokenizer = tokenizers.Tokenizer.from_str(tokenizer.to_str())
            tokenizer.no_truncation()
            tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._special_ids = text.special_ids
        self._vocab_size = vocab_size
        self._literal: ControlTokenizer | None = None
        self._lock = threading.Lock()

    def encode(self, text: str, param: str, *, add_special_tokens: bool = False) -> tuple[int, ...]:
        """:raises InvalidRequest: not text, or nothing that a model could continue"""
        return self._checked(self._encode(self._tokenizer, text, param, add_special_tokens), param)

    def encode_shielded(self, text: str, shields: Mapping[str, str], param: str) -> tuple[int, ...]:
        """Encode text in which ``shields`` stand for first characters of control text.

        Control tokens spelled out in ``text`` become their ids; shielded ones become
        the ids of ordinary text.
        """
        with self._lock:
            if self._literal is None:
                self._literal = ControlTokenizer(self._tokenizer, self._special_ids)
        literal = self._literal
        ids = self._encode(literal.tokenizer, literal.spell(text, shields), param, False)
        return self._checked(ids, param)

    def _encode(
        self, tokenizer: tokenizers.Tokenizer, text: str, param: str, add_special_tokens: bool
    ) -> list[int]:
        try:
            # ``encode`` holds the interpreter's lock throughout: a text of 1 MB would stop
            # every other thread, the step loop too, for seconds. A batch of one lets go.
            found = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            return found[0].ids
        except TypeError as error:  # what the library raises for lone surrogates, too
            msg = f"{param} is not Unicode text: it holds half of a surrogate pair"
            raise InvalidRequest(msg, param) from error

    def _checked(self, ids: list[int], param: str) -> tuple[int, ...]:
        if not ids:
            raise InvalidRequest(f"{param} is empty: give at least one token", param)
        if max(ids) >= self._vocab_size:
            msg = (
                f"{param} encodes to token {max(ids)}, but the model's vocabulary "
                f"ends at {self._vocab_size - 1}"
            )
            raise InvalidRequest(msg, param)
        return tuple(ids)
