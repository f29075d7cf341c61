"""Rotary embedding of a GGUF file, in the spelling of ``config.json``.

Linear and YaRN stretching are metadata. Llama 3's scaling is not: the converter stores
only the divisor of each frequency, from which its parameters are recovered here.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from enginebay.errors import ModelError

if TYPE_CHECKING:
    from .gguf_config import Metadata

_LLAMA3: Final = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""The values of every Llama 3 model; others are recovered from the divisors."""


def rope_entries(
    metadata: "Metadata", head_dim: int, factors: Sequence[float] | None
) -> dict[str, Any]:
    """``rope_theta``, ``rope_scaling`` and, for partial rotation, its fraction.

    :param factors: the file's divisors, one for each rotated pair
    :raises ModelError: a form of scaling that can't be expressed
    """
    dim = metadata.number("rope.dimension_count", head_dim)
    theta = float(metadata.number("rope.freq_base", 10000.0))
    entries: dict[str, Any] = {"rope_theta": theta, "rope_scaling": _scaling(metadata)}
    if dim != head_dim:
        entries["partial_rotary_factor"] = dim / head_dim
    if factors is not None and any(factor != 1.0 for factor in factors):
        if entries["rope_scaling"] is not None or len(factors) != dim // 2:
            _fail(metadata, f"{len(factors)} divisors beside {entries['rope_scaling']!r}")
        entries["rope_scaling"] = _recover_llama3(metadata, theta, dim, factors)
    return entries


def _scaling(metadata: "Metadata") -> dict[str, Any] | None:
    kind = metadata.get("rope.scaling.type", "linear")
    # Files older than the scaling table have the linear factor alone, under its own key.
    factor = metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear", 1.0))
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": float(factor)}
    if kind == "yarn":
        return _yarn(metadata)
    return _fail(metadata, repr(kind))


def _yarn(metadata: "Metadata") -> dict[str, Any]:
    factor = float(metadata.number("rope.scaling.factor"))
    original = metadata.get("rope.scaling.original_context_length")
    entries: dict[str, Any] = {"rope_type": "yarn", "factor": factor}
    if original:
        entries["original_max_position_embeddings"] = original
    for name in ("beta_fast", "beta_slow"):
        if (value := metadata.get(f"rope.scaling.yarn_{name}")) is not None:
            entries[name] = float(value)
    if metadata.get("rope.scaling.yarn_log_multiplier"):
        _fail(metadata, "'yarn' with a log multiplier")
    if metadata.get("rope.scaling.yarn_ext_factor", 1.0) not in (1.0, -1.0):
        _fail(metadata, "'yarn' with an extrapolation factor")
    weight = metadata.get("rope.scaling.yarn_attn_factor", metadata.get("rope.scaling.attn_factor"))
    if weight not in (None, 1.0):
        # There it multiplies YaRN's own factor, here it stands in its place.
        entries["attention_factor"] = float(weight) * (0.1 * math.log(factor) + 1.0)
    return entries


def llama3_divisors(theta: float, dim: int, scaling: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Divisors of the ``dim / 2`` frequencies (Llama 3 report, section 3.4.1, as code)."""
    waves = _per_wavelength(theta, dim) * scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((waves - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / scaling["factor"] + smooth))


def _per_wavelength(theta: float, dim: int) -> np.ndarray[Any, Any]:
    frequencies = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    return np.asarray(frequencies / (2 * math.pi))


def _recover_llama3(
    metadata: "Metadata", theta: float, dim: int, stored: Sequence[float]
) -> dict[str, Any]:
    """Find parameters whose divisors are the stored ones.

    Between its two plateaus, 1/divisor is linear in 1/wavelength; slope and intercept
    leave one of the three parameters free, so ``low_freq_factor`` is taken as 1.
    """
    divisors = np.asarray(stored, dtype=np.float64)
    factor = round(float(divisors.max()), 4)
    if factor <= 1.0:
        _fail(metadata, "divisors that do not stretch")
    candidates = [dict(_LLAMA3)]
    smooth = (1.0 / divisors - 1.0 / factor) / (1.0 - 1.0 / factor)
    between = (smooth > 1e-4) & (smooth < 1.0 - 1e-4)
    if between.sum() >= 2:
        slope, intercept = np.polyfit(_per_wavelength(theta, dim)[between], smooth[between], 1)
        candidates += [_from_line(float(slope), float(intercept))] if intercept < 0.0 else []
    for candidate in candidates:
        scaling = {"rope_type": "llama3", "factor": factor, **candidate}
        if np.allclose(llama3_divisors(theta, dim, scaling), divisors, rtol=1e-4, atol=0.0):
            return scaling
    return _fail(metadata, "a table of divisors that is not Llama 3's")


def _from_line(slope: float, intercept: float) -> dict[str, Any]:
    """Parameters for which ``smooth = slope / wavelength + intercept``."""
    return {
        "low_freq_factor": 1.0,
        "high_freq_factor": round(1.0 - 1.0 / intercept, 3),
        "original_max_position_embeddings": round(-slope / intercept),
    }


def _fail(metadata: "Metadata", what: str) -> NoReturn:
    msg = (
        f"{metadata.path}: rotary scaling by {what} can't be read from GGUF; "
        "use the model's safetensors"
    )
    raise ModelError(msg)
