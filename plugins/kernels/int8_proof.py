"""Known answers of int8 products, computed on the machine that will use the kernel.

Some hardware sums pairs of int8 products in 16 bits and saturates, and a library may use
it without a word (oneDNN does below VNNI). Operands at both ends of their range, and
random ones, are multiplied in every class of row counts and compared with exact sums.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from enginebay.hookspecs.kernel import OpSignature, QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

ROWS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 32, 33)
OUTPUTS: Final = 80
"""Columns that are computed: kernels treat all panels of columns alike."""
Pack = Callable[[PackedLinear], PackedLinear]


def prove_int8(
    call: Callable[..., Any], pack: Pack | None = None
) -> Callable[[OpSignature], str | None]:
    """A ``prove`` for a kernel of the scheme ``w8a8``."""

    def prove(signature: OpSignature) -> str | None:
        sizes = dict(signature.sizes)
        inner, outer = sizes.get("in", 64), min(sizes.get("out", OUTPUTS), OUTPUTS)
        for name, values, weight in _operands(inner, outer):
            layer = _layer(weight)
            layer = layer if pack is None else pack(layer)
            exact = (values.double() @ weight.double().T).float()  # < 2^53, so exact
            for rows in ROWS:
                found = call(QuantizedRows(values[:rows].contiguous(), torch.ones(rows, 1)), layer)
                if not torch.equal(found, exact[:rows]):
                    place = int((found != exact[:rows]).flatten().to(torch.uint8).argmax())
                    return (
                        f"multiplies {name} operands wrongly on this machine: "
                        f"{found.flatten()[place]:.0f} instead of "
                        f"{exact[:rows].flatten()[place]:.0f} with {rows} rows of {inner}"
                    )
        return None

    return prove


def _operands(inner: int, outer: int) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """(what they are, rows int8 [33, K], weights int8 [N, K])"""
    random = torch.Generator().manual_seed(inner)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-127, 128, shape, dtype=torch.int8, generator=random)

    most = max(ROWS)
    high, weight = torch.full((most, inner), 127, dtype=torch.int8), draw(outer, inner)
    full = torch.full((outer, inner), 127, dtype=torch.int8)
    signs = torch.where(weight < 0, -127, 127).to(torch.int8)
    return [
        ("greatest", high, full),
        ("smallest", -high, full),
        ("lowest", -high, torch.full((outer, inner), -128, dtype=torch.int8)),
        ("extreme", torch.where(draw(most, inner) < 0, -high, high), signs),
        ("random", draw(most, inner), weight),
    ]


def _layer(weight: torch.Tensor) -> PackedLinear:
    outer, inner = weight.shape
    tensors = {"weight": weight, "scales": torch.ones(outer)}
    return PackedLinear("proof", "w8a8", inner, outer, tensors, inputs="int8")
