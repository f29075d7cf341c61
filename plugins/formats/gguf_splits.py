"""How byte-level tokenizers cut text into words before merging, by ggml's names.

The name stands in ``tokenizer.ggml.pre``. Each entry says what the original tokenizer
does, as its own ``tokenizer.json`` states it. A name that is not here is refused: with
other words, other tokens come out, and the model answers badly without any error.
"""

from dataclasses import dataclass
from typing import Any, Final

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS: Final = (r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+")
_PUNCTUATION: Final = r" ?[^\s\p{L}\p{N}]+"


def _with_digits(digits: str) -> str:
    """The words of GPT-4's tokenizer, as Llama 3 and Qwen 2 use them."""
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+"
    return "|".join((_CONTRACTIONS, letters, digits, _PUNCTUATION + r"[\r\n]*", *_BLANKS))


def _tekken() -> str:
    """Mistral's words: a capitalized run may begin a word, never stand inside one."""
    begin = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    words = (f"{begin}{upper}*{lower}+", f"{begin}{upper}+{lower}*")
    return "|".join((*words, r"\p{N}", _PUNCTUATION + r"[\r\n/]*", *_BLANKS))


@dataclass(frozen=True)
class Split:
    """How one family of tokenizers cuts text."""

    pattern: str | None = None
    """Of one word; ``None``: GPT-2's, which the tokenizers library has built in."""
    single_digits: bool = False
    """Digits stand alone before anything else is cut."""
    whole_words: bool = False
    """A word that is a token is taken without looking at the merges."""
    add_bos: bool = False
    """BOS goes in front of a text when the file does not say."""
    nfc: bool = False
    """Text is composed (Unicode NFC) first."""

    def normalizer(self) -> Any:
        """``None`` when text is taken as it is."""
        return normalizers.NFC() if self.nfc else None

    def pre_tokenizer(self) -> Any:
        """Cuts text and spells each word in byte letters."""
        if self.pattern is not None:
            words = pre_tokenizers.Split(Regex(self.pattern), behavior="isolated")
            letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return pre_tokenizers.Sequence([words, letters])
        gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if self.single_digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
        return gpt2


_GPT2: Final = Split()
_DIGITS: Final = Split(single_digits=True)
_LLAMA3: Final = Split(pattern=_with_digits(r"\p{N}{1,3}"), whole_words=True, add_bos=True)

SPLITS: Final[dict[str, Split]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "mellum"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("smaug-bpe", "dbrx"), Split(pattern=_LLAMA3.pattern)),
    "qwen2": Split(pattern=_with_digits(r"\p{N}"), nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "megrez"), Split(pattern=_with_digits(r"\p{N}"))),
    "tekken": Split(pattern=_tekken(), whole_words=True, add_bos=True),
}
