"""Rotary position embedding: how fast each pair of dimensions turns, by position.

RoFormer (Su et al., arXiv 2104.09864) and its stretched forms: linear interpolation
(Chen et al., arXiv 2306.15595), dynamic NTK, YaRN (Peng et al., arXiv 2309.00071), the
Llama 3.1 rule and LongRoPE (Ding et al., arXiv 2402.13753). The numbers agree with
transformers in float32.

One rule makes all of them stateless: *the rotation of a position depends on nothing
but that position.* It matters to the two forms whose frequencies grow with the
sequence. A position ``p`` at or past the original length is rotated as for a sequence
of ``p + 1`` tokens, earlier ones as for the original length. That is what transformers
computes when it decodes token by token; its single prefill past the original length
rotates every position as for the whole prompt, which no chunked, cached or batched
engine can reproduce.
"""

import itertools
import math
from collections.abc import Callable
from typing import Final

import torch

from enginebay.hookspecs.model import RopeSpec

Frequencies = Callable[[torch.Tensor], torch.Tensor]
"""int64 positions [T] -> radians a position, float32 [D / 2] or [T, D / 2]."""
Place = Callable[[torch.Tensor], torch.Tensor]
"""Puts a tensor that stays in memory on the device, and tells the ledger of it."""
LookUp = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""int64 positions [T], a table [P, D] -> its rows [T, D]."""

TABLE_BYTES: Final = 32 * 2**20
"""A larger table than this is not kept: 131,072 positions of 64 dimensions."""


class Rotary:
    """Cosines and sines of a batch's positions.

    They are computed once for every position that the model has, and looked up: a step
    that decodes spends more on launching four small operations than on one lookup.
    """

    def __init__(
        self,
        spec: RopeSpec,
        device: torch.device,
        keep: Callable[[str, torch.Tensor], torch.Tensor] = lambda name, tensor: tensor,
        max_positions: int = 0,
        look_up: LookUp = lambda positions, table: table.index_select(0, positions),
    ) -> None:
        """
        :param keep: told of every tensor that stays; see ``Builder.keep``
        :param max_positions: of the table; 0, or too many for one: computed when asked
        :param look_up: takes rows from the table, as the op ``embedding`` does
        """
        self.scale = float(spec.parameters.get("attention_factor", 1.0))
        self.table: torch.Tensor | None = None
        """float32 [max_positions, rotary_dim]"""
        self._look_up = look_up
        if 0 < 4 * spec.dim * max_positions <= TABLE_BYTES:
            passing = KINDS[spec.kind](spec, lambda tensor: tensor.to(device))
            positions = torch.arange(max_positions, device=device)
            self.table = keep("rotary.table", self._computed(positions, passing))
            return
        names = itertools.count()
        self._frequencies = KINDS[spec.kind](
            spec, lambda tensor: keep(f"rotary.{next(names)}", tensor.to(device))
        )

    def cos_sin(self, positions: torch.Tensor) -> torch.Tensor:
        """The table that ``Attention.write`` takes.

        :param positions: int64 [T]
        :return: float32 [T, rotary_dim]: cosines, then sines
        """
        if self.table is not None:
            return self._look_up(positions, self.table)
        return self._computed(positions, self._frequencies)

    def _computed(self, positions: torch.Tensor, frequencies: Frequencies) -> torch.Tensor:
        angles = positions.float()[:, None] * frequencies(positions)
        return torch.cat((angles.cos(), angles.sin()), dim=-1) * self.scale


def _exponents(dim: int) -> torch.Tensor:
    """float32 [D / 2]: 0 .. 1 (exclusive), the power of theta of each pair."""
    return torch.arange(0, dim, 2, dtype=torch.int64).float() / dim


def _plain(spec: RopeSpec) -> torch.Tensor:
    return 1.0 / spec.theta ** _exponents(spec.dim)


def _fixed(frequencies: torch.Tensor, place: Place) -> Frequencies:
    """The same frequencies at every position."""
    placed = place(frequencies)

    def at(_: torch.Tensor) -> torch.Tensor:
        return placed

    return at


def default(spec: RopeSpec, place: Place) -> Frequencies:
    """theta ** (-2 i / D) for pair i."""
    return _fixed(_plain(spec), place)


def linear(spec: RopeSpec, place: Place) -> Frequencies:
    """Positions divided by ``factor``."""
    return _fixed(_plain(spec) / spec.factor, place)


def llama3(spec: RopeSpec, place: Place) -> Frequencies:
    """Long wavelengths divided by ``factor``, short ones kept, a ramp between."""
    plain = _plain(spec)
    low, high = spec.parameters["low_freq_factor"], spec.parameters["high_freq_factor"]
    wavelengths = 2 * math.pi / plain
    turns = spec.original_max_positions / wavelengths
    smooth = (turns - low) / (high - low)
    ramp = (1 - smooth) * plain / spec.factor + smooth * plain
    stretched = torch.where(turns < low, plain / spec.factor, ramp)
    return _fixed(torch.where(turns > high, plain, stretched), place)


def yarn(spec: RopeSpec, place: Place) -> Frequencies:
    """Fast pairs kept, slow pairs interpolated, a linear ramp over the pairs between."""

    def pair(rotations: float) -> float:
        """The (fractional) pair that turns so often over the original length."""
        length = spec.original_max_positions / (rotations * 2 * math.pi)
        return spec.dim * math.log(length) / (2 * math.log(spec.theta))

    low, high = pair(spec.parameters["beta_fast"]), pair(spec.parameters["beta_slow"])
    if spec.parameters["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.dim - 1)
    if low == high:
        high += 0.001
    pairs = torch.arange(spec.dim // 2, dtype=torch.float32)
    kept = 1 - ((pairs - low) / (high - low)).clamp(0, 1)
    plain = _plain(spec)
    return _fixed(plain / spec.factor * (1 - kept) + plain * kept, place)


def dynamic(spec: RopeSpec, place: Place) -> Frequencies:
    """A base that grows with the position once that is past the original length.

    base(p) = theta * (factor * n / L - (factor - 1)) ** (D / (D - 2)), n = max(p + 1, L).
    In float64, because powers in float32 differ between a vector's body and its tail.
    """
    exponents = place(_exponents(spec.dim).double())
    growth = spec.dim / (spec.dim - 2)

    def at(positions: torch.Tensor) -> torch.Tensor:
        length = (positions + 1).clamp(min=spec.original_max_positions).double()
        stretch = spec.factor * length / spec.original_max_positions - (spec.factor - 1)
        log_base = math.log(spec.theta) + growth * stretch.log()
        return torch.exp(-log_base[:, None] * exponents).float()

    return at


def longrope(spec: RopeSpec, place: Place) -> Frequencies:
    """A divisor for every pair: ``short_factor``, from the original length on ``long_factor``."""
    theta = spec.theta ** _exponents(spec.dim)
    short, long = (
        place(1.0 / (torch.tensor(spec.parameters[name], dtype=torch.float32) * theta))
        for name in ("short_factor", "long_factor")
    )

    def at(positions: torch.Tensor) -> torch.Tensor:
        past = (positions >= spec.original_max_positions)[:, None]
        return torch.where(past, long, short)

    return at


KINDS: dict[str, Callable[[RopeSpec, Place], Frequencies]] = {
    "default": default,
    "linear": linear,
    "llama3": llama3,
    "yarn": yarn,
    "dynamic": dynamic,
    "longrope": longrope,
}
