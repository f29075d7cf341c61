"""Text without a tokenizer: every token reads as its own number and a space."""

from collections.abc import Mapping
from typing import Any

from enginebay.errors import InvalidRequest
from enginebay.flow import EncodedPrompt, Prompt, Request, SamplingParams, TokenIds, TokenPrompt
from enginebay.hookspecs.detokenizer import Piece
from enginebay.hookspecs.frontend import Parsed


class NumberText:
    """Frontend and detokenizer of the harness. Takes prompts of token ids."""

    kinds = ("tokens",)

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """Take the ids as they are."""
        if not isinstance(prompt, TokenPrompt):
            raise InvalidRequest("the harness takes token ids", "prompt")
        if not prompt.token_ids:
            raise InvalidRequest("an empty prompt; give one token at least", "prompt")
        if not all(0 <= token < self._vocab_size for token in prompt.token_ids):
            raise InvalidRequest(f"token ids must be below {self._vocab_size}", "prompt")
        return EncodedPrompt(token_ids=prompt.token_ids)

    def parser(self, request: Request) -> "PlainParser":
        """Everything is content."""
        return PlainParser()

    def open(
        self,
        prompt_ids: TokenIds,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> "NumberStream":
        """The text of one choice."""
        return NumberStream(stop, include_stop=include_stop)

    def token_bytes(self, token_id: int) -> bytes:
        """``b"17 "``."""
        return f"{token_id} ".encode()


class NumberStream:
    """Says each token as a number; stop strings are matched within one token's text."""

    def __init__(self, stop: tuple[str, ...], *, include_stop: bool) -> None:
        self._stop = stop
        self._include_stop = include_stop

    def feed(self, token_id: int, *, may_stop: bool = True) -> Piece:
        """``"17 "``, cut at a stop string."""
        text = f"{token_id} "
        for stop in self._stop if may_stop else ():
            if stop in text:
                end = text.index(stop) + (len(stop) if self._include_stop else 0)
                return Piece(text=text[:end], stop=stop)
        return Piece(text=text)

    def flush(self) -> str:
        """Nothing is held back."""
        return ""


class PlainParser:
    """All text is content."""

    def feed(self, text: str) -> Parsed:
        """As it is."""
        return Parsed(content=text)

    def flush(self) -> Parsed:
        """Nothing is held back."""
        return Parsed()


class NoTransforms:
    """A sampler chain without members: any transform parameter is refused."""

    def parse(
        self, sampling: SamplingParams, defaults: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """:raises InvalidRequest: a field that nobody owns"""
        for name in sampling.transforms:
            raise InvalidRequest(f"no sampler plugin of this stack takes {name!r}", name)
        return {}
