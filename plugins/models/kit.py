"""Ops of the kernel table, bound to the weights they work with.

A linear layer says in which form it takes its rows; whatever stands before it gives them
in that form: a norm or an activation that quantizes too, or a quantization by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from enginebay.hookspecs.kernel import OpSignature, QuantizedRows
from enginebay.hookspecs.model import Builder, Role
from enginebay.hookspecs.quant import PackedLinear

Rows = torch.Tensor | QuantizedRows
RowOp = Callable[[torch.Tensor], torch.Tensor]
Feed = Callable[[torch.Tensor], Rows]
"""Gives the linear layer behind it its rows [T, K], in the form that it takes."""
Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Linear:
    """One packed layer and its kernel."""

    packed: PackedLinear
    call: Callable[..., torch.Tensor]

    def __call__(self, x: Rows, residual: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, K] -> [T, N]; a ``residual`` [T, N] is added to in place and returned."""
        if residual is None:
            return self.call(x, self.packed)
        return self.call(x, self.packed, residual)


@dataclass(frozen=True)
class Kit:
    """What a decoder makes its layers with."""

    builder: Builder
    dtype: str
    eps: float

    def op(self, name: str, sizes: Sizes, scheme: str = "") -> Callable[..., Any]:
        """The kernel chosen for an op of these sizes."""
        signature = OpSignature(op=name, dtype=self.dtype, scheme=scheme, sizes=sizes)
        return self.builder.op(signature)

    def linear(self, name: str, parts: tuple[str, ...], role: Role = "linear") -> Linear:
        """One packed layer; ``role`` "head" gives float32 logits."""
        packed = self.builder.linear(name, parts, role)
        return Linear(packed, self.builder.op(packed.signature(role, self.dtype)))

    def head_norm(self, name: str) -> RowOp:
        """RMS norm with the weight ``name``, of rows that nothing quantizes."""
        weight, eps = self.builder.tensor(name), self.eps
        call = self.op("rms_norm", (("size", weight.shape[0]),))
        return lambda x: call(x, weight, eps)

    def norm(self, name: str, into: Linear) -> Feed:
        """RMS norm with the weight ``name``, for the layer ``into``."""
        if into.packed.inputs == "float":
            return self.head_norm(name)
        weight, eps = self.builder.tensor(name), self.eps
        call = self.op("rms_norm_quantize", _sizes(into), "int8")
        scale, group = into.packed.input_scale, into.packed.input_group
        return lambda x: call(x, weight, eps, scale, group)

    def activation(self, size: int, into: Linear) -> Feed:
        """Gated SiLU [T, 2 size] -> [T, size], for the layer ``into``."""
        if into.packed.inputs == "float":
            return self.op("silu_and_mul", (("size", size),))
        call = self.op("silu_and_mul_quantize", _sizes(into), "int8")
        scale, group = into.packed.input_scale, into.packed.input_group
        return lambda x: call(x, scale, group)

    def feed(self, into: Linear) -> Feed:
        """Rows as they are, for the layer ``into``."""
        if into.packed.inputs == "float":
            return lambda x: x
        call = self.op("quantize", _sizes(into), "int8")
        scale, group = into.packed.input_scale, into.packed.input_group
        return lambda x: call(x, scale, group)


def _sizes(into: Linear) -> Sizes:
    """Of an op that quantizes the rows of a layer."""
    size, group = into.packed.in_features, into.packed.input_group
    return (("size", size), ("group", group)) if group else (("size", size),)
