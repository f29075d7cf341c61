"""Which safetensors file of a folder defines which tensor.

An index's ``weight_map`` decides for every tensor it names, and only those exist. A
folder without one has its weights in ``model.safetensors``, or in files that define
each tensor once.
"""

import re
from pathlib import Path
from typing import Any, Final

import structlog

from enginebay.errors import ModelError
from enginebay.hookspecs.format import TensorInfo

from .damage import damaged
from .json_file import read_json
from .safetensors_header import read_header

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
_NUMBERED: Final = re.compile(r"-(\d+)-of-(\d+)\.safetensors$")
_ELSEWHERE: Final = ("adapter", "consolidated")
"""Beginnings of file names that hold other weights: adapters, a vendor's own layout."""

log = structlog.get_logger("enginebay.formats.safetensors")


def has_weights(folder: Path) -> bool:
    """Whether the folder holds safetensors weights of a whole model."""
    return (folder / INDEX).is_file() or bool(_candidates(folder))


def find_tensors(folder: Path) -> dict[str, TensorInfo]:
    """Every tensor of a model folder, each with the one file that defines it.

    :raises ModelError: a file is missing or damaged, or a tensor is defined twice
    """
    index = folder / INDEX
    if index.is_file():
        return _indexed(folder, index)
    single = folder / SINGLE
    return read_header(single) if single.is_file() else _united(_candidates(folder))


def _candidates(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.safetensors"))
    return [path for path in paths if not path.name.startswith(_ELSEWHERE)]


def _indexed(folder: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise damaged(index, "it has no weight_map")
    shards = sorted({_shard_name(index, name) for name in weight_map.values()})
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        raise damaged(
            index, f"it names {len(shards)} files, {len(missing)} are missing: {_some(missing)}"
        )
    headers = {name: read_header(folder / name) for name in shards}
    tensors: dict[str, TensorInfo] = {}
    for tensor, name in weight_map.items():
        if tensor not in headers[name]:
            raise damaged(folder / name, f"tensor {tensor!r}, which {INDEX} puts there, is not")
        tensors[tensor] = headers[name][tensor]
    _warn_unindexed(headers, weight_map)
    return tensors


def _shard_name(index: Path, name: Any) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        msg = f"{index}: weight_map names {name!r}; it must be a file name in the same folder"
        raise ModelError(msg)
    return name


def _warn_unindexed(headers: dict[str, dict[str, TensorInfo]], weight_map: dict[str, str]) -> None:
    for name, header in headers.items():
        stray = [tensor for tensor in header if weight_map.get(tensor) != name]
        if stray:
            log.warning("unindexed tensors are not used", file=name, tensors=_some(stray))


def _united(paths: list[Path]) -> dict[str, TensorInfo]:
    _check_numbering(paths)
    tensors: dict[str, TensorInfo] = {}
    for path in paths:
        for name, info in read_header(path).items():
            if name in tensors:
                msg = (
                    f"tensor {name!r} is defined by {tensors[name].file} and by {path}; "
                    f"remove one of the files, or add the {INDEX} that chooses"
                )
                raise ModelError(msg)
            tensors[name] = info
    return tensors


def _check_numbering(paths: list[Path]) -> None:
    """Refuse a set of ``-00001-of-00003`` files with gaps."""
    numbers = [match.groups() for path in paths if (match := _NUMBERED.search(path.name))]
    for count in {total for _, total in numbers}:
        have = {int(number) for number, total in numbers if total == count}
        missing = sorted(set(range(1, int(count) + 1)) - have)
        if missing:
            raise damaged(paths[0].parent, f"of {int(count)} files these are missing: {missing}")


def _some(names: list[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")
