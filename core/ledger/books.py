"""The ledger of a running engine: what was planned, what is reserved, what is in use.

Read by other threads than the step thread, and often (a metrics scrape asks for it):
what can't change is looked at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..hookspecs.executor import Accounting
from .holders import holders
from .lines import NAMES, Line, Part, Plan
from .process import resident

if TYPE_CHECKING:
    from ..engine import Engine

_ATTEMPTS: Final = 3


class Books:
    """One engine's ledger as plain data."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        executor = engine.executor
        self._accounting = executor if isinstance(executor, Accounting) else None
        self._plan = self._accounting.plan if self._accounting else Plan(lines=())
        host = self._plan.line("host").planned
        self._reserved = executor.memory() | ({"host": host} if host else {})
        self._weights = self._groups()

    def read(self) -> dict[str, Any]:
        """The ledger now; counts may change while they are read."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._read()
            except RuntimeError:  # a container of the step thread changed its size
                if attempt == _ATTEMPTS - 1:
                    raise
        return {}

    def _read(self) -> dict[str, Any]:
        engine = self._engine
        num_free, num_cached = engine.allocator.num_free, engine.blocks.num_cached
        used = engine.allocator.num_blocks - num_free
        held = holders(engine, self._block_bytes, self._plan.token_bytes, used)
        reserved = {**self._reserved, "runtime": self._buffers()}
        return {
            "lines": [_plain(line) for line in self._lines(reserved, used)],
            "planned": self._plan.total,
            "reserved": sum(reserved.values()),
            "kv": self._kv(held["sum"], used, num_cached, num_free),
            "swap": {
                "num_slots": engine.blocks.swap.num_slots,
                "num_used": engine.blocks.swap.num_used,
            },
            "process": self._process(reserved),
            "requests": held["requests"],
            "tenants": held["tenants"],
        }

    @property
    def _block_bytes(self) -> int:
        return self._plan.block_bytes

    def _lines(self, reserved: dict[str, int], used: int) -> list[Line]:
        slots = self._engine.blocks.swap.num_used
        peak = self._accounting.step_peak if self._accounting else (0, 0)
        allocated = {
            "weights": reserved.get("weights", 0),
            "kv": used * self._block_bytes,
            "swap": slots * self._block_bytes,
            "runtime": peak[0],
            "host": reserved.get("host", 0),
        }
        parts = {
            "weights": self._weights,
            "runtime": (Part(name=f"peak of a step of {peak[1]} tokens", num_bytes=peak[0]),),
        }
        names = [*NAMES, *(name for name in reserved if name not in NAMES)]
        return [
            msgspec.structs.replace(
                self._plan.line(name),
                reserved=reserved.get(name, 0),
                allocated=allocated.get(name, 0),
                parts=parts.get(name, ()),
            )
            for name in names
        ]

    def _kv(self, held: dict[str, int], used: int, cached: int, free: int) -> dict[str, int]:
        """The pool: blocks x block size = tokens held + rounding waste - shared positions."""
        size = self._engine.limits.block_size
        return {
            "block_size": size,
            "block_bytes": self._block_bytes,
            "token_bytes": self._plan.token_bytes,
            "num_blocks": self._engine.allocator.num_blocks,
            "used_blocks": used,
            "cached_blocks": cached,
            "free_blocks": free - cached,
            "shared_blocks": held["shared_blocks"],
            "logical_tokens": held["tokens"],
            "logical_bytes": held["logical_bytes"],
            "physical_bytes": used * self._block_bytes,
            "rounding_waste_tokens": held["blocks"] * size - held["tokens"],
        }

    def _process(self, reserved: dict[str, int]) -> dict[str, int | None]:
        """What the process took since before the load, and what no line explains of it."""
        own, mapped = resident()
        before = self._accounting.before_load if self._accounting else 0
        growth = own - before if own and before else None
        return {
            "own_bytes": own,
            "mapped_file_bytes": mapped,
            "before_load_bytes": before,
            "growth_bytes": growth,
            "residual_bytes": None if growth is None else growth - sum(reserved.values()),
        }

    def _buffers(self) -> int:
        if self._accounting is None:
            return self._reserved.get("runtime", 0)
        from .storages import bytes_by_line

        return bytes_by_line(self._accounting.holdings("runtime")).get("runtime", 0)

    def _groups(self) -> tuple[Part, ...]:
        if self._accounting is None:
            return ()
        from .rehearsal import grouped

        return grouped(self._accounting.holdings("weights"))


def _plain(line: Line) -> dict[str, Any]:
    """As it looks after a trip over the wire: lists, not tuples."""
    return {**msgspec.to_builtins(line), "parts": list(msgspec.to_builtins(line.parts))}
