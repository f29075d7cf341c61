"""What every kernel must do. ``KERNEL_CHECKS`` runs all of it on a built kernel plugin.

Each op is held against float64 torch within ``op_bounds``; an op that is declared
row-invariant must give a row the same bits wherever it stands, and no row may be
disturbed by another. Ops that a plugin does not offer, or declines on this machine, are
not judged.
"""

from collections.abc import Iterator
from typing import Final

from enginebay.hookspecs.kernel import Kernels

from .attention_checks import ATTENTION_CHECKS
from .check import CheckList, require
from .closeness import check_row_invariance, same
from .group_checks import GROUP_CHECKS
from .linear_checks import check_pack, check_residual, check_scheme, row_products
from .product_extremes import check_extremes, check_nibble_extremes
from .row_op_checks import ROW_OP_CHECKS, Rowwise, row_ops

KERNEL_CHECKS: Final = CheckList([*ROW_OP_CHECKS, *GROUP_CHECKS, *ATTENTION_CHECKS])
"""The subject is a kernel plugin as its hook returned it."""

DISTURBED: Final = 3
"""The row that holds no number."""


@KERNEL_CHECKS.add("kernel/linear")
def float_products_are_right(kernels: Kernels) -> None:
    """``linear`` and ``logits`` of plain weights are products within float32."""
    check_scheme(kernels, "float", "kernel/linear")


@KERNEL_CHECKS.add("kernel/linear_w8a8")
def int8_products_are_exact(kernels: Kernels) -> None:
    """int8 rows times int8 weights are exact before they are scaled, at every extreme."""
    check_scheme(kernels, "w8a8", "kernel/linear_w8a8")
    check_extremes(kernels)


@KERNEL_CHECKS.add("kernel/linear_int8")
def int8_weights_are_right(kernels: Kernels) -> None:
    """Products with int8 weights, in groups and whole rows, are those of what they mean."""
    check_scheme(kernels, "int8", "kernel/linear_int8")


@KERNEL_CHECKS.add("kernel/linear_int4")
def int4_weights_are_right(kernels: Kernels) -> None:
    """Products with int4 weights, in groups and whole rows, are those of what they mean."""
    check_scheme(kernels, "int4", "kernel/linear_int4")


@KERNEL_CHECKS.add("kernel/linear_w8a8_groups")
def int8_products_in_groups_are_right(kernels: Kernels) -> None:
    """int8 rows times int8 weights with scales of the same groups: what both mean."""
    check_scheme(kernels, "w8a8-groups", "kernel/linear_w8a8_groups")


@KERNEL_CHECKS.add("kernel/linear_w4a8")
def int4_weights_under_int8_rows_are_right(kernels: Kernels) -> None:
    """4-bit weights times int8 rows of the same groups: what both mean, at every extreme."""
    check_scheme(kernels, "w4a8", "kernel/linear_w4a8")
    check_nibble_extremes(kernels)


@KERNEL_CHECKS.add("kernel/residual")
def residuals_are_added_in_place(kernels: Kernels) -> None:
    """A residual is added to in place and returned, whatever the scheme."""
    check_residual(kernels)


@KERNEL_CHECKS.add("kernel/pack")
def layouts_keep_what_was_given(kernels: Kernels) -> None:
    """``pack`` leaves the given tensors alone, and has the same shapes without bytes."""
    check_pack(kernels)


@KERNEL_CHECKS.add("kernel/no_rows")
def no_rows_are_no_work(kernels: Kernels) -> None:
    """Every op on rows takes none of them, and gives none."""
    for op in _rowwise(kernels):
        columns = op.call(op.rows[:1]).shape[1]
        found = tuple(op.call(op.rows[:0]).shape)
        require(found == (0, columns), "kernel/no_rows", f"{op.name}: {found} for no rows")


@KERNEL_CHECKS.add("kernel/neighbours")
def rows_do_not_disturb_each_other(kernels: Kernels) -> None:
    """A row that holds NaN or infinity leaves the bits of all others as they are."""
    for op in _rowwise(kernels):
        others = [row for row in range(len(op.rows)) if row != DISTURBED]
        right = op.call(op.rows)[others]
        for value in ("nan", "inf", "-inf"):
            rows = op.rows.clone()
            rows[DISTURBED, -1] = float(value)
            same("kernel/neighbours", f"{op.name} beside {value}", op.call(rows)[others], right)


@KERNEL_CHECKS.add("kernel/row_invariant")
def row_invariance_is_kept(kernels: Kernels) -> None:
    """An op declared row-invariant gives a row the same bits wherever it stands."""
    for op in _rowwise(kernels):
        if op.row_invariant:
            check_row_invariance(op.call, op.rows, op.name)


def _rowwise(kernels: Kernels) -> Iterator[Rowwise]:
    """Every op that gives a row for a row."""
    yield from row_ops(kernels)
    yield from row_products(kernels)
