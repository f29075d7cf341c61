"""A walker: what a decoder is built with to see each of its linear layers at work.

Weights are read when their layer is called and dropped when it has been dealt with, so a
model takes no more memory than its embeddings and one block. What stood before a layer is
found by looking at what really went into it, not by its name: a layer that takes a norm's
output as it is can have the norm's weight changed for it, any other can't.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from enginebay.dispatch import KernelTable
from enginebay.hookspecs.format import Checkpoint
from enginebay.hookspecs.kernel import KernelContext, OpSignature
from enginebay.hookspecs.model import ModelSpec, Role
from enginebay.hookspecs.quant import PackedLinear

from ..kernels.reference import ReferenceKernels
from .layers import Layer, Source

Finish = Callable[[Sequence[Layer]], None]


@dataclass
class Walker:
    """What the decoder is built with (``enginebay.hookspecs.model.Builder``)."""

    spec: ModelSpec
    checkpoint: Checkpoint
    shapes: dict[str, tuple[int, ...]]
    finish: Finish
    """Given layers in the order of their calls, whenever nothing more can come from them."""
    table: KernelTable = field(
        default_factory=lambda: KernelTable(
            [("reference", ReferenceKernels(KernelContext(device="cpu", threads=1)))]
        )
    )

    def __post_init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        """Embeddings, norms: what the decoder asked for whole."""
        self._pending: list[Layer] = []
        self._parts: dict[str, tuple[tuple[str, ...], Role]] = {}
        self._made: tuple[torch.Tensor, Source] | None = None
        self._output = torch.empty(0)
        """Of the last linear layer."""

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor in float32; the same one each time."""
        if name not in self.tensors:
            self.tensors[name] = self.checkpoint.load(name).float()
        return self.tensors[name]

    def keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """There is no ledger here."""
        return tensor

    def linear(self, name: str, parts: tuple[str, ...], role: Role = "linear") -> PackedLinear:
        """The layer's name and sizes; ``op`` reads its weights."""
        self._parts[name] = parts, role
        rows = sum(self.shapes[part][0] for part in parts)
        return PackedLinear(name, "float", self.shapes[parts[0]][1], rows)

    def op(self, signature: OpSignature) -> Callable[..., Any]:
        """The reference kernel, watched; linear layers are this class's own."""
        if signature.op in ("linear", "logits"):
            return self._linear if signature.op == "linear" else self._logits
        call = self.table.resolve(signature)
        if signature.op == "rms_norm":
            return lambda x, weight, eps: self._norm(call(x, weight, eps), weight)
        if signature.op == "silu_and_mul":
            return lambda gate_up: self._gated(call(gate_up), gate_up)
        return call

    def program(self, body: Callable[..., None]) -> Callable[..., None]:
        """As it is: each call has to be seen."""
        return body

    def values(self, v: torch.Tensor) -> Source | None:
        """What attention's output comes from, when ``v`` [T, Hk, D] is as a layer gave it."""
        flat = v.flatten(1)
        if not self._pending or not torch.equal(flat, self._output[:, -flat.shape[1] :]):
            return None
        heads, kv_heads, dim = v.shape[1], self.spec.num_kv_heads, v.shape[2]
        repeats = self.spec.num_heads // kv_heads
        source = Source("values", layer=self._pending[-1], repeats=repeats, head_dim=dim)
        return source if heads == kv_heads else None

    def hand_over(self, keep: int = 0) -> None:
        """Finish all layers but the last ``keep``."""
        done, self._pending = (
            self._pending[: len(self._pending) - keep],
            self._pending[len(self._pending) - keep :],
        )
        _drop_shared(done)
        if done:
            self.finish(done)

    def made(self, rows: torch.Tensor, source: Source | None) -> None:
        """Note where rows came from."""
        self._made = None if source is None else (rows, source)

    def _norm(self, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        names = [name for name, tensor in self.tensors.items() if tensor is weight]
        self.made(rows, Source("norm", norm=names[0]) if names else None)
        return rows

    def _gated(self, rows: torch.Tensor, gate_up: torch.Tensor) -> torch.Tensor:
        known = gate_up is self._output
        self.made(rows, Source("gated", layer=self._pending[-1]) if known else None)
        return rows

    def _linear(
        self, x: torch.Tensor, packed: PackedLinear, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        layer = self._see(x, packed)
        self._output = F.linear(x, layer.weight, layer.bias)
        return self._output if residual is None else residual.add_(self._output)

    def _logits(self, x: torch.Tensor, packed: PackedLinear) -> torch.Tensor:
        """No logits: nobody looks at them, and they are the largest tensor of all."""
        self._see(x, packed)
        return x.new_empty((x.shape[0], 0))

    def _see(self, x: torch.Tensor, packed: PackedLinear) -> Layer:
        parts, role = self._parts[packed.name]
        biases = [part.removesuffix(".weight") + ".bias" for part in parts]
        layer = Layer(
            name=packed.name,
            parts=parts,
            role=role,
            weight=self._stack(parts),
            bias=self._stack(tuple(biases)) if biases[0] in self.shapes else None,
            rows=x,
            sizes=tuple(self.shapes[part][0] for part in parts),
            source=self._made[1] if self._made is not None and self._made[0] is x else None,
        )
        self._pending.append(layer)
        return layer

    def _stack(self, names: tuple[str, ...]) -> torch.Tensor:
        """Joined by rows, always a copy: smoothing changes it in place."""
        known = (self.tensors.get(name) for name in names)
        parts = zip(names, known, strict=True)
        return torch.cat(
            [self.checkpoint.load(name).float() if had is None else had for name, had in parts]
        )


def _drop_shared(layers: Sequence[Layer]) -> None:
    """Of layers with one source, none can have it changed for itself."""
    sources = [id(layer.source) for layer in layers if layer.source is not None]
    for layer in layers:
        if sources.count(id(layer.source)) > 1:
            layer.source = None
