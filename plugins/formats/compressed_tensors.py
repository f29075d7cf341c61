"""Weights of compressed-tensors checkpoints: integers with scales by row, group or tensor.

A weight ``X.weight`` [N, K] is stored as ``X.weight`` (int8) or as ``X.weight_packed``
with ``X.weight_shape``, beside ``X.weight_scale`` and, where they exist,
``X.weight_zero_point``, ``X.weight_g_idx`` and ``X.input_scale``.
"""

from collections.abc import Mapping
from functools import partial

import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import Checkpoint, StoredForm, TensorInfo

from .codes import Codes, numbered
from .compressed_tensors_config import Scheme, read_schemes
from .packed_words import unpack_words, words_for
from .quantization_config import QuantizationConfig
from .quantized_weight import (
    FLOATS,
    QuantizedWeight,
    column_groups,
    count_groups,
    expect,
    scales_of,
)

_OPTIONAL = ("weight_zero_point", "weight_g_idx", "input_scale", "input_zero_point")


def find_weights(config: QuantizationConfig, checkpoint: Checkpoint) -> dict[str, QuantizedWeight]:
    """Every quantized weight, by the name that it has unquantized.

    :raises ModelError: the configuration can't be honoured, or parts of a weight are
        missing or misshapen
    """
    schemes = read_schemes(config)
    weights: dict[str, QuantizedWeight] = {}
    for stored, info in checkpoint.tensors.items():
        module, _, end = stored.rpartition(".")
        if end not in ("weight", "weight_packed") or len(info.shape) != 2:
            continue
        scheme = schemes.of(module)
        if scheme is not None:
            weights[f"{module}.weight"] = _weight(config, checkpoint, module, stored, scheme)
    return weights


def _weight(
    config: QuantizationConfig, checkpoint: Checkpoint, module: str, stored: str, scheme: Scheme
) -> QuantizedWeight:
    tensors = checkpoint.tensors
    wanted = f"{module}.weight_packed" if scheme.packed else f"{module}.weight"
    info = tensors[stored]
    if stored != wanted or info.dtype in FLOATS:
        msg = (
            f"{info.file}: tensor {stored!r} is stored as {info.dtype}, but {config.where} "
            f"quantizes {module!r}; add it to 'ignore' if it is plain"
        )
        raise ModelError(msg)
    shape = _shape(checkpoint, module, scheme, info)
    groups = _check_scales(tensors, stored, scheme, shape)
    beside = [f"{module}.weight_scale", *([f"{module}.weight_shape"] if scheme.packed else [])]
    beside += [name for end in _OPTIONAL if (name := f"{module}.{end}") in tensors]
    ordered = _order(checkpoint, module, shape[1], groups) is None
    form = StoredForm(
        bits=scheme.bits,
        group_size=shape[1] // groups,
        offsets=not scheme.symmetric,
        inputs=scheme.inputs,
        static=scheme.static,
    )
    return QuantizedWeight(
        shape=shape,
        bits=scheme.bits,
        form=form if ordered else None,
        codes=stored,
        others=tuple(beside),
        read=partial(_read, checkpoint, module, scheme, shape, groups),
    )


def _shape(
    checkpoint: Checkpoint, module: str, scheme: Scheme, info: TensorInfo
) -> tuple[int, int]:
    """Of the weight, which packed words don't tell to the column."""
    rows, columns = info.shape
    tensors, why = checkpoint.tensors, f"the scheme of {module!r}"
    if not scheme.packed:
        expect(tensors, f"{module}.weight", ("I8",), info.shape, why=why)
        return rows, columns
    name = f"{module}.weight_shape"
    expect(tensors, name, ("I64", "I32"), (2,), why=why)
    shape = tuple(int(each) for each in checkpoint.load(name))
    packed = (shape[0], words_for(shape[1], scheme.bits))
    expect(tensors, f"{module}.weight_packed", ("I32",), packed, why=f"{name!r} {list(shape)}")
    return shape[0], shape[1]


def _check_scales(
    tensors: Mapping[str, TensorInfo], stored: str, scheme: Scheme, shape: tuple[int, int]
) -> int:
    """Hold the scales against the scheme.

    :return: how many a row has
    """
    (rows, columns), module = shape, stored.rpartition(".")[0]
    name, why = f"{module}.weight_scale", f"the scheme {scheme.strategy!r} of {module!r}"
    groups = 1
    shapes: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
    if scheme.strategy == "channel":
        shapes = ((rows, 1), (rows,))
    elif scheme.strategy == "group":
        groups = count_groups(tensors[stored], stored, columns, scheme.group_size)
        shapes = ((rows, groups),)
    scale = expect(tensors, name, FLOATS, *shapes, why=why)
    zeros = f"{module}.weight_zero_point"
    if not scheme.symmetric or zeros in tensors:
        packed = (words_for(rows, scheme.bits), groups)
        _check_zeros(tensors, zeros, scale.shape, packed if scheme.packed else None, why)
    if scheme.static:
        expect(tensors, f"{module}.input_scale", FLOATS, (1,), (), why=why)
    return groups


def _check_zeros(
    tensors: Mapping[str, TensorInfo],
    name: str,
    shape: tuple[int, ...],
    packed: tuple[int, ...] | None,
    why: str,
) -> None:
    """Zero points are int8 like the scales, or packed along the rows."""
    if packed is not None and name in tensors and tensors[name].dtype == "I32":
        expect(tensors, name, ("I32",), packed, why=why)
    else:
        expect(tensors, name, ("I8",), shape, why=why)


def _read(
    checkpoint: Checkpoint, module: str, scheme: Scheme, shape: tuple[int, int], groups: int
) -> Codes:
    rows, columns = shape
    zeros = _zeros(checkpoint, module, scheme, rows, groups)
    if scheme.packed:
        words = checkpoint.load(f"{module}.weight_packed")
        unsigned = unpack_words(words, scheme.bits, columns)
    else:
        unsigned = _unsigned(checkpoint, f"{module}.weight", scheme.bits)
    codes, shifted = numbered(unsigned, zeros, scheme.bits)
    scales = scales_of(checkpoint, f"{module}.weight_scale")
    return Codes(
        codes=codes,
        scales=scales.reshape(-1, groups).expand(rows, groups).contiguous(),
        zeros=shifted,
        groups=_order(checkpoint, module, columns, groups),
        input_scale=_input_scale(checkpoint, module) if scheme.static else None,
    )


def _unsigned(checkpoint: Checkpoint, name: str, bits: int) -> torch.Tensor:
    """Signed codes, shifted to begin at 0: uint8.

    :raises ModelError: codes need more than ``bits``
    """
    codes = checkpoint.load(name).view(torch.uint8)
    codes.add_(1 << (bits - 1))
    if bits < 8 and int(codes.max()) >= 1 << bits:
        msg = f"{checkpoint.tensors[name].file}: tensor {name!r} has codes of more than {bits} bits"
        raise ModelError(f"{msg}; quantize the model again")
    return codes


def _zeros(
    checkpoint: Checkpoint, module: str, scheme: Scheme, rows: int, groups: int
) -> torch.Tensor | None:
    """Unsigned zero points [rows, groups]; ``None`` for a symmetric scheme.

    :raises ModelError: the scheme is symmetric and the zero points are not 0
    """
    name = f"{module}.weight_zero_point"
    if name not in checkpoint.tensors:
        return None
    if checkpoint.tensors[name].dtype == "I32":
        words = checkpoint.load(name).t().contiguous()
        zeros = unpack_words(words, scheme.bits, rows).t()
    else:
        zeros = _unsigned(checkpoint, name, scheme.bits)
    if not scheme.symmetric:
        return zeros.reshape(-1, groups).expand(rows, groups)
    _refuse_zeros(checkpoint, name, zeros.float() - (1 << (scheme.bits - 1)))
    return None


def _refuse_zeros(checkpoint: Checkpoint, name: str, zeros: torch.Tensor) -> None:
    if bool((zeros != 0).any()):
        msg = f"{checkpoint.tensors[name].file}: tensor {name!r} is not 0, but the scheme is "
        raise ModelError(f"{msg}symmetric; set 'symmetric' to false in config.json if it is not")


def _order(checkpoint: Checkpoint, module: str, columns: int, groups: int) -> torch.Tensor | None:
    """The group of each column; ``None``: runs of neighbours."""
    name = f"{module}.weight_g_idx"
    if name not in checkpoint.tensors:
        return None
    return column_groups(checkpoint, name, columns, groups)


def _input_scale(checkpoint: Checkpoint, module: str) -> torch.Tensor:
    """The static scale of activations, float32 [1].

    :raises ModelError: it is no positive number, or has a zero point
    """
    zeros, name = f"{module}.input_zero_point", f"{module}.input_scale"
    if zeros in checkpoint.tensors:
        _refuse_zeros(checkpoint, zeros, checkpoint.load(zeros))
    scale = scales_of(checkpoint, name).reshape(1)
    if float(scale) <= 0:
        msg = f"{checkpoint.tensors[name].file}: tensor {name!r} is {float(scale)}; it must be > 0"
        raise ModelError(f"{msg}; quantize the model again")
    return scale
