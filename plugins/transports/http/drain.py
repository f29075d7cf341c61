"""Draining several engines at once, without waiting longer than one may."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import structlog

from enginebay.hookspecs.client import EngineClient

log = structlog.get_logger("enginebay.http")


async def drain_all(clients: Iterable[EngineClient], timeout: float, forced: asyncio.Event) -> bool:
    """Drain every client in a thread of its own; returns early once ``forced`` is set.

    :param timeout: seconds, as in ``EngineClient.drain``
    :return: whether every request finished in time
    """
    loop = asyncio.get_running_loop()
    futures = []
    for client in {id(client): client for client in clients}.values():
        future: asyncio.Future[bool] = loop.create_future()
        futures.append(future)
        thread = threading.Thread(
            target=_drain, args=(client, timeout, loop, future), name="http-drain", daemon=True
        )
        thread.start()
    everything = asyncio.gather(*futures)
    waiting = asyncio.create_task(forced.wait())
    both: set[asyncio.Future[Any]] = {everything, waiting}
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return everything.done() and all(everything.result())


def _drain(
    client: EngineClient,
    timeout: float,
    loop: asyncio.AbstractEventLoop,
    future: "asyncio.Future[bool]",
) -> None:
    try:
        finished = client.drain(timeout)
    except Exception:
        log.exception("an engine could not be drained")
        finished = False
    try:
        loop.call_soon_threadsafe(_settle, future, finished)
    except RuntimeError:
        log.debug("nobody waits for this drain any more")


def _settle(future: "asyncio.Future[bool]", finished: bool) -> None:
    if not future.done():
        future.set_result(finished)
