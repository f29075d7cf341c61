"""Blame: a plugin that raises on a request fails that request alone, by name."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from .errors import InvalidRequest, RequestRefused
from .flow import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

log = structlog.get_logger(__name__)


@contextmanager
def blamed(plugin: str) -> Iterator[None]:
    """Run a plugin's code on the way in.

    :raises InvalidRequest: the plugin's own finding about the request
    :raises RequestRefused: in place of whatever else the plugin raised
    """
    try:
        yield
    except InvalidRequest:
        raise
    except Exception as error:
        log.exception("plugin failed on a request", plugin=plugin)
        raise RequestRefused(
            Refusal(
                plugin=plugin,
                reason="plugin_error",
                kind="server",
                message=f"the plugin {plugin!r} failed on this request",
            )
        ) from error
