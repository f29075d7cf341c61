"""The base of every travelling type, and the aliases they share."""

from typing import Literal

import msgspec

TokenIds = tuple[int, ...]

FinishReason = Literal[
    "stop", "length", "capacity", "deadline", "cancelled", "slow_reader", "error"
]
"""Why a choice ended. ``capacity``: the KV pool cannot hold it even alone.
``deadline``: the moment passed after which its answer is worthless."""


class Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of every travelling type: immutable, named fields only."""
