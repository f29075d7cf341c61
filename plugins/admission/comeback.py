"""Comeback: when a refused caller may try again, so that not all come at one moment.

A place becomes free each time a request ends. Told alike, a hundred refused callers would
all come back for that one place. So each is given a *turn* of its own: the estimate for
the one refused before, and the time that one more request takes. Turns pass as time does;
a caller who never comes back costs the others no more than that.

On top each wait is stretched by up to half, by a hash of request id and attempt. Where no
pace is known yet, or the bounds cut the estimate, this alone keeps callers apart; it is
the same on every run, and never sends anybody back before the estimate.
"""

import math
import zlib
from typing import Final

from enginebay.hookspecs.admission import Ask, Load

STRETCH: Final = 0.5


class Comeback:
    """Waits of one member's refusals."""

    def __init__(self, least: float, most: float) -> None:
        """:param least: seconds told while the pace is unknown, and the shortest estimate
        :param most: the longest estimate; up to half as much more is told
        """
        self._least = least
        self._most = most
        self._turn = 0.0
        """When the last refused caller was told to come, before the stretch."""

    def turn(self, ask: Ask, load: Load, requests: float) -> float:
        """Seconds until ``requests`` have ended and those refused before have had their
        turns, at the engine's pace."""
        pace = load.requests_per_second
        if pace <= 0:
            return self.after(ask, self._least)
        earliest = load.now + requests / pace
        self._turn = min(max(self._turn + 1 / pace, earliest), load.now + self._most)
        return self.after(ask, self._turn - load.now)

    def after(self, ask: Ask, seconds: float) -> float:
        """An estimate within the bounds, stretched, in whole milliseconds."""
        bounded = min(max(seconds, self._least), self._most)
        return math.ceil(1000 * bounded * (1 + STRETCH * _share(ask))) / 1000


def _share(ask: Ask) -> float:
    """In [0, 1), by request and attempt."""
    return zlib.crc32(f"{ask.request_id} {ask.attempt}".encode()) / 2**32
