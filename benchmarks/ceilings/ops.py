"""The ops of a loaded model, timed as its decoder calls them.

Weights are those that the model holds, layer after layer in the order of a forward pass:
a single layer's would stay in the cache and look faster than they are in a step. Rows of
activations, which the op before has just written, do stay there.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from enginebay.dispatch import KernelTable
from enginebay.hookspecs.kernel import OpSignature, QuantizedRows
from enginebay.hookspecs.quant import PackedLinear

from .recorder import Recorder, told
from .work import Timed, Work, held, linear_work

CALLS = 16
"""Of an op without weights, in one sample."""


def rows_for(packed: PackedLinear, rows: int) -> torch.Tensor | QuantizedRows:
    """Random rows [T, K] in the form that a layer takes them."""
    size = (rows, packed.in_features)
    if packed.inputs == "int8":
        values = torch.randint(-127, 128, size, dtype=torch.int8)
        groups = packed.in_features // (packed.input_group or packed.in_features)
        return QuantizedRows(values, torch.full((rows, groups), 0.01))
    return torch.randn(size)


def time_linears(recorder: Recorder, table: KernelTable, rows: int, rounds: int) -> Iterator[Timed]:
    """Every product of the model, layer by layer; one result a shape."""
    resident = sum(held(packed) for packed, _ in recorder.linears)
    inputs: dict[tuple[Any, ...], Any] = {}
    calls = []
    for packed, signature in recorder.linears:
        name = f"{packed.name.rsplit('.', 1)[-1]} {packed.in_features}x{packed.out_features}"
        x = inputs.setdefault((packed.in_features, packed.inputs), rows_for(packed, rows))
        calls.append(((name, signature), table.resolve(signature), x, packed))
    best: dict[Any, float] = {}
    for _ in range(rounds):
        sums: dict[Any, list[float]] = {}
        for key, call, x, packed in calls:
            began = time.perf_counter()
            call(x, packed)
            sums.setdefault(key, []).append(time.perf_counter() - began)
        for key, seconds in sums.items():
            mean = sum(seconds) / len(seconds)
            best[key] = min(best.get(key, mean), mean)
    layers = {key: packed for key, _, _, packed in calls}
    for (name, signature), seconds in best.items():
        packed = layers[name, signature]
        yield Timed(
            f"{signature.op} {name}",
            told(table, signature),
            rows,
            seconds,
            linear_work(packed, rows, resident),
        )


def time_row_ops(recorder: Recorder, table: KernelTable, rows: int, rounds: int) -> Iterator[Timed]:
    """Norms, activations, quantization and embedding."""
    for signature in recorder.signatures:
        if signature.op in ROW_OPS:
            call, arguments, work = (
                table.resolve(signature),
                *ROW_OPS[signature.op](signature, rows),
            )
            samples = [seconds(partial(call, *arguments), CALLS) for _ in range(rounds)]
            size = "x".join(str(number) for _, number in signature.sizes)
            name = f"{signature.op} {size}"
            yield Timed(name, told(table, signature), rows, min(samples), work)


def _rms_norm(signature: OpSignature, rows: int) -> tuple[tuple[Any, ...], Work]:
    (_, size), quantized = signature.sizes[0], signature.op.endswith("quantize")
    given = (torch.randn(rows, size), torch.ones(size), 1e-5)
    cached = 4 * size + 4 * rows * size + _written(rows, size, quantized=quantized)
    return (*given, None, _group(signature)) if quantized else given, Work(cached=cached)


def _silu_and_mul(signature: OpSignature, rows: int) -> tuple[tuple[Any, ...], Work]:
    (_, size), quantized = signature.sizes[0], signature.op.endswith("quantize")
    given = (torch.randn(rows, 2 * size),)
    cached = 8 * rows * size + _written(rows, size, quantized=quantized)
    return (*given, None, _group(signature)) if quantized else given, Work(cached=cached)


def _quantize(signature: OpSignature, rows: int) -> tuple[tuple[Any, ...], Work]:
    size = dict(signature.sizes)["size"]
    cached = 4 * rows * size + _written(rows, size, quantized=True)
    return (torch.randn(rows, size), None, _group(signature)), Work(cached=cached)


def _embedding(signature: OpSignature, rows: int) -> tuple[tuple[Any, ...], Work]:
    (_, vocabulary), (_, hidden) = signature.sizes
    ids = torch.randint(0, vocabulary, (rows,))
    return (ids, torch.ones(vocabulary, hidden)), Work(cached=8 * rows * hidden)


def _group(signature: OpSignature) -> int:
    return dict(signature.sizes).get("group", 0)


def _written(rows: int, size: int, *, quantized: bool) -> int:
    return rows * (size + 4) if quantized else 4 * rows * size


ROW_OPS: dict[str, Callable[[OpSignature, int], tuple[tuple[Any, ...], Work]]] = {
    "embedding": _embedding,
    "rms_norm": _rms_norm,
    "rms_norm_quantize": _rms_norm,
    "silu_and_mul": _silu_and_mul,
    "silu_and_mul_quantize": _silu_and_mul,
    "quantize": _quantize,
}


def seconds(call: Callable[[], Any], times: int = 1) -> float:
    """Of one call, as a mean over some."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times
