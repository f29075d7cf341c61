"""Parser that takes all text as content: no reasoning, no tool calls."""

from enginebay.hookspecs.frontend import Parsed


class ContentParser:
    """One choice's text, unchanged."""

    def feed(self, text: str) -> Parsed:
        return Parsed(content=text)

    def flush(self) -> Parsed:
        return Parsed()
