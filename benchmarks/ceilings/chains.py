"""Multiply-adds on registers alone: as many independent chains as hide the latency."""

from typing import Any

from numba import types
from numba.core import cgutils

from enginebay.plugins.kernels.cpu_features import features, wide
from enginebay.plugins.kernels.cpu_lanes import INT, INTS, VECTOR, WIDTH, emit_fma, emitted, ir
from enginebay.plugins.kernels.cpu_memory import LONG, emit_load, float_pointer

CHAINS = 12 if wide() else 6
"""Chains of sixteen lanes: of 32 registers with AVX-512, of 16 pairwise without."""
HALVES = ir.VectorType(INT, WIDTH // 2)


def _chains(builder: Any, turns: Any, place: Any, kind: Any, step: Any) -> None:
    """Run ``step(value, factor)`` in CHAINS independent chains of registers; their values
    begin as what stands at ``place`` and end there, so that nothing is left out."""
    width = WIDTH // kind.count
    starts = [emit_load(builder, place, LONG(WIDTH * number)) for number in range(CHAINS + 1)]
    whole = [builder.bitcast(each, ir.VectorType(kind.element, WIDTH)) for each in starts]
    parts = [_part(builder, each, kind, n) for each in whole for n in range(width)]
    factor, values = parts[0], parts[width:]
    sums = [cgutils.alloca_once(builder, kind) for _ in values]
    for each, value in zip(sums, values, strict=True):
        builder.store(value, each)
    with cgutils.for_range(builder, turns):
        for each in sums:
            builder.store(step(builder.load(each), factor), each)
    for number, each in enumerate(sums):
        byte = builder.ptrtoint(place, LONG)
        target = builder.add(byte, LONG(64 + 4 * kind.count * number))
        builder.store(builder.load(each), builder.inttoptr(target, kind.as_pointer()), align=4)


def _part(builder: Any, value: Any, kind: Any, number: int) -> Any:
    """The ``number``-th piece of a vector of sixteen."""
    order = [number * kind.count + lane for lane in range(kind.count)]
    mask = ir.Constant(ir.VectorType(INT, kind.count), order)
    return builder.shuffle_vector(value, value, mask)


@emitted(types.void, types.intp, float_pointer)
def float_chains(builder: Any, turns: Any, place: Any) -> None:
    """value = factor * factor + value, fused, in float32."""
    _chains(builder, turns, place, VECTOR, lambda value, f: emit_fma(builder, f, f, value))


@emitted(types.void, types.intp, float_pointer)
def int_chains(builder: Any, turns: Any, place: Any) -> None:
    """The fastest exact multiply-add of int8 into int32 that the CPU has."""
    kind, step = INT_STEPS[INT_MEANS]
    _chains(builder, turns, place, kind, lambda value, f: step(builder, value, f))


def _vpdpbusd(builder: Any, value: Any, factor: Any) -> Any:
    """Four products of bytes a lane, added to it."""
    kind = ir.FunctionType(INTS, [INTS] * 3)
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpdpbusd.512")
    return builder.call(call, [value, factor, factor])


def _vpmaddwd(builder: Any, value: Any, factor: Any) -> Any:
    """Two products of bytes, widened before, a lane; added by an instruction of its own.
    They depend on the chain's value, or the compiler would compute them once."""
    pairs = ir.VectorType(ir.IntType(16), WIDTH)
    kind = ir.FunctionType(HALVES, [pairs, pairs])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
    products = [builder.bitcast(each, pairs) for each in (value, factor)]
    return builder.add(value, builder.call(call, products))


def _plain(builder: Any, value: Any, factor: Any) -> Any:
    """One product a lane."""
    return builder.add(value, builder.mul(value, factor))


INT_STEPS = {
    "vpdpbusd": (INTS, _vpdpbusd),
    "vpmaddwd": (HALVES, _vpmaddwd),
    "multiply and add": (INTS, _plain),
}
PRODUCTS = {"vpdpbusd": 4 * WIDTH, "vpmaddwd": 2 * WIDTH, "multiply and add": WIDTH}
"""Multiply-adds of sixteen int32 lanes in one step."""
INT_MEANS = (
    "vpdpbusd"
    if "avx512vnni" in features()
    else "vpmaddwd"
    if "avx2" in features()
    else "multiply and add"
)
