"""What numba has no name for: operations on 64 neighbours at once, and on bits.

numba turns a search into one comparison after another, for it may not reorder floating
point. The order in which a maximum is sought shows in no bit of it, as long as no NaN is
among the numbers: the chain refuses such rows before any sampler sees them.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_ir = cgutils.ir  # llvmlite comes with numba

_emitted = cast("Callable[[Callable[..., Any]], Any]", intrinsic)

CHUNK: Final = 64
"""Logits that are looked at together."""
_FLOAT: Final = _ir.FloatType()
_WORD: Final = _ir.IntType(32)
_LONG: Final = _ir.IntType(64)


def _loaded(element: Any, context: Any, builder: Any, kind: Any, array: Any, first: Any) -> Any:
    """CHUNK elements of an array from ``first`` on, all present, as a vector."""
    data = context.make_array(kind)(context, builder, array).data
    address = builder.gep(data, [first])
    pointer = _ir.VectorType(element, CHUNK).as_pointer()
    return builder.load(builder.bitcast(address, pointer), align=4)


def _called(builder: Any, name: str, result: Any, values: Any, flags: tuple[str, ...] = ()) -> Any:
    kind = _ir.FunctionType(result, [value.type for value in values])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, values, fastmath=flags)


@_emitted
def largest(typing: Any, array: Any, first: Any) -> Any:
    """Of a float32 array: the largest of ``array[first : first + CHUNK]``."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        chunk = _loaded(_FLOAT, context, builder, signature.args[0], *values)
        name = "llvm.vector.reduce.fmax.v64f32"
        return _called(builder, name, _FLOAT, [chunk], ("nnan", "nsz"))

    return types.float32(array, types.intp), emit


@_emitted
def largest_word(typing: Any, array: Any, first: Any) -> Any:
    """The same of a uint32 array."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        chunk = _loaded(_WORD, context, builder, signature.args[0], *values)
        return _called(builder, "llvm.vector.reduce.umax.v64i32", _WORD, [chunk])

    return types.uint32(array, types.intp), emit


@_emitted
def reaching(typing: Any, array: Any, first: Any, floor: Any) -> Any:
    """Of a float32 array: which of ``array[first : first + CHUNK]`` reach ``floor``, a bit each."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        chunk = _loaded(_FLOAT, context, builder, signature.args[0], *values[:2])
        one = builder.insert_element(
            _ir.Constant(chunk.type, _ir.Undefined), values[2], _ir.Constant(_WORD, 0)
        )
        same = _ir.Constant(_ir.VectorType(_WORD, CHUNK), [0] * CHUNK)
        floors = builder.shuffle_vector(one, one, same)
        return builder.bitcast(builder.fcmp_ordered(">=", chunk, floors), _LONG)

    return types.uint64(array, types.intp, types.float32), emit


@_emitted
def lowest_bit(typing: Any, mask: Any) -> Any:
    """Number of the lowest bit set in a uint64 other than 0."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        surely = _ir.Constant(_ir.IntType(1), 1)
        return _called(builder, "llvm.cttz.i64", _LONG, [values[0], surely])

    return types.int64(types.uint64), emit


@_emitted
def power_of_two(typing: Any, exponent: Any) -> Any:
    """2 to an int32 from -126 to 127, as float32."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        biased = builder.add(values[0], _ir.Constant(_WORD, 127))
        return builder.bitcast(builder.shl(biased, _ir.Constant(_WORD, 23)), _FLOAT)

    return types.float32(types.int32), emit


@_emitted
def bits_of(typing: Any, number: Any) -> Any:
    """A float64 as the int64 that stands in the same bits."""

    def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], _LONG)

    return types.int64(types.float64), emit
