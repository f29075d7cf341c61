"""Products with one fault each, for weights of every scheme, of plain torch in float64."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from enginebay.hookspecs.kernel import QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from .mutant import Mutant
from .one_op import mutant

Residual = torch.Tensor | None
INT16: Final = (-(2**15), 2**15 - 1)


def given(product: torch.Tensor, packed: PackedLinear, residual: Residual) -> torch.Tensor:
    """What a product [T, N] in float64 becomes: bias, float32, residual."""
    out = (product if packed.bias is None else product + packed.bias).float()
    return out if residual is None else residual.add_(out)


def plain(x: torch.Tensor, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """The right one for plain weights."""
    return given(x.double() @ packed.tensors["weight"].double().T, packed, residual)


def whole(x: QuantizedRows, packed: PackedLinear) -> torch.Tensor:
    """int64 [T, N]: the sums before they are scaled."""
    return x.values.long() @ packed.tensors["weight"].long().T


def scaled(
    sums: torch.Tensor, x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    """Sums as ``w8a8`` gives them."""
    scales = packed.tensors["scales"].double() * x.scales.double()
    return given(sums * scales, packed, residual)


def w8a8(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """The right one for int8 rows."""
    return scaled(whole(x, packed), x, packed, residual)


def weight_only(
    x: torch.Tensor,
    packed: PackedLinear,
    residual: Residual = None,
    *,
    change: Callable[[PackedLinear], PackedLinear] = lambda packed: packed,
) -> torch.Tensor:
    """The right one for codes of groups; ``change`` is what is done to the layer before."""
    right = change(packed)
    scales = right.tensors["scales"].double()
    codes = right.tensors["weight"].double()
    weight = codes.view(*scales.shape, -1) * scales.unsqueeze(-1)
    if "offsets" in right.tensors:
        weight = weight + right.tensors["offsets"].double().unsqueeze(-1)
    return given(x.double() @ weight.view(codes.shape).T, right, residual)


def changed(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., object]:
    """``weight_only`` with one tensor of the layer changed, where it has it."""

    def to(packed: PackedLinear) -> PackedLinear:
        tensors = dict(packed.tensors)
        if name in tensors:
            tensors[name] = change(tensors[name])
        return dataclasses.replace(packed, tensors=tensors)

    return partial(weight_only, change=to)


def saturating(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """Unsigned times signed bytes, added in pairs that end at 16 bits: int8 products of CPUs
    without VNNI."""
    weight = packed.tensors["weight"].int()
    even = (0, x.values.shape[1] % 2)
    rows = torch.nn.functional.pad(x.values.int() + 128, even)
    columns = torch.nn.functional.pad(weight, even)
    first, second = (rows[:, None, at::2] * columns[:, at::2] for at in (0, 1))
    pairs = (first + second).clamp(*INT16).sum(-1)
    return scaled(pairs - 128 * weight.sum(1), x, packed, residual)


def in_16_bits(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    sums = (whole(x, packed) + 2**15) % 2**16 - 2**15
    return scaled(sums, x, packed, residual)


def in_half(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    return scaled(whole(x, packed).float().bfloat16().double(), x, packed, residual)


def other_rows_scale(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    return scaled(whole(x, packed), dataclasses.replace(x, scales=x.scales.roll(1, 0)), packed)


def other_channels_scale(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    tensors = {**packed.tensors, "scales": packed.tensors["scales"].roll(1)}
    return w8a8(x, dataclasses.replace(packed, tensors=tensors), residual)


def bias_scaled_too(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    bias = 0 if packed.bias is None else packed.bias.double()
    return scaled(whole(x, packed) + bias, x, dataclasses.replace(packed, bias=None), residual)


def without_the_tail(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    end = x.values.shape[1] // 4 * 4
    tensors = {**packed.tensors, "weight": packed.tensors["weight"][:, :end]}
    rows = QuantizedRows(x.values[:, :end], x.scales)
    return w8a8(rows, dataclasses.replace(packed, tensors=tensors), residual)


def wrong_in_pairs(
    x: QuantizedRows, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    """Two rows have a kernel of their own, which leaves the last column out."""
    out = w8a8(x, packed, residual)
    if len(out) == 2:
        out[:, -1] = 0.0
    return out


def blocked_by_rows(
    x: torch.Tensor, packed: PackedLinear, residual: Residual = None
) -> torch.Tensor:
    """Large batches add up in two halves, small ones in one go: float32 rounds otherwise."""
    weight, middle = packed.tensors["weight"], x.shape[1] // 2
    if len(x) < 16:
        return given(x @ weight.T, packed, residual)
    left = x[:, :middle] @ weight[:, :middle].T
    return given(left + x[:, middle:] @ weight[:, middle:].T, packed, residual)


def rounded_rows(x: torch.Tensor, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """Rows are quantized on the way, which nobody asked for."""
    steps = (x.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)
    return weight_only(torch.round(x / steps) * steps, packed, residual)


def beside(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """The residual is read, and a new tensor returned."""
    out = w8a8(x, packed)
    return out if residual is None else residual + out


def overwritten(x: torch.Tensor, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    out = plain(x, packed)
    return out if residual is None else residual.copy_(out)


def spread(x: QuantizedRows, packed: PackedLinear, residual: Residual = None) -> torch.Tensor:
    """A tile that holds no number somewhere holds none anywhere."""
    out = w8a8(x, packed, residual)
    return out if torch.isfinite(x.scales).all() else out * float("nan")


def laid_out_in_place(packed: PackedLinear) -> PackedLinear:
    packed.tensors["weight"].copy_(packed.tensors["weight"].flip(0))
    return packed


def laid_out_when_real(packed: PackedLinear) -> PackedLinear:
    weight = packed.tensors["weight"]
    tensors = dict(packed.tensors)
    if weight.device.type != "meta":
        tensors["sums"] = weight.sum(1)
    return dataclasses.replace(packed, tensors=tensors)


LINEAR, RESIDUAL = "kernel/linear", "kernel/residual"
W8A8, INT8, INT4 = "kernel/linear_w8a8", "kernel/linear_int8", "kernel/linear_int4"
RIGHT_LINEARS: Final = (
    ("float", plain),
    ("w8a8", w8a8),
    ("int8", weight_only),
    ("int4", weight_only),
)
"""(scheme, callable) without a fault."""
_REUSED = changed("scales", lambda scales: scales[:, -1:].expand(scales.shape))
_UNSIGNED = changed("weight", lambda codes: codes.view(torch.uint8))
_SWAPPED = changed("weight", lambda codes: codes.view(len(codes), -1, 2).flip(2).flatten(1))
_HALF = changed("scales", lambda scales: scales.bfloat16())
_NO_BIAS = lambda x, p, r=None: w8a8(x, dataclasses.replace(p, bias=None), r)  # noqa: E731


def of(scheme: str, fault: str, call: Callable[..., object], caught_by: str) -> Mutant:
    return mutant(fault, "linear", call, caught_by, scheme)


LINEAR_MUTANTS: Final[tuple[Mutant, ...]] = (
    of("float", "goes through bfloat16", lambda x, p, r=None: plain(x.bfloat16(), p, r), LINEAR),
    mutant("gives float64", "logits", lambda x, p: plain(x, p).double(), LINEAR, "float"),
    of("float", "adds up by the number of rows", blocked_by_rows, "kernel/row_invariant"),
    of("float", "writes over the residual", overwritten, RESIDUAL),
    of("w8a8", "saturates pairs at 16 bits", saturating, W8A8),
    of("w8a8", "adds up in 16 bits", in_16_bits, W8A8),
    of("w8a8", "rounds the sum to bfloat16", in_half, W8A8),
    of("w8a8", "takes the scale of the row before", other_rows_scale, W8A8),
    of("w8a8", "takes the scale of the channel before", other_channels_scale, W8A8),
    of("w8a8", "forgets the bias", _NO_BIAS, W8A8),
    of("w8a8", "scales the bias too", bias_scaled_too, W8A8),
    of("w8a8", "leaves a tail of columns out", without_the_tail, W8A8),
    of("w8a8", "is wrong for two rows", wrong_in_pairs, W8A8),
    of("w8a8", "adds the residual beside", beside, RESIDUAL),
    of("w8a8", "spreads what is no number", spread, "kernel/neighbours"),
    mutant("lays out in place", "linear", w8a8, "kernel/pack", "w8a8", laid_out_in_place),
    mutant("forgets shapes", "linear", w8a8, "kernel/pack", "w8a8", laid_out_when_real),
    of("int8", "takes the last group's scale for all", _REUSED, INT8),
    of("int8", "takes codes as unsigned", _UNSIGNED, INT8),
    of("int8", "leaves offsets out", changed("offsets", torch.zeros_like), INT8),
    of("int8", "quantizes its rows", rounded_rows, INT8),
    of("int4", "takes the last group's scale for all", _REUSED, INT4),
    of("int4", "takes offsets off", changed("offsets", torch.neg), INT4),
    of("int4", "swaps neighbouring codes", _SWAPPED, INT4),
    of("int4", "keeps scales in bfloat16", _HALF, INT4),
)
