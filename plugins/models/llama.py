"""Llama and what took over its shape unchanged (SmolLM and SmolLM2 among them)."""

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
    """Biases, which Llama has none of unless its configuration says so."""
    attention_bias = settings.boolean("attention_bias", default=False)
    return {
        "qkv_bias": attention_bias,
        "output_bias": attention_bias,
        "mlp_bias": settings.boolean("mlp_bias", default=False),
    }


@hookimpl
def enginebay_model(options: Options, context: ModelContext) -> ModelFamily:
    """Build the family."""
    return LlamaLike(("LlamaForCausalLM",), "Llama", Defaults(max_positions=2048), differences)
