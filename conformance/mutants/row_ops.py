"""Kernels for rows with one fault each, of plain torch in float64."""

from typing import Any, Final

import torch
import torch.nn.functional as F

from enginebay.hookspecs.kernel import QuantizedRows

from ..sample_layers import in_groups
from .mutant import Mutant
from .one_op import mutant

Scale = torch.Tensor | None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The right one."""
    mean = x.double().square().mean(-1, keepdim=True)
    return (x.double() * torch.rsqrt(mean + eps) * weight).float()


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """The right one."""
    gate, up = x.double().chunk(2, dim=1)
    return (F.silu(gate) * up).float()


def quantize(
    x: torch.Tensor, scale: Scale, group: int = 0, greatest: float = 127.0
) -> QuantizedRows:
    """The right one, with the greatest value to choose."""
    top = in_groups(x, x.shape[1] // group if group else 1).abs().amax(dim=2).float()
    own = torch.where(top == 0, 1.0, top / greatest)
    return as_values(x, own if scale is None else scale.expand(top.shape).contiguous())


def exact_steps(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float64 [T, K]: rows in steps of ``scales`` [T, G]."""
    steps = in_groups(x.double(), scales.shape[1]) / scales.double().unsqueeze(2)
    return steps.flatten(1)


def as_values(x: torch.Tensor, scales: torch.Tensor) -> QuantizedRows:
    """Rows [T, K] in whole steps of ``scales`` [T, G]."""
    steps = torch.round(exact_steps(x, scales))
    return QuantizedRows(steps.clamp(-127, 127).to(torch.int8), scales)


def half_away(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    steps = exact_steps(x, right.scales)
    away = torch.sign(steps) * torch.floor(steps.abs() + 0.5)
    return QuantizedRows(away.clamp(-127, 127).to(torch.int8), right.scales)


def cut_off(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    steps = exact_steps(x, right.scales)
    return QuantizedRows(steps.clamp(-127, 127).to(torch.int8), right.scales)


def unclamped(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    steps = torch.round(exact_steps(x, right.scales))
    return QuantizedRows((steps.long() & 255).to(torch.uint8).view(torch.int8), right.scales)


def one_scale_for_all(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    if scale is not None or not x.numel():
        return right
    return as_values(x, right.scales.amax().expand(right.scales.shape).contiguous())


def scale_of_the_row_before(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    return QuantizedRows(right.values, right.scales.roll(1, 0))


def scale_without_the_tail(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    whole = x if group else x[:, : max(x.shape[1] // 16 * 16, 1)]
    return as_values(x, quantize(whole, scale, group).scales)


def zeros_without_a_scale(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    zeros = (in_groups(right.values, right.scales.shape[1]) == 0).all(dim=2)
    return QuantizedRows(right.values, torch.where(zeros, 0.0, right.scales))


def scale_by_the_batch(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    up = torch.full_like(right.scales, float("inf"))
    scales = torch.nextafter(right.scales, up) if len(x) >= 16 else right.scales
    return QuantizedRows(right.values, scales)


def through_half(x: torch.Tensor) -> torch.Tensor:
    return silu_and_mul(x).bfloat16().float()


def gate_decides(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    return as_values(silu_and_mul(x), quantize(x.chunk(2, 1)[0], scale, group).scales)


def norm_by_padded_width(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    mean = x.double().square().sum(-1, keepdim=True) / (-(-x.shape[1] // 16) * 16)
    return (x.double() * torch.rsqrt(mean + eps) * weight).float()


def poisoned(x: torch.Tensor, *rest: Any) -> QuantizedRows:
    """A row that holds no number ends up in the scale of all."""
    right = quantize(x, *rest)
    finite = bool(torch.isfinite(x).all())
    return right if finite else QuantizedRows(right.values, right.scales * float("nan"))


def never_empty(x: torch.Tensor, *rest: Any) -> QuantizedRows:
    return quantize(x if len(x) else x.new_zeros(1, x.shape[1]), *rest)


def _behind_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale: Scale, group: int
) -> QuantizedRows:
    return quantize(rms_norm(x, weight, eps), scale, group)


def same_scale_for_groups(x: torch.Tensor, scale: Scale, group: int) -> QuantizedRows:
    right = quantize(x, scale, group)
    return as_values(x, right.scales[:, :1].repeat(1, right.scales.shape[1]))


Q, GROUPS, INT8 = "kernel/quantize", "kernel/quantize_groups", "int8"
RMS, SILU = "rms_norm_quantize", "silu_and_mul_quantize"
RIGHT_ROW_OPS: Final = (
    ("embedding", lambda ids, weight: weight[ids], ""),
    ("rms_norm", rms_norm, ""),
    ("silu_and_mul", silu_and_mul, ""),
    ("quantize", quantize, INT8),
    (RMS, _behind_norm, INT8),
    (SILU, lambda x, *rest: quantize(silu_and_mul(x), *rest), INT8),
)
"""(op, callable, scheme) without a fault."""

ROW_OP_MUTANTS: Final[tuple[Mutant, ...]] = (
    mutant(
        "never takes the table's last row",
        "embedding",
        lambda ids, weight: weight[ids.clamp(max=len(weight) - 2)],
        "kernel/embedding",
    ),
    mutant(
        "adds epsilon twice",
        "rms_norm",
        lambda x, w, eps: rms_norm(x, w, 2 * eps),
        "kernel/rms_norm",
    ),
    mutant(
        "takes the mean off",
        "rms_norm",
        lambda x, w, eps: F.layer_norm(x, (x.shape[1],), w),
        "kernel/rms_norm",
    ),
    mutant("divides by a padded width", "rms_norm", norm_by_padded_width, "kernel/rms_norm"),
    mutant(
        "swaps the halves",
        "silu_and_mul",
        lambda x: silu_and_mul(torch.cat(x.chunk(2, 1)[::-1], 1)),
        "kernel/silu_and_mul",
    ),
    mutant(
        "takes gates that alternate with their partners",
        "silu_and_mul",
        lambda x: silu_and_mul(torch.cat((x[:, ::2], x[:, 1::2]), 1)),
        "kernel/silu_and_mul",
    ),
    mutant("goes through bfloat16", "silu_and_mul", through_half, "kernel/silu_and_mul"),
    mutant(
        "has other bits in odd batches",
        "silu_and_mul",
        lambda x: silu_and_mul(x) * (1 + 1.2e-7 * (len(x) % 2)),
        "kernel/row_invariant",
    ),
    mutant("rounds half away from zero", "quantize", half_away, Q, INT8),
    mutant("cuts off", "quantize", cut_off, Q, INT8),
    mutant("takes 128 steps", "quantize", lambda x, s, g: quantize(x, s, g, 128.0), Q, INT8),
    mutant("wraps what a given scale can't hold", "quantize", unclamped, Q, INT8),
    mutant("has one scale for all rows", "quantize", one_scale_for_all, Q, INT8),
    mutant("gives the scale of the row before", "quantize", scale_of_the_row_before, Q, INT8),
    mutant("leaves the tail out of the scale", "quantize", scale_without_the_tail, Q, INT8),
    mutant("gives a row of zeros the scale 0", "quantize", zeros_without_a_scale, Q, INT8),
    mutant("ignores a given scale", "quantize", lambda x, s, g: quantize(x, None, g), Q, INT8),
    mutant(
        "takes the first group's scale for all", "quantize", same_scale_for_groups, GROUPS, INT8
    ),
    mutant(
        "has other scales in large batches",
        "quantize",
        scale_by_the_batch,
        "kernel/row_invariant",
        INT8,
    ),
    mutant("spreads what is no number", "quantize", poisoned, "kernel/neighbours", INT8),
    mutant("makes a row of none", "quantize", never_empty, "kernel/no_rows", INT8),
    mutant(
        "forgets the norm's weight",
        RMS,
        lambda x, w, eps, *rest: quantize(rms_norm(x, torch.ones_like(w), eps), *rest),
        f"kernel/{RMS}",
        INT8,
    ),
    mutant(
        "takes the scale before the norm",
        RMS,
        lambda x, w, eps, *rest: as_values(rms_norm(x, w, eps), quantize(x, *rest).scales),
        f"kernel/{RMS}",
        INT8,
    ),
    mutant("takes the gates' scale", SILU, gate_decides, f"kernel/{SILU}", INT8),
    mutant(
        "quantizes what went through bfloat16",
        SILU,
        lambda x, *rest: quantize(through_half(x), *rest),
        f"kernel/{SILU}",
        INT8,
    ),
)
