"""What a model folder says of its quantization, and how a part of it is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from enginebay.errors import ModelError

from .json_file import read_json

_KEYS: Final = ("quantization_config", "compression_config")
"""Of ``config.json``; the second is the first's old name in compressed-tensors."""
_FILES: Final = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files that older tools wrote in place of the key, and the method when none is named."""


@dataclass(frozen=True)
class QuantizationConfig:
    """The entries, and where they stand."""

    where: str
    """File and key, for messages."""
    method: Any
    """``quant_method``, whatever it is."""
    entries: Mapping[str, Any]

    def refusal(self, key: str, value: Any, fix: str) -> ModelError:
        """An error that names the entry, its value and the fix."""
        gap = ": " if self.where.endswith(".json") else "."
        return ModelError(f"{self.where}{gap}{key} is {value!r}; {fix}")

    def one_of(self, key: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        """An entry that has few values.

        :raises ModelError: it has another
        """
        value = self.entries.get(key, default)
        if not any(value == each and type(value) is type(each) for each in allowed):
            raise self.refusal(key, value, f"what can be read is {_listed(allowed)}")
        return value

    def group_size(self, key: str) -> int:
        """Columns that share a scale; -1: a row has one.

        :raises ModelError: it is something else
        """
        size = self.entries.get(key)
        if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
            raise self.refusal(key, size, "it must be a number of columns > 0, or -1 for a row")
        return size


def find_quantization(folder: Path, config: Mapping[str, Any]) -> QuantizationConfig | None:
    """The quantization of the model in ``folder``; ``None``: there is none.

    :raises ModelError: the entry is no table
    """
    for key in _KEYS:
        if config.get(key):
            return _checked(f"{folder / 'config.json'}: {key}", config[key])
    for file, method in _FILES.items():
        entries = read_json(folder / file)
        if entries:
            return _checked(str(folder / file), entries, method)
    return None


def _checked(where: str, entries: Any, default: str | None = None) -> QuantizationConfig:
    if not isinstance(entries, dict):
        msg = f"{where} is {entries!r}; it must be a table that describes the quantization"
        raise ModelError(msg)
    method = entries.get("quant_method", default)
    return QuantizationConfig(where=where, method=method, entries=entries)


def _listed(allowed: tuple[Any, ...]) -> str:
    return " or ".join(repr(value) for value in allowed)
