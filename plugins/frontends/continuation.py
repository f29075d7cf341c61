"""Continuing the last message: the prompt ends where that message's text ends.

A mark is put behind the text before rendering, and the prompt is cut at the mark. Where
the template strips the text, white space before the mark goes too.
"""

from typing import Any

from .complaint import refuse


def with_mark(messages: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    """``messages`` with ``mark`` and a space behind the last one's text.

    :raises InvalidRequest: it has no text
    """
    *earlier, last = messages
    content = last.get("content")
    if isinstance(content, list):
        *parts, final = content
        marked: Any = [*parts, {**final, "text": final["text"] + mark + " "}]
    elif isinstance(content, str):
        marked = content + mark + " "
    else:
        refuse(f"messages[{len(earlier)}].content", "has no text that could be continued")
    return [*earlier, {**last, "content": marked}]


def cut_at_mark(text: str, mark: str) -> str:
    """The rendered text up to the mark.

    :raises InvalidRequest: the template left the mark out
    """
    place = text.rfind(mark)
    if place < 0:
        refuse("messages", "end with one whose content this chat template doesn't show")
    kept = text[:place] if text[place + len(mark) :].startswith(" ") else text[:place].rstrip()
    # A template may show the message more than once.
    return kept.replace(mark + " ", "").replace(mark, "")
