"""What ``linear`` and ``logits`` must do with weights of every scheme, held against float64.

A product of int8 with int8 is exact before it is scaled; the others are float32 products with
what the codes stand for. Weights reach a kernel through its ``pack``.
"""

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import torch

from enginebay.hookspecs.kernel import Kernels, Offer
from enginebay.hookspecs.model import Role
from enginebay.hookspecs.quant import PackedLinear

from .check import Skip, require
from .closeness import close, same
from .kernel_offers import usable
from .op_bounds import bound
from .row_op_checks import Rowwise
from .sample_layers import GROUPED as GROUPED_SCHEMES
from .sample_layers import Sample, as_inputs, exact_rows, sample, sample_rows

ROLES: Final[tuple[Role, ...]] = ("linear", "head")
ROWS: Final = range(34)
"""Numbers of rows that one shape is tried with: each may have a kernel of its own."""
FEW_ROWS: Final = (1, 5, 16, 33)
WHOLE: Final = ((1, 3), (3, 1), (64, 64), (100, 17), (576, 100), (1100, 8))
"""Columns and outputs of layers without groups; 1,100 columns of 127 * 127 pass 2^24."""
GROUPED: Final = ((256, 40), (128, 3))
GROUPS: Final = (32, 64, 128, 0)
"""Columns that share a scale; 0: a whole row."""


class Product(NamedTuple):
    """One kernel with a layer that it takes."""

    told: str
    offer: Offer
    given: Sample
    ready: PackedLinear
    """The layer as the kernel's ``pack`` laid it out."""

    def of(self, rows: torch.Tensor, *residual: torch.Tensor) -> torch.Tensor:
        """The kernel's answer for rows as ``sample_rows`` makes them."""
        found: torch.Tensor = self.offer.call(
            as_inputs(self.given.packed, rows), self.ready, *residual
        )
        return found


def layers(scheme: str) -> Iterator[Sample]:
    """Layers of one scheme, of several shapes, groups and with offsets."""
    if scheme in ("float", "w8a8"):
        for number, (columns, outputs) in enumerate(WHOLE):
            yield sample(scheme, columns, outputs, bias=number % 2 == 0, seed=number)
        return
    for columns, outputs in GROUPED:
        for group in GROUPS:
            yield sample(scheme, columns, outputs, group=group, seed=group)
    if scheme == "int8":
        yield sample(scheme, 128, 40, group=32, offsets=True)


def products(kernels: Kernels, given: Sample, role: Role = "linear") -> list[Product]:
    """Every kernel that takes a layer."""
    signature = given.packed.signature(role, "float32")
    shape = f"[{signature.op} {given.packed.scheme} {dict(signature.sizes)}]"
    return [
        Product(f"{offer.name} {shape}", offer, given, laid_out(offer, given.packed))
        for offer in usable(kernels, signature)
    ]


def laid_out(offer: Offer, packed: PackedLinear) -> PackedLinear:
    """A layer as a kernel reads it."""
    return packed if offer.pack is None else offer.pack(packed)


def check_scheme(kernels: Kernels, scheme: str, clause: str) -> None:
    """Every kernel of a scheme, for layers of every kind and any number of rows.

    :raises Skip: no kernel takes the scheme
    """
    tried = 0
    for given in layers(scheme):
        for role in ROLES:
            for product in products(kernels, given, role):
                every = given.packed.in_features in (64, 128)
                for rows in ROWS if every else FEW_ROWS:
                    hold_product(clause, product, sample_rows(given.packed, rows, rows))
                tried += 1
    if not tried:
        msg = f"no float32 kernel for weights of scheme {scheme} is offered"
        raise Skip(msg)


def hold_product(
    clause: str, product: Product, rows: torch.Tensor, residual: torch.Tensor | None = None
) -> None:
    """Hold one product against float64.

    :param rows: as ``sample_rows`` makes them
    :param residual: float32 [T, N], to be added to in place
    """
    packed = product.given.packed
    x, weight = exact_rows(packed, rows), product.given.weight
    right = x @ weight.T
    parts = right.abs()
    for more in (packed.bias, residual):
        if more is not None:
            right = right + more.double()
            parts = parts + more.abs()
    found = product.of(rows) if residual is None else product.of(rows, residual)
    where = f"{product.told} of {rows.shape[0]} rows"
    if packed.scheme == "w8a8":
        close(clause, found, right, bound("scaled"), where, parts)
    else:
        close(clause, found, right, bound("product") * packed.in_features**0.5, where)
    if residual is not None:
        there = found.data_ptr() == residual.data_ptr() and found.shape == residual.shape
        require(there, clause, f"{where}: not added to the residual in place")


def check_residual(kernels: Kernels) -> None:
    """A residual is added to in place and returned, whatever the scheme."""
    for given in _one_of_each():
        for product in products(kernels, given):
            for count in (0, 1, 2, 16, 33):
                rows = sample_rows(given.packed, count, count)
                residual = sample_rows(sample("float", 40, 1).packed, count, 9)
                hold_product("kernel/residual", product, rows, residual)


def check_pack(kernels: Kernels) -> None:
    """Laying out leaves the given tensors alone and has the same shapes without bytes."""
    for given in _one_of_each():
        for product in products(kernels, given):
            if product.offer.pack is None:
                continue
            before = {name: tensor.clone() for name, tensor in given.packed.tensors.items()}
            ready = product.offer.pack(given.packed)
            for name, tensor in before.items():
                now = given.packed.tensors[name]
                same("kernel/pack", f"{product.told}: given {name}", now, tensor)
            bare = product.offer.pack(_without_bytes(given.packed))
            kinds, rehearsed = (
                {name: (t.dtype, tuple(t.shape)) for name, t in layer.tensors.items()}
                for layer in (ready, bare)
            )
            told = f"{product.told}: {kinds}, but {rehearsed} on the device meta"
            require(kinds == rehearsed, "kernel/pack", told)


def row_products(kernels: Kernels) -> Iterator[Rowwise]:
    """Every product that is offered, alone and with a residual, with rows for it."""
    for given in _one_of_each():
        for role in ROLES:
            for product in products(kernels, given, role):
                rows, invariant = sample_rows(given.packed, 33, 5), product.offer.row_invariant
                yield Rowwise(product.told, product.of, rows, invariant)
                if role == "linear":
                    call = partial(_onto_rows, product)
                    yield Rowwise(f"{product.told} + residual", call, rows, invariant)


def _onto_rows(product: Product, rows: torch.Tensor) -> torch.Tensor:
    """A product added to a residual that comes from the rows themselves."""
    return product.of(rows, rows[:, :1].repeat(1, product.given.packed.out_features))


def _one_of_each() -> Iterator[Sample]:
    for scheme in ("float", "w8a8"):
        yield sample(scheme, 100, 40, seed=3)
    for scheme in GROUPED_SCHEMES:
        for group in (32, 0):
            yield sample(scheme, 128, 40, group=group, seed=3)


def _without_bytes(packed: PackedLinear) -> PackedLinear:
    bias = None if packed.bias is None else packed.bias.to("meta")
    tensors = {name: tensor.to("meta") for name, tensor in packed.tensors.items()}
    return dataclasses.replace(packed, tensors=tensors, bias=bias)
