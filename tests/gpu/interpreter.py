"""Makes Triton's interpreter right for bfloat16, and strict about memory.

Import it before a kernel module, in a process with ``TRITON_INTERPRET=1``. As it comes, the
interpreter keeps bfloat16 as integers and computes with their bits; and a pointer past its
tensor reads or overwrites whatever lies there.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as stock

BF16 = tl.bfloat16
Handle, Builder = stock.TensorHandle, stock.InterpreterBuilder
OPERATIONS = ("binary_op", "unary_op", "ternary_op", "create_fma", "create_rsqrt", "create_erf")


class OutOfBounds(IndexError):
    """A load or store outside every argument, or of what another program has stored."""


def widen(bits):
    """bfloat16 bits -> float32."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def narrow(values):
    """float32 -> bfloat16 bits, to nearest even."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded.astype(np.uint16))


def _is_bf16(handle):
    return isinstance(handle, Handle) and handle.dtype.scalar == BF16


def _as_float32(handle):
    return Handle(widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _computing_in_float32(name):
    """Replace an operation: bfloat16 in, float32 inside, rounded once."""
    old = getattr(Builder, name)

    def operation(self, *arguments, **named):
        if not any(map(_is_bf16, arguments)):
            return old(self, *arguments, **named)
        result = old(self, *map(_as_float32, arguments), **named)
        return result if result.data.dtype == np.bool_ else Handle(narrow(result.data), BF16)

    setattr(Builder, name, operation)


def _convert(values, source, target, mode):
    if (source, target) == (tl.float32, BF16):
        return narrow(values)
    if (source, target) == (BF16, tl.float32):
        return widen(values).view(np.uint32)
    return _stock_convert(values, source, target, mode)


def _patch_tensor(tensor, scope):
    """With numpy 2.4 the interpreter's own loop bounds are arrays of one element."""
    _stock_patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(np.squeeze(self.handle.data)))


class Guard:
    """The interpreter's memory, with the bounds of each launch's arguments."""

    raw = stock._interpreter
    starts = ends = np.zeros(0, np.int64)
    owners: list = []

    def __getattr__(self, name):
        return getattr(self.raw, name)

    def load(self, pointers, mask, other, dtype):
        self._check(pointers, mask, np.dtype(dtype).itemsize, writes=False)
        return self.raw.load(pointers, mask, other, dtype)

    def store(self, pointers, value, mask):
        self._check(pointers, mask, np.asarray(value).itemsize, writes=True)
        return self.raw.store(pointers, value, mask)

    def launch(self, tensors):
        """Note the address ranges of a launch."""
        spans = {}
        for tensor in tensors:
            reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            size = (reach + 1) * tensor.element_size()
            spans[tensor.data_ptr()] = max(size, spans.get(tensor.data_ptr(), 0))
        self.starts = np.array(sorted(spans), np.int64)
        self.ends = np.array([at + spans[at] for at in sorted(spans)], np.int64)
        self.owners = [None] * len(spans)

    def _check(self, pointers, mask, size, *, writes):
        live = np.broadcast_to(mask, np.shape(pointers))
        at = np.asarray(pointers)[live].astype(np.int64).ravel()
        if not at.size:
            return
        which = np.searchsorted(self.starts, at, "right") - 1
        bad = (which < 0) | (at + size > self.ends[np.maximum(which, 0)])
        if bad.any():
            what = "store" if writes else "load"
            raise OutOfBounds(f"{what} of {bad.sum()} of {at.size} elements outside all arguments")
        me = _program()
        for number in np.unique(which):
            self._own((at[which == number] - self.starts[number]) // size, number, size, me, writes)

    def _own(self, elements, number, size, me, writes):
        if self.owners[number] is None:
            if not writes:
                return
            length = -(-(self.ends[number] - self.starts[number]) // size)
            self.owners[number] = np.zeros(length, np.int32)
        owners = self.owners[number]
        if ((owners[elements] != 0) & (owners[elements] != me)).any():
            raise OutOfBounds("an element that another program of this launch has stored")
        if writes:
            owners[elements] = me


def _program():
    x, y, z = stock.interpreter_builder.grid_idx
    width, height, _ = stock.interpreter_builder.grid_dim
    return 1 + x + width * (y + height * z)


def _tensors(value):
    if isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "data_ptr") and value.numel():
        yield value


def _init_arguments(self, arguments, named):
    result = _stock_init(self, arguments, named)
    GUARD.launch(list(_tensors([*result[0], *result[1].values()])))
    return result


_stock_convert, _stock_patch = stock._convert_float, stock._patch_lang_tensor
_stock_dot = Builder.create_dot
_stock_init = stock.GridExecutor._init_args_hst
GUARD = Guard()
for _name in OPERATIONS:
    _computing_in_float32(_name)
Builder.create_dot = lambda self, a, b, d, *rest: _stock_dot(
    self, _as_float32(a), _as_float32(b), d, *rest
)
stock._convert_float, stock._patch_lang_tensor = _convert, _patch_tensor
stock.interpreter_builder.options = stock.InterpreterOptions(debug=True)  # device asserts fire
stock._interpreter = GUARD
stock.GridExecutor._init_args_hst = _init_arguments
