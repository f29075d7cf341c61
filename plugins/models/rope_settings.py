"""Reads the rotary embedding out of a ``config.json``, in every spelling in use.

``rope_scaling`` with ``type``, ``rope_type`` or both (then ``rope_type`` counts, as in
transformers), or ``rope_parameters``, which holds ``rope_theta`` too. A form that is
not known stops the start: nothing runs silently unscaled.
"""

import math
from typing import Any, NoReturn

from enginebay.errors import ModelError
from enginebay.hookspecs.model import RopeSpec

from .rope import KINDS
from .settings import Settings

ALIASES = {"su": "longrope"}
UNSCALED = {"rope_theta", "partial_rotary_factor"}
"""Keys that say nothing about scaling, so that no type need stand beside them."""


def read_rope(settings: Settings, head_dim: int, max_positions: int) -> RopeSpec:
    """The rotary embedding of a configuration.

    :param max_positions: the configuration's ``max_position_embeddings``
    :raises ModelError: an unknown type, a missing or unusable parameter
    """
    table = _Table(settings)
    kind = table.kind()
    partial = table.number("partial_rotary_factor", table.outer("partial_rotary_factor", 1.0))
    dim = int(head_dim * partial)
    if dim % 2 or not 2 <= dim <= head_dim or (kind == "dynamic" and dim == 2):
        table.fail("partial_rotary_factor", f"it would rotate {dim} of {head_dim} dimensions")
    original = table.original(kind, max_positions)
    factor = 1.0
    if kind in ("linear", "llama3", "dynamic"):
        factor = table.number("factor")
    elif kind in ("yarn", "longrope"):
        factor = table.number("factor", max_positions / original)
    return RopeSpec(
        kind=kind,
        theta=table.number("rope_theta", table.outer("rope_theta", 10000.0)),
        dim=dim,
        factor=factor,
        original_max_positions=original,
        parameters=_parameters(table, kind, dim, factor, original),
    )


def context_limit(rope: RopeSpec, max_positions: int) -> int:
    """Positions that the model can use, the stretching of its embedding included."""
    if rope.kind in ("linear", "dynamic"):
        return int(max_positions * rope.factor)
    if rope.kind == "yarn":
        return max(max_positions, int(rope.original_max_positions * rope.factor))
    return max_positions


def _parameters(
    table: "_Table", kind: str, dim: int, factor: float, original: int
) -> dict[str, Any]:
    """What the kind needs besides theta and factor, defaults filled in."""
    if kind == "llama3":
        return {name: table.number(name) for name in ("low_freq_factor", "high_freq_factor")}
    if kind == "yarn":
        return {
            "beta_fast": table.number("beta_fast", 32.0),
            "beta_slow": table.number("beta_slow", 1.0),
            "truncate": bool(table.get("truncate", True)),
            "attention_factor": _yarn_attention(table, factor),
        }
    if kind == "longrope":
        stretch = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
        return {
            "short_factor": table.divisors("short_factor", dim // 2),
            "long_factor": table.divisors("long_factor", dim // 2),
            "attention_factor": table.number("attention_factor", stretch),
        }
    return {}


def _yarn_attention(table: "_Table", factor: float) -> float:
    """What cosines and sines are multiplied with (YaRN, section 3.4)."""

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    inferred = mscale(1.0)
    if table.get("mscale") and table.get("mscale_all_dim"):
        inferred = mscale(table.number("mscale")) / mscale(table.number("mscale_all_dim"))
    return table.number("attention_factor", inferred)


class _Table:
    """The scaling table of a configuration, whichever key holds it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        config = settings.config
        self.key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
        table = config.get(self.key) or {}
        if not isinstance(table, dict):
            settings.fail(self.key, "it needs to be a table or null")
        if any(isinstance(value, dict) for value in table.values()):
            settings.fail(self.key, "rotary embeddings that differ by layer are not supported")
        self.values: dict[str, Any] = table

    def fail(self, name: str, needs: str) -> NoReturn:
        """:raises ModelError: names the key in its table, what it holds, what it needs"""
        held = repr(self.values[name]) if name in self.values else "missing"
        msg = (
            f"config.json of a {self.settings.model} model: {name!r} of {self.key!r} "
            f"is {held}; {needs}"
        )
        raise ModelError(msg)

    def get(self, name: str, default: Any = None) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def outer(self, name: str, default: float) -> float:
        """The same key beside the table, where older configurations keep it."""
        return self.settings.number(name, default)

    def kind(self) -> str:
        kind = self.get("rope_type", self.get("type"))
        if kind is None:
            scaled = {name for name, value in self.values.items() if value is not None} - UNSCALED
            if scaled:
                self.fail("rope_type", f"{sorted(scaled)} need it; one of {sorted(KINDS)}")
            return "default"
        kind = ALIASES.get(kind, kind) if isinstance(kind, str) else kind
        if kind not in KINDS:
            name = "rope_type" if self.values.get("rope_type") is not None else "type"
            self.fail(name, f"supported are {sorted([*KINDS, *ALIASES])}")
        return str(kind)

    def number(self, name: str, default: float | None = None) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.fail(name, "it needs to be a positive number")
        return float(value)

    def original(self, kind: str, max_positions: int) -> int:
        """The length that was trained on, before any stretching."""
        if kind not in ("llama3", "yarn", "longrope"):
            return max_positions
        name = "original_max_position_embeddings"
        inner = int(self.number(name, max_positions))
        return self.settings.integer(name, inner, minimum=2)

    def divisors(self, name: str, count: int) -> tuple[float, ...]:
        """One positive number for each rotated pair."""
        value = self.get(name)
        if not isinstance(value, list | tuple) or len(value) != count:
            self.fail(name, f"it needs to be a list of {count} numbers")
        if not all(isinstance(one, int | float) and one > 0 for one in value):
            self.fail(name, "its numbers need to be positive")
        return tuple(float(one) for one in value)
