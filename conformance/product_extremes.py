"""Products of integers at the ends of their range: sums as large as they get are whole."""

import dataclasses
from collections.abc import Iterator

import torch

from enginebay.hookspecs.kernel import Kernels, QuantizedRows

from .closeness import same
from .linear_checks import GROUPS, Product, products
from .sample_layers import Sample, sample, with_codes


def check_exact(product: Product, rows: torch.Tensor, told: str) -> None:
    """With every scale 1 the sum itself comes out, as float32 of the whole number.

    :param rows: int8 [T, K]
    """
    right = rows.long() @ product.given.packed.tensors["weight"].long().T
    given = QuantizedRows(rows, torch.ones(len(rows), 1))
    found = product.offer.call(given, product.ready)
    same("kernel/linear_w8a8", f"{product.told}, {told}", found, right.float())


def extremes(columns: int, seed: int) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """(what, rows int8 [5, K], weights int8 [4, K]) whose sums are as large as they get."""
    for what, row, weight in (("127 x 127", 127, 127), ("-127 x 127", -127, 127)):
        yield what, _full((5, columns), row), _full((4, columns), weight)
    yield "-127 x -127", _full((5, columns), -127), _full((4, columns), -127)
    signs = [(draw_signs((n, columns), seed + n) * 127).to(torch.int8) for n in (5, 4)]
    yield "random signs of 127", signs[0], signs[1]


def check_extremes(kernels: Kernels) -> None:
    """All 127, all -127 and every sign: the sum is exact, past 2^24 too."""
    for columns in (2, 64, 576, 2048):
        given = sample("w8a8", columns, 4)
        for what, rows, weight in extremes(columns, seed=columns):
            for product in products(kernels, with_codes(given, weight)):
                for count in (1, 2, 5):
                    check_exact(product, rows[:count], f"{what}, {count} rows")


def check_nibble_extremes(kernels: Kernels) -> None:
    """Codes of 0 and 15 under rows of 127 and -127: with every scale 1 the sum itself comes
    out, also where a group's passes 16 bits."""
    codes = {"15": _full((4, 256), 15), "0 or 15": (draw_signs((4, 256), 1) > 0) * 15}
    for group in GROUPS:
        given = sample("w4a8", 256, 4, group=group, bias=False).packed
        ones = torch.ones_like(given.tensors["scales"])
        for what, weight in codes.items():
            tensors = {"weight": weight.to(torch.uint8), "scales": ones, "offsets": 0 * ones}
            layer = Sample(dataclasses.replace(given, tensors=tensors), weight.double())
            for product in products(kernels, layer):
                for count, seed in ((1, 2), (2, 3), (5, 4)):
                    for rows in (_full((count, 256), 127), draw_signs((count, 256), seed) * 127):
                        x = QuantizedRows(rows.to(torch.int8), torch.ones(count, ones.shape[1]))
                        right = rows.long() @ weight.long().T
                        told = f"{product.told}, codes of {what}, {count} rows"
                        found = product.offer.call(x, product.ready)
                        same("kernel/linear_w4a8", told, found, right.float())


def draw_signs(shape: tuple[int, int], seed: int) -> torch.Tensor:
    """1 and -1 at random."""
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, shape, generator=chance) * 2 - 1


def _full(shape: tuple[int, int], value: int) -> torch.Tensor:
    return torch.full(shape, value, dtype=torch.int8)
