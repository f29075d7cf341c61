"""Hugging Face model folders with safetensors weights.

A folder with ``config.json`` and one weights file, several, or an index with shards; a
single ``.safetensors`` file is read together with the folder around it. Quantized ones
are recognised by their configuration (``quantized.py``).
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from enginebay import hookimpl
from enginebay.errors import ModelError
from enginebay.hookspecs.format import Checkpoint, Format, FormatContext, TensorInfo, TextAssets
from enginebay.hookspecs.source import Files

from .damage import damaged
from .hf_text import read_text_assets
from .json_file import read_json
from .quantized import take_over
from .safetensors_header import read_header
from .shards import find_tensors, has_weights

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The safetensors format has no options."""


class SafetensorsCheckpoint:
    """One model folder. Weights stay on disk until ``load`` asks for them."""

    def __init__(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> None:
        """``tensors``: what the folder defines, each with its file."""
        self._folder = folder
        self._tensors = tensors
        self._open: dict[str, Any] = {}
        self._config = read_json(folder / "config.json")
        self._generation = read_json(folder / "generation_config.json")

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    @property
    def config(self) -> Mapping[str, Any]:
        """``config.json``."""
        return self._config

    @property
    def generation(self) -> Mapping[str, Any]:
        """``generation_config.json``; empty when there is none."""
        return self._generation

    @cached_property
    def text(self) -> TextAssets:
        """Tokenizer and templates, read at the first use."""
        return read_text_assets(self._folder, self._config, self._generation)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name."""
        return self._tensors

    def load(self, name: str) -> torch.Tensor:
        """Read one tensor in its stored type, into memory of its own.

        :raises ModelError: there is no such tensor, or its file became unreadable
        """
        info = self._tensors.get(name)
        if info is None:
            msg = f"{self._folder}: there is no tensor {name!r}"
            raise ModelError(msg)
        try:
            tensor: torch.Tensor = self._reader(info.file).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise damaged(Path(info.file), f"tensor {name!r} can't be read ({error})") from error
        # The library's tensor maps the file: it would change, or crash, with the file.
        return tensor.clone()

    def _reader(self, file: str) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt")
        return self._open[file]


class Safetensors:
    """Opens folders and files that hold safetensors weights."""

    def open(self, files: Files) -> Checkpoint | str:
        """A checkpoint, or why these files are not of this format.

        :raises ModelError: they are, and are damaged; names the file
        """
        path = Path(files.path)
        if path.is_file():
            if path.suffix != ".safetensors":
                return f"{path.name} is not a .safetensors file"
            return _checkpoint(path.parent, read_header(path))
        if not has_weights(path):
            if any(path.glob("*.bin")):
                return f"{path} has .bin weights, which run code when loaded; convert them"
            return f"{path} has no .safetensors files"
        return _checkpoint(path, find_tensors(path))


def _checkpoint(folder: Path, tensors: Mapping[str, TensorInfo]) -> Checkpoint:
    if not (folder / "config.json").is_file():
        msg = f"{folder}: config.json is missing; is the download complete?"
        raise ModelError(msg)
    return take_over(SafetensorsCheckpoint(folder, tensors), folder)


@hookimpl
def enginebay_format(options: Options, context: FormatContext) -> Format:
    """Build the safetensors reader."""
    return Safetensors()
