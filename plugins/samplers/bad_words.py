"""Edit: texts that must not be generated, banned at their last token."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from enginebay import hookimpl
from enginebay.flow import SamplingParams, TokenIds
from enginebay.hookspecs.sampler import Field, RowView, SamplerContext, Transform

from .entries import array_of, places

if TYPE_CHECKING:
    from enginebay.hookspecs.format import TextAssets

CONTRACT = (1, 0)
MAX_WORDS: Final = 256
MAX_CHARACTERS: Final = 256


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """None of its own."""


class BadWords:
    """Owns ``bad_words``: strings, each banned with and without a space before it.

    A word is what the tokenizer makes of it alone; the same letters cut into tokens in
    another way are not recognized. Only the output counts, not the prompt's last tokens.
    """

    fields = (
        Field(
            name="bad_words",
            type="array",
            neutral=(),
            doc=f"up to {MAX_WORDS} strings of 1 to {MAX_CHARACTERS} characters",
        ),
    )

    def __init__(self, text: "TextAssets | None") -> None:
        self.text = text

    def parse(self, name: str, value: Any, vocab_size: int) -> tuple[TokenIds, ...]:
        """The token sequences to avoid."""
        if len(value) > MAX_WORDS:
            msg = f"{len(value)} strings are too many; at most {MAX_WORDS}"
            raise ValueError(msg)
        sequences: dict[TokenIds, None] = {}
        for word in value:
            if not isinstance(word, str) or not 1 <= len(word) <= MAX_CHARACTERS:
                msg = f"each entry must be a string of 1 to {MAX_CHARACTERS} characters"
                raise ValueError(msg)
            for spelled in (word, word[1:] if word.startswith(" ") else f" {word}"):
                ids = self._encode(spelled)
                # An id that the model can't draw needs no ban.
                if ids and max(ids) < vocab_size:
                    sequences[ids] = None
        return tuple(sequences)

    def active(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Any word."""
        return bool(params["bad_words"])

    def edit(self, row: torch.Tensor, view: RowView) -> None:
        """Ban the last token of every sequence whose beginning the output ends with."""
        output = tuple(view.output_ids[-MAX_CHARACTERS * 4 :])
        newest = output[-1:]
        banned = [
            word[-1]
            for word in view.params["bad_words"]
            # Nearly all are told apart by the newest token.
            if word[-2:-1] in ((), newest) and _ends_with(output, word[:-1])
        ]
        if banned:
            array_of(row)[places(row, banned)] = -torch.inf

    def _encode(self, text: str) -> TokenIds:
        if self.text is None:
            msg = "this stack has no tokenizer, so that words can't be banned"
            raise ValueError(msg)
        return tuple(self.text.tokenizer.encode(text, add_special_tokens=False).ids)


def _ends_with(output: TokenIds, beginning: TokenIds) -> bool:
    return not beginning or output[-len(beginning) :] == beginning


@hookimpl
def enginebay_sampler(options: Options, context: SamplerContext) -> Transform:
    """Build it."""
    return BadWords(context.text)
