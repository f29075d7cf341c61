"""Tokenizers out of GGUF metadata.

Two kinds exist in models that can be read: ``gpt2``, byte-level BPE with merges, and
``llama``, SentencePiece's BPE, where each piece has a score instead.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from enginebay.errors import ModelError
from enginebay.hookspecs.format import TextAssets

from .gguf_splits import SPLITS, Split
from .text_assets import make_text_assets

CONTROL: Final = 3
USER_DEFINED: Final = 4
UNUSED: Final = 5
_ORDINARY: Final = 1
_SPACE: Final = "\u2581"
_ROLES: Final = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",  # the specification's own spelling
    "pad_token": "padding",
    "mask_token": "mask",
}

log = structlog.get_logger("enginebay.formats.gguf")


class Vocabulary:
    """The tokenizer entries of a file, checked."""

    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        """:raises ModelError: there is no vocabulary, or its lists don't match"""
        self.path = path
        self._metadata = metadata
        self.tokens: list[str] = self.get("tokens") or []
        self.types: list[int] = self.get("token_type") or [_ORDINARY] * len(self.tokens)
        if not self.tokens or len(self.types) != len(self.tokens):
            msg = (
                f"{path}: tokenizer.ggml has {len(self.tokens)} tokens and {len(self.types)} "
                "types; the file needs one of each for every token"
            )
            raise ModelError(msg)

    def get(self, key: str, default: Any = None) -> Any:
        """The entry ``tokenizer.ggml.{key}``."""
        return self._metadata.get(f"tokenizer.ggml.{key}", default)

    def token_id(self, role: str) -> int | None:
        """The id under ``{role}_token_id``."""
        token_id = self.get(f"{role}_token_id")
        if token_id is None:
            return None
        if not isinstance(token_id, int) or not 0 <= token_id < len(self.tokens):
            msg = (
                f"{self.path}: tokenizer.ggml.{role}_token_id is {token_id!r}; "
                f"it must be below {len(self.tokens)}"
            )
            raise ModelError(msg)
        return token_id

    def token(self, role: str) -> str | None:
        """The token whose id stands under ``{role}_token_id``."""
        token_id = self.token_id(role)
        return None if token_id is None else self.tokens[token_id]

    def ids(self) -> dict[str, int]:
        """Id of each token; padding entries (``unused``) have no text to be reached by."""
        listed = enumerate(zip(self.tokens, self.types, strict=True))
        return {token: number for number, (token, kind) in listed if kind != UNUSED}

    def of_type(self, kind: int) -> list[str]:
        """Tokens of one type, in the order of their ids."""
        return [t for t, each in zip(self.tokens, self.types, strict=True) if each == kind]

    def templates(self) -> dict[str, str]:
        """Chat templates by name."""
        prefix = "tokenizer.chat_template"
        names = self._metadata.get("tokenizer.chat_templates") or []
        named = {name: self._metadata.get(f"{prefix}.{name}") for name in names}
        found = {"default": self._metadata.get(prefix), **named}
        return {name: text for name, text in found.items() if isinstance(text, str)}


def read_text_assets(path: Path, metadata: dict[str, Any], split: str | None = None) -> TextAssets:
    """Build the tokenizer that a file describes.

    :param split: the kind of pre-tokenizer, in place of ``tokenizer.ggml.pre``
    :raises ModelError: the kind is unknown, or entries are missing; names the file
    """
    vocabulary = Vocabulary(path, metadata)
    kind = vocabulary.get("model")
    if kind == "gpt2":
        tokenizer = _byte_level(vocabulary, _split(vocabulary, metadata, split))
    elif kind == "llama":
        tokenizer = _sentence_piece(vocabulary)
    else:
        msg = f"{path}: tokenizer.ggml.model is {kind!r}; 'gpt2' and 'llama' can be read"
        raise ModelError(msg)
    for type_, special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(t, normalized=False, special=special) for t in vocabulary.of_type(type_)
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    special_tokens = {role: vocabulary.token(key) for role, key in _ROLES.items()}
    ends = [vocabulary.token_id(role) for role in ("eos", "eot")]
    return make_text_assets(
        tokenizer,
        templates=vocabulary.templates(),
        special_tokens={role: token for role, token in special_tokens.items() if token},
        eos_token_ids=[end for end in ends if end is not None],
    )


def _split(vocabulary: Vocabulary, metadata: dict[str, Any], chosen: str | None) -> Split:
    name = chosen or vocabulary.get("pre")
    if name is None and metadata.get("general.architecture") in ("qwen2", "qwen3"):
        name = "qwen2"
    if name == "default":
        log.warning("tokenizer.ggml.pre is 'default'; taken as GPT-2's", file=str(vocabulary.path))
        name = "gpt-2"
    if name in SPLITS:
        return SPLITS[name]
    problem = "is missing" if name is None else f"is {name!r}, which is unknown"
    msg = (
        f"{vocabulary.path}: tokenizer.ggml.pre {problem}, so text can't be cut as the model "
        f"learned it; set `pre_tokenizer` of the gguf format to one of {', '.join(SPLITS)}"
    )
    raise ModelError(msg)


def _byte_level(vocabulary: Vocabulary, split: Split) -> tokenizers.Tokenizer:
    pairs = [tuple(merge.split(" ")) for merge in vocabulary.get("merges") or []]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        msg = f"{vocabulary.path}: tokenizer.ggml.merges is missing or garbled"
        raise ModelError(msg)
    tokenizer = _with_bpe(
        vocabulary, [(left, right) for left, right in pairs], ignore_merges=split.whole_words
    )
    if (normalizer := split.normalizer()) is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    _add_frame(tokenizer, vocabulary, add_bos=split.add_bos)
    return tokenizer


def _sentence_piece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    scores = vocabulary.get("scores") or []
    if len(scores) != len(vocabulary.tokens):
        msg = f"{vocabulary.path}: tokenizer.ggml.scores has {len(scores)} entries, not one a token"
        raise ModelError(msg)
    tokenizer = _with_bpe(
        vocabulary,
        merges_by_score(vocabulary.tokens, vocabulary.types, scores),
        unk_token=vocabulary.token("unknown") or vocabulary.tokens[0],
        fuse_unk=True,
        byte_fallback=True,
    )
    prefixed = vocabulary.get("add_space_prefix", True)
    spell: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    unspell: list[decoders.Decoder] = [
        decoders.Replace(_SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if prefixed:
        spell.insert(0, normalizers.Prepend(_SPACE))
        unspell.append(decoders.Strip(" ", 1, 0))
    tokenizer.normalizer = normalizers.Sequence(spell)
    tokenizer.decoder = decoders.Sequence(unspell)
    _add_frame(tokenizer, vocabulary, add_bos=True)
    return tokenizer


def merges_by_score(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """SentencePiece's order of merging as a list of merges.

    It joins, again and again, the neighbours whose union has the best score. So every
    way to cut a piece into two pieces is a merge, and its rank follows the score.
    """
    usable = {token: number for number, token in enumerate(tokens) if types[number] == _ORDINARY}
    ranked = []
    for token, number in usable.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in usable and right in usable:
                ranked.append((-scores[number], number, usable[left], usable[right]))
    ranked.sort()
    return [(tokens[left], tokens[right]) for _, _, left, right in ranked]


def _with_bpe(
    vocabulary: Vocabulary, merges: list[tuple[str, str]], **options: Any
) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary.ids(), merges=merges, **options))
    except Exception as error:  # the library raises bare exceptions
        msg = f"{vocabulary.path}: the tokenizer's entries don't fit together ({error})"
        raise ModelError(msg) from error


def _add_frame(tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary, *, add_bos: bool) -> None:
    """Put BOS in front and EOS behind, where the file or its kind says so."""
    wanted = {
        "bos": vocabulary.get("add_bos_token", add_bos),
        "eos": vocabulary.get("add_eos_token"),
    }
    bos, eos = (
        [token] if wanted[role] and (token := vocabulary.token(role)) else []
        for role in ("bos", "eos")
    )
    ids = vocabulary.ids()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*bos, "$A", *eos], special_tokens=[(token, ids[token]) for token in {*bos, *eos}]
    )
