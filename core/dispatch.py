"""The kernel table: op signature -> chosen kernel, and why the others declined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from .errors import PluginError
from .hookspecs.kernel import FUSED, Kernels, Offer, OpSignature

DISPROVED: Final = "failed its proof"
"""Begins the reason of an offer that failed its own proof."""


@dataclass(frozen=True)
class Choice:
    """What was chosen for one signature."""

    signature: OpSignature
    plugin: str
    offer: Offer
    declined: tuple[tuple[str, str], ...]
    """(``plugin/kernel``, reason) of every offer asked before."""
    parts: tuple[Choice, ...] = ()
    """Of a fused op that nobody offers: the ops that it was joined from, in order."""

    @property
    def kernel(self) -> str:
        """Who computes it, for people: ``plugin/kernel``."""
        return " + ".join(part.kernel for part in self.parts) or f"{self.plugin}/{self.offer.name}"


@dataclass
class KernelTable:
    """Resolves each signature once, by the order of the stack's ``kernels``."""

    plugins: Sequence[tuple[str, Kernels]]
    require_row_invariant: bool = False
    choices: dict[OpSignature, Choice] = field(default_factory=dict)

    def resolve(self, signature: OpSignature) -> Callable[..., Any]:
        """The callable for an op.

        :raises PluginError: no kernel of the stack takes it; lists every reason
        """
        return self.choose(signature).offer.call

    def choose(self, signature: OpSignature) -> Choice:
        """The offer for an op, and why those asked before it declined.

        :raises PluginError: no kernel of the stack takes it; lists every reason
        """
        choice = self.choices.get(signature)
        if choice is None:
            choice = self.choices[signature] = self._choose(signature)
        return choice

    @property
    def row_invariant(self) -> bool:
        """Whether every op resolved so far is (promise P1)."""
        return all(choice.offer.row_invariant for choice in self.choices.values())

    def _choose(self, signature: OpSignature) -> Choice:
        declined: list[tuple[str, str]] = []
        for plugin, kernels in self.plugins:
            for offer in kernels.offers():
                if offer.op != signature.op:
                    continue
                reason = self._against(offer, signature)
                if reason is None:
                    return Choice(signature, plugin, offer, tuple(declined))
                declined.append((f"{plugin}/{offer.name}", reason))
        if signature.op in FUSED:
            return self._join(signature, declined)
        msg = f"no kernel for {told_op(signature)} {dict(signature.sizes)}: {_told(declined)}"
        raise PluginError(msg)

    def _against(self, offer: Offer, signature: OpSignature) -> str | None:
        """Why not this offer."""
        reason = offer.supports(signature)
        if reason is None and self.require_row_invariant and not offer.row_invariant:
            return "is not row-invariant, which this stack requires"
        return disproved(offer, signature) if reason is None else reason

    def _join(self, signature: OpSignature, declined: list[tuple[str, str]]) -> Choice:
        """The two parts of a fused op, one after the other.

        :raises PluginError: a part has no kernel either; says of which op it is a part
        """
        names, schemes = FUSED[signature.op], ("", signature.scheme)
        try:
            first, last = (
                self.choose(msgspec.structs.replace(signature, op=op, scheme=scheme))
                for op, scheme in zip(names, schemes, strict=True)
            )
        except PluginError as error:
            msg = f"no kernel for {told_op(signature)}: {_told(declined)}; nor its parts: {error}"
            raise PluginError(msg) from error
        run, then = first.offer.call, last.offer.call
        offer = Offer(
            op=signature.op,
            name=f"{first.offer.name} + {last.plugin}/{last.offer.name}",
            call=lambda *given: then(run(*given[:-2]), *given[-2:]),
            row_invariant=first.offer.row_invariant and last.offer.row_invariant,
        )
        return Choice(signature, first.plugin, offer, tuple(declined), (first, last))


def disproved(offer: Offer, signature: OpSignature) -> str | None:
    """What an offer gets wrong on this machine; a proof that breaks proves nothing."""
    if offer.prove is None:
        return None
    try:
        wrong = offer.prove(signature)
    except Exception as error:  # noqa: BLE001  a stranger's code, on hardware it may not know
        return f"{DISPROVED}: its proof raised {type(error).__name__}: {error}"
    return None if wrong is None else f"{DISPROVED}: {wrong}"


def _told(declined: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{name} {reason}" for name, reason in declined) or "nobody offers it"


def told_op(signature: OpSignature) -> str:
    """The op's name, and its scheme where it has one."""
    return f"{signature.op!r}" + (f" of scheme {signature.scheme!r}" if signature.scheme else "")
