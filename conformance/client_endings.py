"""How requests end before their time: cancelled, unread, drained, or with the engine."""

import random
import time
from typing import Final

import msgspec

from enginebay.errors import EngineStopped

from .check import CheckList, require
from .client_caller import Caller, plain_request
from .client_stage import MakeStage, Setting

ENDING_CHECKS: Final = CheckList()


@ENDING_CHECKS.add("client/cancel")
def cancelled_at_any_moment(make: MakeStage) -> None:
    """A request can be cancelled at any moment, twice, and when nobody knows it."""
    caller = Caller(make(Setting(max_sequences=2)))
    names = [f"r{number}" for number in range(8)]
    for name in names:
        caller.submit(name, 9, 80, n=2)
    clause = "client/cancel"
    caller.client.cancel("nobody")
    caller.client.cancel("r7")
    caller.has(3, "r0")
    for name in ("r0", "r0", "r3", "r7"):
        caller.client.cancel(name)
    caller.client.cancel("r4", "slow_reader")
    began = time.monotonic()
    for answer in caller.ended("r0", "r3", "r4", "r7"):
        name = answer.request.id
        reason = "slow_reader" if name == "r4" else "cancelled"
        told = f"{name}: {answer.reasons} after {answer.num_tokens} tokens"
        require(answer.reasons == (reason, reason), clause, told)
        require(answer.num_tokens < 160, clause, told)
    took = time.monotonic() - began
    require(took < caller.stage.patience / 2, clause, f"cancelling took {took:.1f} s")
    for answer in caller.ended("r1", "r2"):
        require(answer.reasons == ("length", "length"), clause, "a neighbour was disturbed")
    caller.client.cancel("r1")
    for name in ("r5", "r6"):
        caller.client.cancel(name)
    caller.ended(*names)
    caller.quiet(clause)
    caller.close()


@ENDING_CHECKS.add("client/cancel-frees")
def everything_comes_back(make: MakeStage) -> None:
    """After cancels at random moments nobody runs or waits and no block is used."""
    noise = random.Random(20)
    caller = Caller(make(Setting(num_blocks=24, max_sequences=3)))
    names = [f"r{number}" for number in range(30)]
    for number, name in enumerate(names):
        caller.submit(name, 1 + noise.randrange(20), 1 + noise.randrange(40), n=1 + number % 3)
        if noise.random() < 0.7:
            time.sleep(noise.random() * 0.005)
            caller.client.cancel(noise.choice(names[: number + 1]))
    for name in names[::2]:
        caller.client.cancel(name)
    caller.ended(*names)
    caller.quiet("client/cancel-frees")
    caller.close()


@ENDING_CHECKS.add("client/window")
def unread_tokens_are_bounded(make: MakeStage) -> None:
    """With a window of 4, four tokens come; after each acknowledgement four more."""
    caller = Caller(make(Setting()))
    caller.submit("slow", 5, 10, window=4)
    caller.submit("fast", 5, 30)
    clause = "client/window"
    for written, expected in ((0, 4), (4, 8)):
        if written:
            caller.read("slow", written)
        there = caller.has(expected, "slow")
        require(there, clause, f"{expected} tokens did not come after {written} were written")
        time.sleep(0.06)
        count = caller.answers.of["slow"].num_tokens
        told = f"{count} tokens came while {written} were written and the window is 4"
        require(count == expected, clause, told)
    caller.read("slow", 8)
    (answer,) = caller.ended("slow")
    require(answer.reasons == ("length",), clause, f"ended with {answer.reasons}")
    caller.ended("fast")
    caller.close()


@ENDING_CHECKS.add("client/slow-reader")
def slow_readers_are_cut(make: MakeStage) -> None:
    """Who takes nothing for ``stall_seconds`` is cut with reason ``slow_reader``."""
    caller = Caller(make(Setting(stall_seconds=0.2)))
    caller.submit("slow", 5, 30, window=4)
    caller.submit("unbounded", 5, 30)
    clause = "client/slow-reader"
    slow, unbounded = caller.ended("slow", "unbounded")
    told = f"{slow.reasons} after {slow.num_tokens} tokens"
    require(slow.reasons == ("slow_reader",) and slow.num_tokens == 4, clause, told)
    told = f"without a window: {unbounded.reasons}"
    require(unbounded.reasons == ("length",), clause, told)
    caller.quiet(clause)
    caller.close()


@ENDING_CHECKS.add("client/snapshot")
def snapshots_follow(make: MakeStage) -> None:
    """Counts follow what runs, everything is plain data, and a request has a timeline."""
    caller = Caller(make(Setting(max_sequences=2)))
    clause = "client/snapshot"
    idle = caller.client.snapshot()
    require(idle.num_blocks == 64, clause, f"{idle.num_blocks} blocks, of 64")
    for number in range(4):
        caller.submit(f"r{number}", 9, 60)
    caller.has(1, "r0", "r1")
    busy = caller.client.snapshot()
    counts = (busy.num_running, busy.num_waiting)
    require(counts == (2, 2), clause, f"running and waiting are {counts}, of 2 seats and 4")
    require(busy.num_used_blocks > 0, clause, "two run and no block is used")
    for request_id in (None, "r0", "nobody"):
        msgspec.msgpack.encode(caller.client.snapshot(request_id))
    require(caller.client.snapshot("r0").timeline, clause, "r0 has no timeline")
    require(not caller.client.snapshot("nobody").timeline, clause, "nobody has a timeline")
    for number in range(4):
        caller.client.cancel(f"r{number}")
    caller.ended(*[f"r{number}" for number in range(4)])
    caller.quiet(clause)
    caller.close()


@ENDING_CHECKS.add("client/drain")
def draining_lets_requests_finish(make: MakeStage) -> None:
    """Drain refuses new requests, waits for the others, and closes; twice does no harm."""
    caller = Caller(make(Setting()))
    clause = "client/drain"
    health = caller.client.health()
    told = f"before: {health}"
    require(health.state == "ready" and health.ready and health.alive, clause, told)
    caller.submit("one", 6, 20)
    caller.submit("two", 6, 10, n=2)
    require(
        caller.client.drain(caller.stage.patience), clause, "requests that could finish did not"
    )
    for answer in caller.ended("one", "two"):
        require(set(answer.reasons) == {"length"}, clause, f"ended with {answer.reasons}")
    health = caller.client.health()
    closed = health.state == "closed" and not health.alive and not health.ready
    require(closed, clause, f"after: {health}")
    try:
        caller.client.submit(plain_request("late", 4, 4))
    except EngineStopped:
        pass
    else:
        require(False, clause, "a closed engine accepted a request")
    for _ in range(3):
        require(caller.client.drain(0.0), clause, "a closed engine has something to drain")
    caller.client.cancel("one")
    caller.read("one", 3)
    caller.answers.check()


@ENDING_CHECKS.add("client/drain-cuts")
def draining_has_an_end(make: MakeStage) -> None:
    """What is unfinished when the time is over ends with an error event."""
    caller = Caller(make(Setting(max_sequences=1)))
    for number in range(3):
        caller.submit(f"r{number}", 6, 80)
    caller.has(2, "r0")
    clause = "client/drain-cuts"
    require(not caller.client.drain(0.01), clause, "drain says that all was finished")
    for answer in caller.ended("r0", "r1", "r2"):
        error = answer.ended.error if answer.ended else None
        require(error is not None and error.kind == "engine", clause, f"ended with {error}")


@ENDING_CHECKS.add("client/failure")
def a_failed_engine_says_so(make: MakeStage) -> None:
    """When the engine fails, every request ends with an error and health tells why."""
    stage = make(Setting())
    caller = Caller(stage)
    names = [f"r{number}" for number in range(6)]
    for name in names:
        caller.submit(name, 5, 80)
    caller.has(2, "r0")
    stage.wreck()
    clause = "client/failure"
    for answer in caller.ended(*names):
        error = answer.ended.error if answer.ended else None
        require(error is not None and error.kind == "engine", clause, f"ended with {error}")
    health = caller.client.health()
    told = f"health is {health}"
    dead = health.state == "failed" and not health.alive and not health.ready and health.message
    require(dead, clause, told)
    try:
        caller.client.submit(plain_request("late", 4, 4))
    except EngineStopped:
        return
    require(False, clause, "a failed engine accepted a request")
