"""The ``quantization_config`` of compressed-tensors: which weight has which scheme.

Groups of ``config_groups`` name their targets: a module, a pattern after ``re:``, or a
class. Names come before patterns and those before classes, as in the package
``compressed-tensors`` and in vLLM; ``ignore`` wins over all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from enginebay.flow import Frozen

from .quantization_config import QuantizationConfig

LAYOUTS: Final = {
    "int-quantized": False,
    "naive-quantized": False,
    "pack-quantized": True,
}
"""``format`` -> whether codes are packed into 32-bit words."""
_FIX: Final = "that can't be read; use the unquantized model, or quantize it in another way"
_TOP: Final = ("config_groups", "quant_method", "format", "ignore", "quantization_status")
_TELLING: Final = ("global_compression_ratio", "version", "provider", "run_compressed")
"""Entries that change nothing."""
_GROUP: Final = ("targets", "weights", "input_activations", "format")
_ARGUMENTS: Final = ("num_bits", "type", "symmetric", "group_size", "strategy", "dynamic")
_HOW_FOUND: Final = ("observer", "observer_kwargs", "scale_dtype", "zp_dtype", "actorder")
"""Arguments that say how scales were found, and in what type; a weight whose columns are
out of order shows that by its ``weight_g_idx``."""


class Scheme(Frozen, frozen=True, kw_only=True):
    """How the weights of one group are stored, and what they are multiplied with."""

    bits: int
    symmetric: bool
    strategy: str
    """``tensor``, ``channel`` or ``group``: what a scale belongs to."""
    group_size: int = 0
    """Columns that share a scale, for ``group``."""
    packed: bool = False
    inputs: str = "float"
    static: bool = False


@dataclass(frozen=True)
class Schemes:
    """The schemes of a model's modules."""

    targets: tuple[tuple[str, Scheme], ...]
    ignore: tuple[str, ...]

    def of(self, module: str) -> Scheme | None:
        """The scheme of a matrix by its module's name; ``None``: plain numbers."""
        if any(_names(pattern, module) for pattern in self.ignore):
            return None
        kind = "Embedding" if module.endswith("embed_tokens") else "Linear"
        if kind in self.ignore:
            return None
        exact = [scheme for target, scheme in self.targets if target == module]
        named = [scheme for target, scheme in self.targets if _names(target, module)]
        classed = [scheme for target, scheme in self.targets if target == kind]
        return next(iter((*exact, *named, *classed)), None)


def read_schemes(config: QuantizationConfig) -> Schemes:
    """Read the whole entry.

    :raises ModelError: something in it can't be honoured; names key, value and fix
    """
    entries = config.entries
    _only(config, "", entries, (*_TOP, *_TELLING))
    groups, ignore = entries.get("config_groups"), entries.get("ignore") or []
    if not isinstance(groups, dict) or not groups:
        raise config.refusal("config_groups", groups, "it must be a table of groups")
    _strings(config, "ignore", ignore)
    targets: list[tuple[str, Scheme]] = []
    for name, group in groups.items():
        key = f"config_groups.{name}"
        if not isinstance(group, dict):
            raise config.refusal(key, group, "a group must be a table with targets and weights")
        _strings(config, f"{key}.targets", group.get("targets"))
        scheme = _scheme(config, key, group)
        targets += [(target, scheme) for target in group["targets"]]
    return Schemes(targets=tuple(targets), ignore=tuple(ignore))


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target.removeprefix("re:"), module) is not None
    return target == module


def _scheme(config: QuantizationConfig, key: str, group: Mapping[str, Any]) -> Scheme:
    _only(config, f"{key}.", group, _GROUP)
    layout = group.get("format") or config.entries.get("format")
    if not isinstance(layout, str) or layout not in LAYOUTS:
        place = f"{key}.format" if group.get("format") else "format"
        raise config.refusal(place, layout, f"what can be read is {', '.join(LAYOUTS)}")
    weights = _arguments(config, f"{key}.weights", group.get("weights"))
    strategy, size = _grouping(config, f"{key}.weights", weights)
    if weights["dynamic"]:
        raise config.refusal(f"{key}.weights.dynamic", weights["dynamic"], _FIX)
    inputs = group.get("input_activations")
    static = inputs is not None and _static(config, f"{key}.input_activations", inputs)
    return Scheme(
        bits=weights["num_bits"],
        symmetric=weights["symmetric"],
        strategy=strategy,
        group_size=size,
        packed=LAYOUTS[layout],
        inputs="float" if inputs is None else "int8",
        static=static,
    )


def _arguments(config: QuantizationConfig, key: str, given: Any) -> dict[str, Any]:
    """The arguments of one tensor with their defaults; integers of 4 or 8 bits."""
    if not isinstance(given, dict):
        raise config.refusal(key, given, "it must be a table of quantization arguments")
    _only(config, f"{key}.", given, (*_ARGUMENTS, *_HOW_FOUND))
    defaults = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False}
    arguments = defaults | {name: value for name, value in given.items() if value is not None}
    if arguments["type"] != "int":
        raise config.refusal(f"{key}.type", arguments["type"], _FIX)
    if arguments["num_bits"] not in (4, 8) or not isinstance(arguments["num_bits"], int):
        raise config.refusal(f"{key}.num_bits", arguments["num_bits"], _FIX)
    if not isinstance(arguments["symmetric"], bool):
        raise config.refusal(f"{key}.symmetric", arguments["symmetric"], "it must be a boolean")
    return arguments


def _grouping(
    config: QuantizationConfig, key: str, arguments: Mapping[str, Any]
) -> tuple[str, int]:
    """Strategy and group size of weights; each may follow from the other."""
    size = arguments.get("group_size")
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = arguments.get("strategy", implied)
    if strategy not in ("tensor", "channel", "group"):
        raise config.refusal(f"{key}.strategy", strategy, _FIX)
    if strategy != "group":
        return strategy, 0
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise config.refusal(f"{key}.group_size", size, "groups need a number of columns > 0")
    return strategy, size


def _static(config: QuantizationConfig, key: str, given: Any) -> bool:
    """Whether activations, which must be int8, have one scale that is stored."""
    arguments = _arguments(config, key, given)
    dynamic, strategy = arguments["dynamic"], arguments.get("strategy", "tensor")
    if arguments["num_bits"] != 8:
        raise config.refusal(f"{key}.num_bits", arguments["num_bits"], _FIX)
    if not arguments["symmetric"]:
        raise config.refusal(f"{key}.symmetric", False, _FIX)
    if (dynamic, strategy) not in ((True, "token"), (False, "tensor")):
        which = "dynamic" if dynamic is True else "static"
        raise config.refusal(f"{key}.strategy", strategy, f"with {which} scales {_FIX}")
    return not dynamic


def _strings(config: QuantizationConfig, key: str, given: Any) -> None:
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise config.refusal(key, given, "it must be a list of names and 're:' patterns")
    for each in given:
        try:
            re.compile(each.removeprefix("re:") if each.startswith("re:") else "")
        except re.error as error:
            raise config.refusal(key, each, f"its pattern can't be read ({error})") from error


def _only(
    config: QuantizationConfig, prefix: str, given: Mapping[str, Any], known: tuple[str, ...]
) -> None:
    """Refuse what would change a result and isn't understood; null and {} change nothing."""
    for name, value in given.items():
        dense = name == "sparsity_config" and isinstance(value, dict)
        if name in known or not value or (dense and value.get("format") == "dense"):
            continue
        raise config.refusal(f"{prefix}{name}", value, _FIX)
