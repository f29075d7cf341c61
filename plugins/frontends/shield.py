"""Control-token text inside messages stays text: a caller can't end a turn or open one.

In every string that came with the request, the first character of a control token's
text is replaced by a private-use character before the template sees it; after rendering,
any control token in the prompt was therefore written by the template. A string's end
counts too when it could be the beginning of a control token, so that neighbouring
strings can't form one together. The encoder then puts the characters back.

What a template does to a message is not undone: one that removes characters from inside
a message, or changes its case, could still spell a control token from harmless parts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from enginebay.errors import InvalidRequest

_PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


def private_characters(text: str, count: int) -> list[str]:
    """``count`` private-use characters that ``text`` does not hold.

    :raises InvalidRequest: it holds nearly all 137,000 of them
    """
    used = set(text)
    free = (chr(code) for codes in _PRIVATE for code in codes if chr(code) not in used)
    found = [character for _, character in zip(range(count), free, strict=False)]
    if len(found) < count:
        raise InvalidRequest("messages use every private-use character; remove some", "messages")
    return found


def strings(value: Any) -> Iterator[str]:
    """Every string in a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item)


class Shield:
    """Knows the control tokens of a tokenizer and guards JSON values against their text."""

    def __init__(self, control_tokens: Iterable[str]) -> None:
        tokens = sorted(set(control_tokens) - {""})
        self._initials = "".join(sorted({token[0] for token in tokens}))
        self._whole = re.compile("|".join(map(re.escape, tokens)) or "(?!)")
        # Those that begin like a word would cover the ends of ordinary words.
        marked = [token for token in tokens if not token[0].isalnum()]
        self._beginnings = {token[:size] for token in marked for size in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)

    @property
    def initials(self) -> str:
        """The characters that control tokens begin with."""
        return self._initials

    def finds(self, text: str) -> bool:
        """Does ``text`` hold control text, or end with what could begin one?"""
        if not any(initial in text for initial in self._initials):
            return False
        return self._whole.search(text) is not None or bool(self._open_ends(text))

    def cover(self, value: Any, covers: Mapping[str, str]) -> Any:
        """A copy of a JSON value, guarded; ``covers``: initial to private character."""
        if isinstance(value, str):
            return self._cover_text(value, covers)
        if isinstance(value, Mapping):
            # A role was checked against a list, and templates compare it.
            return {
                self._cover_text(key, covers): item if key == "role" else self.cover(item, covers)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.cover(item, covers) for item in value]
        return value

    def _cover_text(self, text: str, covers: Mapping[str, str]) -> str:
        if not self.finds(text):
            return text
        places = self._open_ends(text)
        match = self._whole.search(text)
        while match is not None:
            places.append(match.start())
            match = self._whole.search(text, match.start() + 1)
        characters = list(text)
        for place in places:
            characters[place] = covers[characters[place]]
        return "".join(characters)

    def _open_ends(self, text: str) -> list[int]:
        """Where the beginning of a control token reaches to the end of the text, which a
        template may have stripped of its white space."""
        end = text.rstrip()
        sizes = range(1, min(self._longest, len(end) + 1))
        return [len(end) - size for size in sizes if end[-size:] in self._beginnings]
