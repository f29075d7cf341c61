"""Which of a kernel plugin's callables a check applies to."""

from collections.abc import Callable
from typing import Any

from enginebay.hookspecs.kernel import Kernels, OpSignature

from .check import Skip


def offered(kernels: Kernels, op: str, *, invariant: bool = False) -> list[Callable[..., Any]]:
    """The float32 callables for an op; only those declared row-invariant if asked.

    :raises Skip: none is offered
    """
    signature = OpSignature(op=op, scheme="float" if op in ("linear", "logits") else "")
    calls = [
        offer.call
        for offer in kernels.offers()
        if offer.op == op
        and offer.supports(signature) is None
        and (offer.row_invariant or not invariant)
    ]
    if not calls and not invariant:
        msg = f"no float32 kernel for {op} is offered"
        raise Skip(msg)
    return calls
