"""What every admission member must do. Each check takes ``make(context)``.

A member stands before a ``Lobby``. Bounds differ, so most checks first fill the member
with heavy requests until it refuses; one that never does is not judged by them.
"""

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from enginebay.admission import AdmissionChain
from enginebay.errors import StackError
from enginebay.flow import Refusal
from enginebay.hookspecs.admission import Ask, Load

from .check import CheckList, Skip, require
from .effort import Effort
from .lobby import CONTEXT, HOUR, LIMITS, NAME, Lobby, MakeAdmission, random_day, weight

ADMISSION_CHECKS: Final = CheckList()
MAX_LEARNT: Final = 0.1
"""How far a bound may move with what a member saw, e.g. how long answers are."""
MAX_GROWTH: Final = 2.0
"""How much more an answer may cost with a hundred times as many held."""


@ADMISSION_CHECKS.add("admission/idle")
def an_idle_engine_is_open(make: MakeAdmission) -> None:
    """A light request that is the only one is let in, the first time and any time."""
    lobby = Lobby(make)
    for number in range(50):
        refusal = lobby.ask(lobby.light(f"r{number}", tenant=f"t{number % 3}"))
        require(refusal is None, "admission/idle", f"request {number} was refused: {refusal}")
        lobby.empty()
        lobby.now += HOUR


@ADMISSION_CHECKS.add("admission/door")
def the_door_knows_no_length(make: MakeAdmission) -> None:
    """At the door it judges without a prompt's length, or it refuses to be built there."""
    try:
        lobby = Lobby(make, dataclasses.replace(CONTEXT, chain="door"))
    except StackError as error:
        raise Skip(f"it is for budget alone: {error}") from None
    for number, max_tokens in enumerate((None, 4)):
        ask = lobby.light(f"r{number}", num_prompt_tokens=None, max_tokens=max_tokens)
        refusal = lobby.ask(replace(ask, prompt_chars=16))
        require(refusal is None, "admission/door", f"a light request was refused: {refusal}")
        lobby.empty()
        lobby.now += HOUR


@ADMISSION_CHECKS.add("admission/refusals")
def refusals_say_it_all(make: MakeAdmission) -> None:
    """Refusals name member and reason; those for now also limit, current value and when."""
    lobby = Lobby(make)
    found = [lobby.fill(), *(lobby.ask(ask) for ask in lobby.monsters())]
    lobby.empty()
    found += [lobby.ask(ask) for ask in lobby.monsters()]
    for refusal in found:
        if refusal is not None:
            _check_words(refusal)


@ADMISSION_CHECKS.add("admission/steady")
def a_refusal_stands(make: MakeAdmission) -> None:
    """Asked again at the same moment, with nothing changed, it refuses again."""
    lobby, _ = _full(make)
    for _ in range(20):
        again = lobby.ask(lobby.heavy("again"))
        require(again is not None, "admission/steady", "it was let in without any change")


@ADMISSION_CHECKS.add("admission/release")
def what_ends_makes_room(make: MakeAdmission) -> None:
    """After everything ended and an hour passed, about as much is let in as at first."""
    lobby, _ = _full(make)
    first = len(lobby.held)
    lobby.empty()
    lobby.now += HOUR
    _require_room(lobby, first, "admission/release")


@ADMISSION_CHECKS.add("admission/refused")
def the_refused_take_nothing(make: MakeAdmission) -> None:
    """Five hundred refusals leave as much room as there was; nobody releases them."""
    lobby, _ = _full(make)
    first = len(lobby.held)
    for number in range(500):
        lobby.ask(lobby.heavy(f"refused{number}"))
    lobby.empty()
    lobby.now += HOUR
    _require_room(lobby, first, "admission/refused")


@ADMISSION_CHECKS.add("admission/turned-away")
def the_turned_away_take_nothing(make: MakeAdmission) -> None:
    """What a later member refuses is released once, and leaves as much room as there was."""
    first = len(_full(make)[0].held)
    lobby = Lobby(make)
    chain = AdmissionChain([(NAME, lobby.member), ("later", _Closed())])
    for number in range(500):
        chain.ask(lobby.heavy(f"away{number}"), lobby.load())
    lobby.now += HOUR
    _require_room(lobby, first, "admission/turned-away")


@ADMISSION_CHECKS.add("admission/retry-after")
def coming_back_is_worth_it(make: MakeAdmission) -> None:
    """Who comes back when told, to an engine that has finished meanwhile, is let in."""
    lobby, refusal = _full(make)
    lobby.empty()
    lobby.now += refusal.retry_after or 0.0
    again = lobby.ask(lobby.heavy("again"))
    require(again is None, "admission/retry-after", f"after {refusal.retry_after} s: {again}")


@ADMISSION_CHECKS.add("admission/tenants")
def tenants_are_apart(make: MakeAdmission) -> None:
    """A caller's own limit (429) is met by the caller's own requests, by nobody else's."""
    lobby, refusal = _full(make)
    if refusal.kind != "caller":
        raise Skip(f"its limit is the server's: {refusal.reason}")
    other = lobby.ask(lobby.heavy("other", tenant="somebody else"))
    told = f"one tenant's requests made another's be refused: {other}"
    require(other is None or other.kind != "caller", "admission/tenants", told)


@ADMISSION_CHECKS.add("admission/repeats")
def the_same_is_answered_alike(make: MakeAdmission) -> None:
    """The same requests at the same times get the same answers: no dice, no other clock."""
    runs = [random_day(make) for _ in range(2)]
    for number, (one, other) in enumerate(zip(*runs, strict=True)):
        require(one == other, "admission/repeats", f"request {number}: {one}, then {other}")


@ADMISSION_CHECKS.add("admission/threads")
def threads_are_all_one(make: MakeAdmission) -> None:
    """Through the chain it is asked on one thread and released on another."""
    first = len(_full(make)[0].held)
    lobby = Lobby(make)
    chain = AdmissionChain([(NAME, lobby.member)])
    asks = [lobby.heavy(f"thread{number}") for number in range(80)]

    def hold(mine: list[Ask]) -> None:
        for ask in mine:
            chain.ask(ask, lobby.load)

    def let_go(mine: list[Ask]) -> None:
        for ask in mine:
            chain.release(ask.request_id)

    _on_threads(hold, asks)
    _on_threads(let_go, asks)
    require(len(chain) == 0, "admission/threads", f"{len(chain)} requests are still held")
    lobby.now += HOUR
    _require_room(lobby, first, "admission/threads")


@ADMISSION_CHECKS.add("admission/growth")
def memory_is_bounded(make: MakeAdmission) -> str:
    """10,000 requests of as many tenants leave no more behind than 5,000 did."""
    lobby = Lobby(make)
    weights = []
    for number in range(10_000):
        lobby.ask(lobby.light(f"r{number}", tenant=f"tenant{number}"))
        lobby.empty()
        lobby.now += 60.0
        if number in (4999, 9999):
            weights.append(weight(lobby.member))
    half, full = weights
    told = f"{half} entries after 5,000 requests, {full} after 10,000"
    require(full <= half + 16, "admission/growth", told)
    return told


@ADMISSION_CHECKS.add("admission/cost")
def an_answer_costs_the_same(make: MakeAdmission) -> None:
    """A hundred times as many held: an answer costs twice at most."""
    few, many = _effort(make, 20), _effort(make, 2000)
    told = f"{few} lines with 20 held, {many} with 2000"
    require(many <= MAX_GROWTH * few, "admission/cost", told)


class _Closed:
    """A later member that lets nobody in."""

    def ask(self, ask: Ask, load: Load) -> Refusal:
        return Refusal(plugin="later", reason="closed", kind="server", message="closed")

    def release(self, request_id: str) -> None:
        """It never reserved anything."""


def _full(make: MakeAdmission) -> tuple[Lobby, Refusal]:
    """A lobby that was filled until its member refused for now."""
    lobby = Lobby(make)
    refusal = lobby.fill()
    if refusal is None or refusal.kind == "invalid":
        raise Skip("it bounds nothing that many requests together fill")
    return lobby, refusal


def _require_room(lobby: Lobby, first: int, clause: str) -> None:
    room = lobby.room()
    near = abs(room - first) <= MAX_LEARNT * first
    require(near, clause, f"{first} requests found room at first, {room} later")


def _check_words(refusal: Refusal) -> None:
    clause = "admission/refusals"
    require(refusal.plugin == NAME, clause, f"{refusal.plugin!r} refused instead of {NAME!r}")
    word = refusal.reason.isidentifier() and bool(refusal.message)
    require(word, clause, f"no reason to count by, or no message: {refusal}")
    if refusal.kind == "invalid":
        told = f"it can never succeed, and yet may be tried again: {refusal}"
        require(refusal.retry_after is None, clause, told)
        return
    for field in ("limit", "current", "retry_after"):
        value = getattr(refusal, field)
        said = value is not None and math.isfinite(value) and value >= 0
        require(said, clause, f"{field} is {value} in {refusal}")
    require(refusal.retry_after, clause, f"come back at once, says {refusal}")


def _on_threads(work: Callable[[list[Ask]], None], asks: list[Ask]) -> None:
    threads = [threading.Thread(target=work, args=(asks[part::4],)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _effort(make: MakeAdmission, num_held: int) -> int:
    """Lines that an answer and a release take beside so many held by as many tenants."""
    lobby = Lobby(make, dataclasses.replace(CONTEXT, limits=replace(LIMITS, max_sequences=9999)))
    for number in range(num_held):
        lobby.ask(lobby.light(f"held{number}", tenant=f"tenant{number}"))
    effort = Effort()
    for number in range(10):
        ask = lobby.light(f"more{number}", tenant=f"other{number}")
        load = lobby.load()
        with effort.counting():
            if lobby.member.ask(ask, load) is None:
                lobby.member.release(ask.request_id)
    return effort.total
