"""Which ops a decoder asks for, and the layers that it multiplies with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from enginebay.dispatch import KernelTable
from enginebay.hookspecs.kernel import OpSignature
from enginebay.hookspecs.model import Builder, ModelFamily, ModelSpec
from enginebay.hookspecs.quant import PackedLinear


@dataclass
class Recorder:
    """A model family that notes what the decoder asks its builder for."""

    family: ModelFamily
    dtype: str
    linears: list[tuple[PackedLinear, OpSignature]] = field(default_factory=list)
    """In the order in which the decoder made them."""
    signatures: dict[OpSignature, None] = field(default_factory=dict)
    """Of the other ops."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def build(self, spec: ModelSpec, builder: Builder) -> Any:
        """The family's decoder, through a builder that listens. The last build counts: a
        rehearsal goes before the load."""
        self.linears, self.signatures = [], {}
        return self.family.build(spec, _Listening(builder, self))


class _Listening:
    def __init__(self, builder: Builder, recorder: Recorder) -> None:
        self._builder, self._recorder = builder, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builder, name)

    def linear(self, name: str, parts: tuple[str, ...], role: Any = "linear") -> PackedLinear:
        packed = self._builder.linear(name, parts, role)
        signature = packed.signature(role, self._recorder.dtype)
        self._recorder.linears.append((packed, signature))
        return packed

    def op(self, signature: OpSignature) -> Callable[..., Any]:
        if signature.op not in ("linear", "logits"):
            self._recorder.signatures[signature] = None
        return self._builder.op(signature)


def told(table: KernelTable, signature: OpSignature) -> str:
    """The chosen kernel's name."""
    choice = table.choose(signature)
    return f"{choice.plugin}/{choice.offer.name}"
