"""Mistral: Llama with fewer KV heads and a sliding window (arXiv 2310.06825)."""

from typing import Any

import msgspec

from enginebay import hookimpl
from enginebay.hookspecs.model import ModelContext, ModelFamily

from .llama_like import Defaults, LlamaLike
from .settings import Settings

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing to set: everything comes from the model's configuration."""


def differences(settings: Settings) -> dict[str, Any]:
    """The window of every layer: 4096 when the key is absent, none when it is null."""
    settings.require("attention_bias", False, None)
    settings.require("mlp_bias", False, None)
    if "sliding_window" in settings.config and settings.config["sliding_window"] is None:
        return {"sliding_window": None}
    kinds = set(settings.config.get("layer_types") or ["sliding_attention"])
    if kinds != {"sliding_attention"}:
        settings.fail("layer_types", "layers that differ in their window are not supported")
    return {"sliding_window": settings.integer("sliding_window", 4096)}


@hookimpl
def enginebay_model(options: Options, context: ModelContext) -> ModelFamily:
    """Build the family."""
    defaults = Defaults(max_positions=131072, num_kv_heads=8)
    return LlamaLike(("MistralForCausalLM",), "Mistral", defaults, differences)
