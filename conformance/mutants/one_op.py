"""Kernel plugins of a single op, most of them with one fault: what op mutants are made with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from enginebay.hookspecs.kernel import Offer, OpSignature
from enginebay.hookspecs.quant import PackedLinear

from .mutant import Mutant

Pack = Callable[[PackedLinear], PackedLinear]


@dataclass(frozen=True)
class OneOp:
    """Offers one callable for one op, in float32, of one scheme."""

    op: str
    call: Callable[..., Any]
    scheme: str = ""
    pack: Pack | None = None
    row_invariant: bool = True

    def offers(self) -> Sequence[Offer]:
        """The one."""
        return (
            Offer(
                op=self.op,
                name="one",
                call=self.call,
                row_invariant=self.row_invariant,
                supports=self._against,
                pack=self.pack,
            ),
        )

    def _against(self, signature: OpSignature) -> str | None:
        """Why not."""
        return None if signature.scheme == self.scheme else f"runs the scheme {self.scheme!r}"


def mutant(
    fault: str,
    op: str,
    call: Callable[..., Any],
    caught_by: str,
    scheme: str = "",
    pack: Pack | None = None,
) -> Mutant:
    """A plugin of one op that is wrong."""
    return Mutant(fault, partial(OneOp, op, call, scheme, pack), caught_by)
