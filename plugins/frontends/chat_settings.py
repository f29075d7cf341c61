"""What the stack file says about chat templates, checked when the engine starts."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from enginebay.errors import StackError

_WHERE: Final = "[options.frontends.hf-chat]"


def sources(
    chat_template: str | None, default: str, templates: Mapping[str, str]
) -> Mapping[str, str]:
    """The templates to use, by name.

    :raises StackError: the override is no readable file, or the default is not there
    """
    if chat_template is not None:
        return {default: _read(chat_template)}
    if default != "default" and default not in templates:
        known = ", ".join(sorted(templates)) or "none"
        msg = f"{_WHERE}: default_template is {default!r}; the model's templates are: {known}"
        raise StackError(msg)
    return templates


def clock(date: str | None) -> Callable[[], datetime]:
    """What ``strftime_now`` asks.

    :raises StackError: ``date`` is not an ISO date
    """
    if date is None:
        return datetime.now
    try:
        fixed = datetime.fromisoformat(date)
    except ValueError as error:
        msg = f"{_WHERE}: date is {date!r}; write it as 2025-01-31 or 2025-01-31T12:00:00"
        raise StackError(msg) from error
    return lambda: fixed


def _read(chat_template: str) -> str:
    if "{{" in chat_template or "{%" in chat_template:
        return chat_template
    try:
        return Path(chat_template).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        msg = (
            f"{_WHERE}: chat_template {chat_template!r} can't be read ({error}); "
            "give the path of a template file, or Jinja text"
        )
        raise StackError(msg) from error
