"""Sixteen float32 lanes as one value in numba code.

``Lanes`` is an LLVM vector: one AVX-512 register, two of AVX2, four of SSE or NEON.
Each operation is IEEE-754 on every lane by itself, so a lane's bits depend neither on
the machine's register width nor on what stands in its neighbours. ``+ - * /`` work on
``Lanes``; ``fma`` rounds once, and nothing is fused unless it is written as ``fma``.
The two reductions go through one fixed tree.

The functions are for compiled code only: each is written as the LLVM instructions it
becomes, and its first parameter, the IR builder, is not passed by the caller.
"""

import inspect
import operator
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

ir = cgutils.ir  # llvmlite comes with numba

WIDTH = 16
FLOAT = ir.FloatType()
INT = ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, WIDTH)
INTS = ir.VectorType(INT, WIDTH)


class LanesType(types.Type):  # type: ignore[misc]
    """numba's type of sixteen float32 lanes."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = LanesType()


@register_model(LanesType)
class LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    """Held as an LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def emitted(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a numba intrinsic of a function that emits its instructions.

    :param result: numba type of what it returns
    :param arguments: numba types of its parameters after the builder
    """

    def wrap(emit: Callable[..., Any]) -> Any:
        def code(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            value = emit(builder, *values)
            return context.get_dummy_value() if result is types.void else value

        def answer(_context: Any, *_kinds: Any) -> Any:
            return result(*arguments), code

        answer.__name__ = emit.__name__
        answer.__doc__ = emit.__doc__
        answer.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
        return intrinsic(answer)

    return wrap


def _arithmetic(operation: Callable[[Any, Any], Any], instruction: str) -> None:
    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and all(kind == lanes for kind in args) and not kws:
                return signature(lanes, lanes, lanes)
            return None

    def emit(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return getattr(builder, instruction)(*values)

    infer_global(operation)(Template)
    lower_builtin(operation, lanes, lanes)(emit)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


def constant(value: float) -> Any:
    """The same float in every lane, as LLVM constant."""
    return ir.Constant(VECTOR, [value] * WIDTH)


def emit_splat(builder: Any, scalar: Any, kind: Any = VECTOR) -> Any:
    """A scalar in every lane."""
    empty = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(empty, scalar, INT(0))
    return builder.shuffle_vector(first, empty, ir.Constant(INTS, [0] * WIDTH))


def emit_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z with one rounding."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    name = f"llvm.fma.v{WIDTH}f32"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [x, y, z])


def _first(builder: Any, count: Any) -> Any:
    number = ir.Constant(INTS, list(range(WIDTH)))
    return builder.icmp_signed("<", number, emit_splat(builder, builder.trunc(count, INT), INTS))


def _greater(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _tree(builder: Any, value: Any, join: Callable[[Any, Any], Any]) -> Any:
    """Lane i joins lane i + 8, then i + 4, i + 2, i + 1; lane 0 has the result."""
    step = WIDTH // 2
    while step:
        order = [(lane + step) % WIDTH for lane in range(WIDTH)]
        value = join(value, builder.shuffle_vector(value, value, ir.Constant(INTS, order)))
        step //= 2
    return builder.extract_element(value, INT(0))


@emitted(lanes, types.float32)
def splat(builder: Any, value: Any) -> Any:
    """A float32 in every lane."""
    return emit_splat(builder, value)


@emitted(lanes, lanes, lanes, lanes)
def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once."""
    return emit_fma(builder, x, y, z)


@emitted(lanes, lanes, lanes)
def maximum(builder: Any, x: Any, y: Any) -> Any:
    """The greater of each lane; y where x is not a number."""
    return _greater(builder, x, y)


@emitted(lanes, lanes, lanes, lanes, lanes)
def where_below(builder: Any, x: Any, bound: Any, low: Any, high: Any) -> Any:
    """``low`` in lanes with x < bound, ``high`` elsewhere, so also for x = NaN."""
    return builder.select(builder.fcmp_ordered("<", x, bound), low, high)


@emitted(lanes, lanes, types.intp, types.intp, lanes)
def between(builder: Any, value: Any, first: Any, end: Any, other: Any) -> Any:
    """``value`` in lanes first .. end - 1, ``other`` elsewhere."""
    inside = builder.and_(_first(builder, end), builder.not_(_first(builder, first)))
    return builder.select(inside, value, other)


@emitted(lanes, lanes)
def power_of_two(builder: Any, shifted: Any) -> Any:
    """2^n for integers -126 <= n <= 127, given as the float 1.5 * 2^23 + n.

    n stands in the low bits of that float; 2^n has the biased exponent n + 127.
    """
    bits = builder.add(builder.bitcast(shifted, INTS), ir.Constant(INTS, [127] * WIDTH))
    return builder.bitcast(builder.shl(bits, ir.Constant(INTS, [23] * WIDTH)), VECTOR)


@emitted(types.float32, lanes)
def total(builder: Any, value: Any) -> Any:
    """The sum of the lanes, float32."""
    return _tree(builder, value, builder.fadd)


@emitted(types.float32, lanes)
def greatest(builder: Any, value: Any) -> Any:
    """The greatest lane, float32; lanes that are not numbers may be passed over."""
    return _tree(builder, value, lambda x, y: _greater(builder, x, y))
