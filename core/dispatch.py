"""The kernel table: op signature -> chosen kernel, and why the others declined."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import PluginError
from .hookspecs.kernel import Kernels, Offer, OpSignature


@dataclass(frozen=True)
class Choice:
    """What was chosen for one signature."""

    signature: OpSignature
    plugin: str
    offer: Offer
    declined: tuple[tuple[str, str], ...]
    """(``plugin/kernel``, reason) of every offer asked before."""


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
        choice = self.choices.get(signature)
        if choice is None:
            choice = self.choices[signature] = self._choose(signature)
        return choice.offer.call

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
                reason = offer.supports(signature)
                if reason is None and self.require_row_invariant and not offer.row_invariant:
                    reason = "is not row-invariant, which this stack requires"
                if reason is None:
                    return Choice(signature, plugin, offer, tuple(declined))
                declined.append((f"{plugin}/{offer.name}", reason))
        told = "; ".join(f"{name} {reason}" for name, reason in declined) or "nobody offers it"
        msg = f"no kernel for {signature.op!r} {dict(signature.sizes)}: {told}"
        raise PluginError(msg)
