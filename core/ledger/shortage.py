"""Out of memory, said so that one can act: the phase, the ledger line, the fix."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..hookspecs.model import Limits
    from ..sequence import Sequence


@contextmanager
def on_line(phase: str, line: str, fix: str) -> Iterator[None]:
    """Name phase and line when memory runs out inside; other errors pass.

    :raises CapacityError: instead of what the allocation raised
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        msg = f"{phase}: out of memory on the ledger line {line}: {error}; {fix}"
        raise CapacityError(msg) from error


def kv_shortage(sequence: Sequence, limits: Limits, missing: int) -> str:
    """Why a sequence ends with reason ``capacity``.

    :param missing: KV blocks that it lacks although nobody else holds any; 0: as many as
        its tokens need beyond the pool
    """
    phase = "decode growth" if sequence.num_generated else "prefill admission"
    needed = -(-sequence.num_tokens // limits.block_size)
    missing = missing or max(needed - limits.num_blocks, 1)
    unit = "block is" if missing == 1 else "blocks are"
    return (
        f"{phase}: out of memory on the ledger line kv: with {sequence.num_tokens} tokens "
        f"{missing} KV {unit} missing, the pool has {limits.num_blocks} of "
        f"{limits.block_size} tokens and no other sequence gives any; raise engine.kv_memory "
        "(or engine.num_blocks), or ask for fewer tokens"
    )


def _is_memory(error: BaseException) -> bool:
    """Torch says so by its own class on a GPU and by a RuntimeError's text on a CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    told = str(error).lower()
    return "allocate memory" in told or "out of memory" in told
