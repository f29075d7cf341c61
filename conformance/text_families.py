"""Small tokenizers of the families that causal language models use, for text checks.

Each covers the same texts in its own way: whole words, letters, and for what it has no
token of its own, single bytes (byte-level and byte-fallback) or the unknown token.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from enginebay.hookspecs.format import TextAssets

from .tiny_text import tiny_tokenizer

MARK: Final = "\u2581"
"""Stands for a space in SentencePiece vocabularies."""
_WORDS: Final = ("the", "in", "alpha", "be", "ta", "am", "stop", "END")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:!?-'\n"
_OTHERS: Final = "\u00e9\u0159\u017e\u65e5\u672c"
"""Some Czech and Japanese characters; others have no token."""
_SPECIALS: Final = ("<s>", "</s>")


def byte_level() -> TextAssets:
    """Byte-level BPE, as in GPT-2, Llama 3 and Qwen."""
    return _assets(tiny_tokenizer([" leading", "X.Y"]))


def byte_fallback() -> TextAssets:
    """SentencePiece BPE with byte tokens and a space in front, as in Llama 2."""
    return _assets(_bpe(strip=True))


def byte_fallback_unstripped() -> TextAssets:
    """The same without the space in front, as in Gemma."""
    return _assets(_bpe(strip=False))


def metaspace() -> TextAssets:
    """SentencePiece unigrams without byte tokens, as in T5 and XLM-R."""
    pieces = ["<unk>", MARK, *_WORDS, *(MARK + word for word in _WORDS), *_LETTERS, *_OTHERS]
    pieces += [MARK + MARK, MARK + "leading", MARK + "x"]
    scores = [(piece, -float(place % 7) - 1) for place, piece in enumerate(pieces)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(scores, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(MARK)
    tokenizer.decoder = decoders.Metaspace(MARK)
    tokenizer.add_special_tokens(list(_SPECIALS))
    return _assets(tokenizer)


TEXT_FAMILIES: Final[Mapping[str, Callable[[], TextAssets]]] = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "byte-fallback-unstripped": byte_fallback_unstripped,
    "metaspace": metaspace,
}


def _bpe(*, strip: bool) -> tokenizers.Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), MARK, *_LETTERS, *_OTHERS]
    pieces += [MARK + MARK, MARK + "leading", MARK + "x", "X.Y"]
    merges = []
    for word in (*_WORDS, *(MARK + word for word in _WORDS)):
        for size in range(1, len(word)):
            pair = (word[:size], word[size])
            if pair not in merges:
                merges.append(pair)
                pieces.append(word[: size + 1])
    vocabulary = {piece: token_id for token_id, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>")  # noqa: S106
    )
    spaces = normalizers.Replace(" ", MARK)
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), spaces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(list(_SPECIALS))
    return tokenizer


def _assets(tokenizer: tokenizers.Tokenizer) -> TextAssets:
    added = tokenizer.get_added_tokens_decoder()
    return TextAssets(
        tokenizer=tokenizer,
        identity=hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        special_ids=frozenset(each for each, token in added.items() if token.special),
    )
