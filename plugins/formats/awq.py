"""Weights of AWQ checkpoints (Lin et al., arXiv 2306.00978), AutoAWQ's ``gemm`` layout.

A weight ``X.weight`` [N, K] is stored transposed: ``X.qweight`` int32 [K, N / 8],
``X.qzeros`` int32 [groups, N / 8] and ``X.scales`` [groups, N]. The eight 4-bit codes of a
word are those of rows 0, 2, 4, 6, 1, 3, 5, 7, the lowest bits first.
"""

from functools import partial
from typing import Final

import torch

from enginebay.errors import ModelError
from enginebay.hookspecs.format import Checkpoint, StoredForm

from .codes import Codes, numbered
from .quantization_config import QuantizationConfig
from .quantized_weight import FLOATS, QuantizedWeight, count_groups, expect, scales_of

_PLACES: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word each of eight neighbouring rows is."""
_CHUNK: Final = 64
"""Words of a row at a time: they stay in the cache from one pass to the next."""


def find_weights(config: QuantizationConfig, checkpoint: Checkpoint) -> dict[str, QuantizedWeight]:
    """Every quantized weight, by the name that it has unquantized.

    :raises ModelError: the configuration can't be honoured, it and the tensors say
        different things, or parts of a weight are missing or misshapen
    """
    size = _group_size(config)
    skipped = config.entries.get("modules_to_not_convert") or []
    if not isinstance(skipped, list) or not all(isinstance(name, str) for name in skipped):
        raise config.refusal("modules_to_not_convert", skipped, "it must be a list of names")
    weights: dict[str, QuantizedWeight] = {}
    for name, info in checkpoint.tensors.items():
        module, _, end = name.rpartition(".")
        plain = end == "weight" and len(info.shape) == 2 and ".layers." in module
        if end != "qweight" and not plain:
            continue
        if (end == "qweight") is any(part in module for part in skipped):
            msg = (
                f"{info.file}: tensor {name!r} disagrees with {config.where}, whose "
                f"modules_to_not_convert is {skipped}; correct the list"
            )
            raise ModelError(msg)
        if end == "qweight":
            weights[f"{module}.weight"] = _weight(checkpoint, module, size)
    return weights


def _group_size(config: QuantizationConfig) -> int:
    config.one_of("w_bit" if "w_bit" in config.entries else "bits", (4,))
    config.one_of("zero_point", (True,), True)
    config.one_of("backend", ("autoawq", "auto", None))
    for key in ("version", "format", "checkpoint_format"):
        config.one_of(key, ("gemm", "GEMM", None))
    return config.group_size("q_group_size" if "q_group_size" in config.entries else "group_size")


def _weight(checkpoint: Checkpoint, module: str, size: int) -> QuantizedWeight:
    tensors, name = checkpoint.tensors, f"{module}.qweight"
    info = tensors[name]
    if len(info.shape) != 2 or info.dtype != "I32":
        msg = (
            f"{info.file}: tensor {name!r} has shape {list(info.shape)} and type {info.dtype}, "
            "AWQ needs [K, N / 8] and I32; is it another method's?"
        )
        raise ModelError(msg)
    columns, words = info.shape
    groups = count_groups(info, name, columns, size)
    why = f"{name!r} {list(info.shape)} in groups of {columns // groups}"
    expect(tensors, f"{module}.qzeros", ("I32",), (groups, words), why=why)
    expect(tensors, f"{module}.scales", FLOATS, (groups, words * 8), why=why)
    return QuantizedWeight(
        shape=(words * 8, columns),
        bits=4,
        form=StoredForm(bits=4, group_size=columns // groups, offsets=True),
        codes=name,
        others=(f"{module}.qzeros", f"{module}.scales"),
        read=partial(_read, checkpoint, module),
    )


def _read(checkpoint: Checkpoint, module: str) -> Codes:
    zeros = _rows(checkpoint.load(f"{module}.qzeros"))
    codes, shifted = numbered(_rows(checkpoint.load(f"{module}.qweight")), zeros, 4)
    scales = scales_of(checkpoint, f"{module}.scales").t().contiguous()
    return Codes(codes=codes, scales=scales, zeros=shifted)


def _rows(words: torch.Tensor) -> torch.Tensor:
    """int32 [columns, words] -> uint8 [rows, columns], rows in order."""
    columns, count = words.shape
    rows = torch.empty(count, 8, columns, dtype=torch.uint8)
    for begin in range(0, count, _CHUNK):
        # A word holds codes of eight rows: whole columns of words become rows at once.
        part = words[:, begin : begin + _CHUNK].t().contiguous()
        for row, place in enumerate(_PLACES):
            rows[begin : begin + _CHUNK, row] = (part >> (4 * place)) & 15
    return rows.view(count * 8, columns)
