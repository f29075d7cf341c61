"""Memory in numba code: addresses as typed pointers, and sixteen lanes at a time.

Tensors reach compiled code as addresses: an integer costs a call far less than an
array does. Pointers index without bounds, so whoever passes an address has checked the
shape. A tail goes through ``fetch`` and ``put`` as a part of a vector, and so has the
arithmetic of the body. As in ``cpu_lanes`` the builder is not passed by the caller.
"""

from typing import Any

from numba import types
from numba.core import cgutils

from .cpu_jit import inlined
from .cpu_lanes import FLOAT, INT, INTS, VECTOR, WIDTH, constant, emitted, ir, lanes

LONG = ir.IntType(64)
float_pointer = types.CPointer(types.float32)
long_pointer = types.CPointer(types.int64)
int_pointer = types.CPointer(types.int32)


@emitted(float_pointer, types.intp)
def floats(builder: Any, address: Any) -> Any:
    """Memory at an address as float32."""
    return builder.inttoptr(address, FLOAT.as_pointer())


@emitted(int_pointer, types.intp)
def ints(builder: Any, address: Any) -> Any:
    """Memory at an address as int32."""
    return builder.inttoptr(address, INT.as_pointer())


@emitted(long_pointer, types.intp)
def longs(builder: Any, address: Any) -> Any:
    """Memory at an address as int64."""
    return builder.inttoptr(address, LONG.as_pointer())


@emitted(float_pointer, float_pointer, types.intp)
def offset(builder: Any, pointer: Any, index: Any) -> Any:
    """The float32 pointer ``index`` elements further."""
    return builder.gep(pointer, [index])


@emitted(long_pointer, long_pointer, types.intp)
def offset_longs(builder: Any, pointer: Any, index: Any) -> Any:
    """The int64 pointer ``index`` elements further."""
    return builder.gep(pointer, [index])


def emit_load(builder: Any, pointer: Any, index: Any) -> Any:
    """``pointer[index : index + 16]``, not aligned."""
    place = builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer())
    return builder.load(place, align=4)


def emit_store(builder: Any, pointer: Any, index: Any, value: Any) -> None:
    """``pointer[index : index + 16] = value``, not aligned."""
    place = builder.bitcast(builder.gep(pointer, [index]), VECTOR.as_pointer())
    builder.store(value, place, align=4)


@emitted(lanes, types.intp, types.intp)
def load_ints(builder: Any, address: Any, index: Any) -> Any:
    """int32 ``index .. index + 15`` at an address, as float32."""
    first = builder.gep(builder.inttoptr(address, INT.as_pointer()), [index])
    values = builder.load(builder.bitcast(first, INTS.as_pointer()), align=4)
    return builder.sitofp(values, VECTOR)


@emitted(lanes, float_pointer, types.intp)
def load(builder: Any, pointer: Any, index: Any) -> Any:
    """``pointer[index : index + 16]``."""
    return emit_load(builder, pointer, index)


@emitted(types.void, float_pointer, types.intp, lanes)
def store(builder: Any, pointer: Any, index: Any, value: Any) -> None:
    """``pointer[index : index + 16] = value``."""
    emit_store(builder, pointer, index, value)


def _lanes_as_floats(builder: Any, value: Any) -> Any:
    """Lanes in memory of their own, to be taken one by one.

    Declared as lanes, not as sixteen floats: LLVM joins such memory with other lanes on the
    stack, and has then relied on their alignment without keeping it.
    """
    buffer = cgutils.alloca_once(builder, VECTOR)
    builder.store(value, buffer)
    return builder.bitcast(buffer, FLOAT.as_pointer())


@emitted(lanes, float_pointer, types.intp, types.intp)
def load_part(builder: Any, pointer: Any, index: Any, count: Any) -> Any:
    """The first ``count`` lanes from memory, the others 0; nothing else is read."""
    buffer = _lanes_as_floats(builder, constant(0.0))
    with cgutils.for_range(builder, count) as loop:
        place = builder.gep(pointer, [builder.add(index, loop.index)])
        builder.store(builder.load(place), builder.gep(buffer, [loop.index]))
    return emit_load(builder, buffer, LONG(0))


@emitted(types.void, float_pointer, types.intp, lanes, types.intp)
def store_part(builder: Any, pointer: Any, index: Any, value: Any, count: Any) -> None:
    """Write the first ``count`` lanes; nothing else is touched."""
    buffer = _lanes_as_floats(builder, value)
    with cgutils.for_range(builder, count) as loop:
        place = builder.gep(pointer, [builder.add(index, loop.index)])
        builder.store(builder.load(builder.gep(buffer, [loop.index])), place)


@inlined
def fetch(pointer: Any, index: int, end: int) -> Any:
    """``pointer[index : index + 16]``, lanes from ``end`` on 0 and not read."""
    if end - index >= WIDTH:
        return load(pointer, index)
    return load_part(pointer, index, end - index)


@inlined
def put(pointer: Any, index: int, end: int, value: Any) -> None:
    """``pointer[index : index + 16] = value``, nothing from ``end`` on."""
    if end - index >= WIDTH:
        store(pointer, index, value)
    else:
        store_part(pointer, index, value, end - index)
