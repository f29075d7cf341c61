"""A run of byte tokens, whose text is known for certain only when it has ended."""

import codecs
from typing import Final

REPLACEMENT: Final = "\ufffd"


class ByteRun:
    """Consecutive byte tokens: text if all of them together are UTF-8.

    Else every byte becomes a U+FFFD, as in the tokenizers library. Therefore the text
    of a run is final when the run has ended, or grown past ``limit`` bytes.
    """

    def __init__(self, limit: int, data: bytes = b"") -> None:
        self._limit = limit
        self._start(data)

    def _start(self, data: bytes) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._data = bytearray()
        self._malformed = False
        self.text = ""
        if data:
            self.add(data)

    def add(self, data: bytes) -> str:
        """:return: the characters that became complete"""
        self._data += data
        if self._malformed:
            return ""
        try:
            new = self._decoder.decode(data)
        except UnicodeDecodeError:
            self._malformed = True
            return ""
        self.text += new
        return new

    def overflow(self) -> str:
        """What is final because the run is too long to wait for its end."""
        if len(self._data) <= self._limit:
            return ""
        if self._malformed:
            return self.end()
        text, tail = self.text, self._decoder.getstate()[0]
        self._start(tail)
        return text

    def end(self) -> str:
        """The text of the whole run; a new run begins."""
        if not self._data:
            return ""
        whole = not self._malformed and not self._decoder.getstate()[0]
        text = self.text if whole else REPLACEMENT * len(self._data)
        self._start(b"")
        return text
