"""Stop strings: found across tokens, their beginnings held back.

Matching is that of Knuth, Morris and Pratt (SIAM J. Comput. 6, 1977), one automaton a
stop string, so a character costs O(1) however long the stop strings are. Of several
matches the one that ends first counts, and of those the one that began first. That
rule does not depend on how the text was cut into tokens.
"""

from enginebay.hookspecs.detokenizer import Piece


class _Needle:
    """One stop string and its failure table, grown as far as matches have reached."""

    __slots__ = ("_borders", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._borders = [0, 0]

    def advance(self, matched: int, character: str) -> int:
        """The length of the match after ``character``, ``matched`` being that before."""
        text = self.text
        while matched == len(text) or text[matched] != character:
            if matched == 0:
                return 0
            matched = self._border(matched)
        return matched + 1

    def _border(self, length: int) -> int:
        borders, text = self._borders, self.text
        while len(borders) <= length:
            last = text[len(borders) - 1]
            border = borders[-1]
            while border and text[border] != last:
                border = borders[border]
            borders.append(border + 1 if text[border] == last else 0)
        return borders[length]


class StopScanner:
    """How much of each stop string the text so far ends with."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._needles = [_Needle(stop) for stop in stops]
        self._matched = [0] * len(stops)
        self._first = frozenset(stop[0] for stop in stops)

    @property
    def held(self) -> int:
        """Characters at the end of the text that may begin a stop string."""
        return max(self._matched)

    def scan(self, text: str, *, may_stop: bool) -> tuple[int, str] | None:
        """Read ``text``; without ``may_stop`` a completed stop string is passed over.

        :return: the first match: where it ends in ``text``, and the stop string
        """
        if self._first.isdisjoint(text) and not any(self._matched):
            return None
        for end, character in enumerate(text, start=1):
            found = self._step(character)
            if found and may_stop:
                return end, found
        return None

    def _step(self, character: str) -> str:
        longest = ""
        for index, needle in enumerate(self._needles):
            matched = needle.advance(self._matched[index], character)
            self._matched[index] = matched
            if matched == len(needle.text) > len(longest):
                longest = needle.text
        return longest

    def save(self) -> list[int]:
        return list(self._matched)

    def restore(self, saved: list[int]) -> None:
        self._matched = saved


class StopGate:
    """Lets text through once it can't belong to a stop string any more.

    With ``include_stop`` nothing of the text is ever taken back, so nothing is held.
    """

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        self._scanner = StopScanner(stops) if stops else None
        self._include = include_stop
        self._held = ""
        self.open = not stops
        """There is no stop string: all text goes through at once."""

    def push(self, text: str, *, may_stop: bool) -> Piece:
        """Text that is final."""
        scanner = self._scanner
        if scanner is None:
            return Piece(text=text)
        match = scanner.scan(text, may_stop=may_stop)
        if match is not None:
            return self._cut(self._held + text[: match[0]], match[1])
        buffer = self._held + text
        release = len(buffer) - (0 if self._include else scanner.held)
        self._held = buffer[release:]
        return Piece(text=buffer[:release])

    def peek(self, text: str) -> Piece | None:
        """The cut, if ``text``, which could still change, ends with a stop string now."""
        scanner = self._scanner
        if scanner is None:
            return None
        saved = scanner.save()
        scanner.scan(text[:-1], may_stop=False)
        match = scanner.scan(text[-1:], may_stop=True)
        scanner.restore(saved)
        return None if match is None else self._cut(self._held + text, match[1])

    def flush(self) -> str:
        """The held text: no stop string follows any more."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str, stop: str) -> Piece:
        self._held = ""
        keep = len(text) if self._include else len(text) - len(stop)
        return Piece(text=text[:keep], stop=stop)
