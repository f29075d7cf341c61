"""What a tokenizer's decoder does to each token, read from its JSON description.

Two families cover nearly every causal language model, and both turn each token into
bytes or text of its own: byte-level BPE, where every character of a token stands for
one byte (Radford et al., GPT-2), and the SentencePiece kinds, where a visible mark
stands for a space and ``<0xE2>`` is one byte (Kudo and Richardson, arXiv 1808.06226).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers


@dataclass(frozen=True)
class Rules:
    """How tokens become text, one by one."""

    byte_level: bool = False
    replaced: tuple[tuple[str, str], ...] = ()
    """Strings replaced inside each token, in this order."""
    mark: str = ""
    """Stands for a space; vanishes from the first token when ``drop_first``."""
    drop_first: bool = False
    byte_fallback: bool = False
    strip: str = ""
    """A character stripped from the beginning of the whole text ..."""
    strip_count: int = 0
    """... at most so many times."""
    joiner: str = ""
    """Stands between tokens: a space when the tokenizer has no decoder at all."""


def read_rules(tokenizer: tokenizers.Tokenizer) -> Rules | None:
    """The rules of a tokenizer; ``None``: its decoder is none of the known kinds."""
    decoder = tokenizer.decoder
    if decoder is None:
        return Rules(joiner=" ")
    # Its pickled state is its JSON; the whole tokenizer's would take a second to write.
    steps = _flatten(json.loads(decoder.__getstate__()))
    kinds = [step["type"] for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return Rules(byte_level=True)
    return _piecewise(steps)


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]


_ORDER = ("Replace", "Metaspace", "ByteFallback", "Fuse", "Strip")


def _piecewise(steps: list[Mapping[str, Any]]) -> Rules | None:
    """Steps that treat each token alone, and at most one strip of the joined text."""
    kinds = [step["type"] for step in steps]
    if not all(kind in _ORDER for kind in kinds):
        return None
    places = [_ORDER.index(kind) for kind in kinds]
    once = [place for place in places if place > 0]
    stripped_alone = "Strip" in kinds and "Fuse" not in kinds
    if places != sorted(places) or len(set(once)) != len(once) or stripped_alone:
        return None
    known = {step["type"]: step for step in steps}
    metaspace, strip = known.get("Metaspace", {}), known.get("Strip", {})
    replaced = [step for step in steps if step["type"] == "Replace"]
    if strip.get("stop", 0) or not all("String" in step["pattern"] for step in replaced):
        return None
    return Rules(
        replaced=tuple((step["pattern"]["String"], step["content"]) for step in replaced),
        mark=metaspace.get("replacement", ""),
        drop_first=metaspace.get("prepend_scheme", "always") != "never",
        byte_fallback="ByteFallback" in known,
        strip=strip.get("content", ""),
        strip_count=strip.get("start", 0),
    )


def byte_of_character() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for.

    Printable Latin-1 characters stand for themselves; the other bytes take, in order,
    the characters from U+0100 on.
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in set(shown)]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
