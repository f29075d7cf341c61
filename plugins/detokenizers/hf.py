"""Detokenizer for Hugging Face tokenizers: exact, and O(1) a token.

No token is decoded twice: each token's bytes follow from the tokenizer's decoder, and
only an incomplete character, an open run of byte tokens and the possible beginning of
a stop string wait. Decoders of an unknown kind are followed by decoding a window of
the last tokens, which costs more and is exact as far as that window reaches.

Where the prompt ends inside a character, "decode(prompt)" of promise P3 is taken
without the U+FFFD that stands for its bytes: that character belongs to the output.
"""

import msgspec

from enginebay import hookimpl
from enginebay.errors import StackError
from enginebay.flow import TokenIds
from enginebay.hookspecs.detokenizer import Detokenizer, DetokenizerContext, Piece, TextStream
from enginebay.hookspecs.format import TextAssets

from .assemblers import Assembler, ByteLevelAssembler, PieceAssembler, Prompt
from .rules import read_rules
from .stops import StopGate
from .vocabulary import Vocabulary
from .window import WindowAssembler

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the detokenizer ``hf``."""

    max_byte_run: int = 64
    """Byte-fallback vocabularies only: bytes of consecutive byte tokens that wait until
    their run has ended, because one malformed byte changes the text of the whole run.
    0 releases each character when it is complete; malformed runs then differ from the
    tokenizers library in how many U+FFFD they show. Stop strings never wait."""


class HfTextStream:
    """The text of one choice (promise P3)."""

    def __init__(self, assembler: Assembler, gate: StopGate, skipped: frozenset[int]) -> None:
        self._assembler = assembler
        self._gate = gate
        self._skipped = skipped
        self._ended = False

    def feed(self, token_id: int, *, may_stop: bool = True) -> Piece:
        if self._ended or token_id in self._skipped:
            return Piece()
        settled, text = self._assembler.add(token_id)
        if self._gate.open:
            return Piece(text=settled + text)
        if not settled:
            piece = self._gate.push(text, may_stop=may_stop)
        else:
            # It was looked at while tentative, token by token: no stop string ends there.
            earlier = self._gate.push(settled, may_stop=False)
            piece = self._gate.push(text, may_stop=may_stop)
            piece = Piece(text=earlier.text + piece.text, stop=piece.stop)
        if may_stop and self._assembler.tentative:
            cut = self._gate.peek(self._assembler.tentative)
            if cut is not None:
                piece = Piece(text=piece.text + cut.text, stop=cut.stop)
        self._ended = piece.stop is not None
        return piece

    def flush(self) -> str:
        if self._ended:
            return ""
        self._ended = True
        rest = self._gate.push(self._assembler.finish(), may_stop=False)
        return rest.text + self._gate.flush()


class HfDetokenizer:
    """Opens text streams over one tokenizer."""

    def __init__(self, options: Options, text: TextAssets) -> None:
        rules = read_rules(text.tokenizer)
        self._text = text
        self._max_byte_run = options.max_byte_run
        self._vocabulary = None if rules is None else Vocabulary(text.tokenizer, rules)

    def open(
        self,
        prompt_ids: TokenIds,
        *,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> TextStream:
        skipped = self._text.special_ids if skip_special_tokens else frozenset[int]()
        # An empty stop string would end every answer before it began.
        gate = StopGate(tuple(each for each in stop if each), include_stop=include_stop)
        return HfTextStream(self._assembler(Prompt(prompt_ids, skipped)), gate, skipped)

    def token_bytes(self, token_id: int) -> bytes:
        if self._vocabulary is not None:
            return self._vocabulary.own_bytes(token_id)
        if token_id < 0 or self._text.tokenizer.id_to_token(token_id) is None:
            return b""
        return self._text.tokenizer.decode([token_id], skip_special_tokens=False).encode()

    def _assembler(self, prompt: Prompt) -> Assembler:
        if self._vocabulary is None:
            return WindowAssembler(self._text.tokenizer, prompt)
        if self._vocabulary.rules.byte_level:
            return ByteLevelAssembler(self._vocabulary, prompt)
        return PieceAssembler(self._vocabulary, prompt, self._max_byte_run)


@hookimpl
def enginebay_detokenizer(options: Options, context: DetokenizerContext) -> Detokenizer:
    """Build the detokenizer over the model's tokenizer."""
    if options.max_byte_run < 0:
        given = options.max_byte_run
        msg = f"[options.detokenizer.hf]: max_byte_run is {given}; give 0 or more bytes"
        raise StackError(msg)
    return HfDetokenizer(options, context.text)
