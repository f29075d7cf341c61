"""Which of a kernel plugin's callables a check applies to."""

from collections.abc import Callable
from typing import Any

from enginebay.dispatch import disproved
from enginebay.hookspecs.kernel import Kernels, Offer, OpSignature

from .check import Skip


def offered(kernels: Kernels, op: str, *, invariant: bool = False) -> list[Callable[..., Any]]:
    """The float32 callables for an op without weights of a scheme; only those declared
    row-invariant if asked.

    :raises Skip: none is offered
    """
    signature = OpSignature(op=op, scheme="int8" if op.endswith("quantize") else "")
    offers = usable(kernels, signature)
    calls = [offer.call for offer in offers if offer.row_invariant or not invariant]
    if not calls and not invariant:
        msg = f"no float32 kernel for {op} is offered"
        raise Skip(msg)
    return calls


def usable(kernels: Kernels, signature: OpSignature) -> list[Offer]:
    """The offers that take a signature, and that prove themselves on this machine where
    they can: one that declines is not judged."""
    return [
        offer
        for offer in kernels.offers()
        if offer.op == signature.op
        and offer.supports(signature) is None
        and disproved(offer, signature) is None
    ]
