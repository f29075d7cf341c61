"""Admission chain: asks its members in order, and gives back what they reserved."""

from collections.abc import Callable, Sequence
from threading import Lock

import structlog

from .flow import Refusal, Usage
from .hookspecs.admission import Admission, Ask, Load, Settling

_log = structlog.get_logger(__name__)


class AdmissionChain:
    """One chain, ``door`` or ``budget``: every member admits, or the request is refused.

    One lock serves the chain: members see one call at a time, from any thread. Each
    member that admitted a request gets exactly one ``release`` for it: when a later
    member refuses it, or when the request is released.
    """

    def __init__(self, members: Sequence[tuple[str, Admission]]) -> None:
        """:param members: (name, member) in the order in which they are asked"""
        self._members = tuple(members)
        self._settling = [(n, m) for n, m in self._members if isinstance(m, Settling)]
        self._admitted: set[str] = set()
        self._lock = Lock()

    def __len__(self) -> int:
        """Requests admitted and not yet released."""
        return len(self._admitted)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._admitted

    def ask(self, ask: Ask, load: Load | Callable[[], Load]) -> Refusal | None:
        """``None`` when every member admits, else the refusal of the first that does not.

        A member that raises refuses (fail closed). Give ``load`` as a function to have
        it measured under the chain's lock: two requests then never see the same queue.
        """
        with self._lock:
            if ask.request_id in self._admitted:
                return _in_use(ask.request_id)
            facts = load() if callable(load) else load
            asked = 0
            try:
                for name, member in self._members:
                    refusal = _ask(name, member, ask, facts)
                    if refusal is not None:
                        return refusal
                    asked += 1
                self._admitted.add(ask.request_id)
                return None
            finally:  # refused, or the caller's thread was interrupted
                if ask.request_id not in self._admitted:
                    _release(self._members[:asked], ask.request_id)

    def settle(self, request_id: str, usage: Usage) -> None:
        """Tell the members that ask for it what an admitted request used; its release
        follows. Ids that are not admitted are ignored."""
        with self._lock:
            if request_id in self._admitted:
                for name, member in self._settling:
                    _settle(name, member, request_id, usage)

    def release(self, request_id: str) -> None:
        """An admitted request ended; unknown or released ids are ignored."""
        with self._lock:
            if request_id in self._admitted:
                self._admitted.remove(request_id)
                _release(self._members, request_id)


def _ask(name: str, member: Admission, ask: Ask, load: Load) -> Refusal | None:
    try:
        answer: object = member.ask(ask, load)
    except Exception:  # noqa: BLE001  a stranger's code: whatever it raises, nothing is let in
        _log.exception("admission plugin raised", plugin=name, request_id=ask.request_id)
        return _failed(name)
    if answer is None or isinstance(answer, Refusal):
        return answer
    _log.error("admission plugin answered neither None nor a Refusal", plugin=name, answer=answer)
    return _failed(name)


def _release(members: Sequence[tuple[str, Admission]], request_id: str) -> None:
    """Newest reservation first; one that raises does not keep the others."""
    for name, member in reversed(members):
        try:
            member.release(request_id)
        except Exception:  # noqa: BLE001  a stranger's code; the others must still get theirs
            _log.exception("admission plugin raised", plugin=name, request_id=request_id)


def _settle(name: str, member: Settling, request_id: str, usage: Usage) -> None:
    try:
        member.settle(request_id, usage)
    except Exception:  # noqa: BLE001  a stranger's code; the others must still get theirs
        _log.exception("admission plugin raised", plugin=name, request_id=request_id)


def _failed(name: str) -> Refusal:
    return Refusal(
        plugin=name,
        reason="plugin_error",
        kind="server",
        message=f"the admission check {name!r} failed, so the request was not let in",
    )


def _in_use(request_id: str) -> Refusal:
    return Refusal(
        plugin="core",
        reason="duplicate_request_id",
        kind="invalid",
        message=f"a request with id {request_id!r} is being answered: choose another id",
        param="id",
    )
