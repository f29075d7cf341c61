"""Weights of GPTQ checkpoints (Frantar et al., arXiv 2210.17323; AutoGPTQ's layout).

A weight ``X.weight`` [N, K] is stored transposed: ``X.qweight`` int32 [K * bits / 32, N],
``X.qzeros`` int32 [groups, N * bits / 32], ``X.scales`` [groups, N] and ``X.g_idx`` int32
[K], the group of each column. The layout ``gptq`` stores zero points less one, modulo the
codes' range; ``gptq_v2`` stores them as they are.
"""

from collections.abc import Mapping
from functools import partial

import torch

from enginebay.errors import ModelError
from enginebay.flow import Frozen
from enginebay.hookspecs.format import Checkpoint, StoredForm, TensorInfo

from .codes import Codes, numbered
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


class _Scheme(Frozen, frozen=True, kw_only=True):
    bits: int
    group_size: int
    symmetric: bool
    less_one: bool
    """Whether zero points are stored less one."""


def find_weights(config: QuantizationConfig, checkpoint: Checkpoint) -> dict[str, QuantizedWeight]:
    """Every quantized weight, by the name that it has unquantized.

    :raises ModelError: the configuration can't be honoured, or parts of a weight are
        missing or misshapen
    """
    scheme = _read_scheme(config)
    modules = [
        name.removesuffix(".qweight") for name in checkpoint.tensors if name.endswith(".qweight")
    ]
    return {f"{module}.weight": _weight(checkpoint, module, scheme) for module in modules}


def _read_scheme(config: QuantizationConfig) -> _Scheme:
    bits = config.one_of("bits", (4, 8))
    layout = "checkpoint_format" if config.entries.get("checkpoint_format") else "format"
    written = config.one_of(layout, ("gptq", "gptq_v2", None))
    config.one_of("pack_dtype", ("int32", None))
    config.one_of("is_marlin_format", (False,), False)
    for key in ("rotation", "adapter"):
        if config.entries.get(key):
            fix = "that can't be read; quantize the model without it"
            raise config.refusal(key, config.entries[key], fix)
    rules = config.entries.get("dynamic") or {}
    if not isinstance(rules, dict):
        raise config.refusal("dynamic", rules, "it must be a table of rules by module")
    for rule, changes in rules.items():
        if not str(rule).startswith("-:"):
            fix = "modules with bits of their own can't be read; quantize all in the same way"
            raise config.refusal(f"dynamic.{rule}", changes, fix)
    return _Scheme(
        bits=bits,
        group_size=config.group_size("group_size"),
        symmetric=config.one_of("sym", (True, False), False),
        less_one=written != "gptq_v2",
    )


def _weight(checkpoint: Checkpoint, module: str, scheme: _Scheme) -> QuantizedWeight:
    tensors, name = checkpoint.tensors, f"{module}.qweight"
    rows, columns = _shape(tensors, name, scheme.bits)
    why = f"{name!r} {list(tensors[name].shape)} of {scheme.bits} bits"
    groups = count_groups(tensors[name], name, columns, scheme.group_size)
    expect(tensors, f"{module}.scales", FLOATS, (groups, rows), why=why)
    packed = (groups, words_for(rows, scheme.bits))
    expect(tensors, f"{module}.qzeros", ("I32",), packed, why=why)
    beside = [f"{module}.scales", f"{module}.qzeros"]
    order = f"{module}.g_idx"
    beside += [order] if order in tensors else []
    form = StoredForm(bits=scheme.bits, group_size=columns // groups, offsets=not scheme.symmetric)
    ordered = _order(checkpoint, order, columns, groups) is None
    return QuantizedWeight(
        shape=(rows, columns),
        bits=scheme.bits,
        form=form if ordered else None,
        codes=name,
        others=tuple(beside),
        read=partial(_read, checkpoint, module, scheme, (rows, columns), groups),
    )


def _shape(tensors: Mapping[str, TensorInfo], name: str, bits: int) -> tuple[int, int]:
    info = tensors[name]
    if len(info.shape) != 2 or info.dtype != "I32":
        msg = (
            f"{info.file}: tensor {name!r} has shape {list(info.shape)} and type {info.dtype}, "
            "GPTQ needs [K * bits / 32, N] and I32; is it another method's?"
        )
        raise ModelError(msg)
    return info.shape[1], info.shape[0] * 32 // bits


def _order(checkpoint: Checkpoint, name: str, columns: int, groups: int) -> torch.Tensor | None:
    if name not in checkpoint.tensors:
        return None
    return column_groups(checkpoint, name, columns, groups)


def _read(
    checkpoint: Checkpoint, module: str, scheme: _Scheme, shape: tuple[int, int], groups: int
) -> Codes:
    rows, columns = shape
    words = checkpoint.load(f"{module}.qweight").t().contiguous()
    packed = checkpoint.load(f"{module}.qzeros")
    zeros = unpack_words(packed, scheme.bits, rows).t()
    if scheme.less_one:
        zeros = (zeros + 1) & ((1 << scheme.bits) - 1)
    if scheme.symmetric:
        _check_middle(checkpoint, f"{module}.qzeros", zeros, scheme.bits)
    codes, shifted = numbered(
        unpack_words(words, scheme.bits, columns),
        None if scheme.symmetric else zeros,
        scheme.bits,
    )
    return Codes(
        codes=codes,
        scales=scales_of(checkpoint, f"{module}.scales").t().contiguous(),
        zeros=None if shifted is None else shifted.contiguous(),
        groups=_order(checkpoint, f"{module}.g_idx", columns, groups),
    )


def _check_middle(checkpoint: Checkpoint, name: str, zeros: torch.Tensor, bits: int) -> None:
    middle = 1 << (bits - 1)
    if bool((zeros != middle).any()):
        other = int(zeros[zeros != middle][0])
        msg = (
            f"{checkpoint.tensors[name].file}: tensor {name!r} has the zero point {other}, but "
            f"the quantization is symmetric, around {middle}; set 'sym' to false if it is not, "
            "and 'checkpoint_format' to the layout that it has"
        )
        raise ModelError(msg)
