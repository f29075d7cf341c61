"""What the Llama-like families share: reading a shape, naming weights, building."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from enginebay.hookspecs.model import Builder, ModelSpec, Weight

from .decoder import LlamaDecoder
from .rope_settings import context_limit, read_rope
from .settings import Settings
from .weight_map import decoder_weights


@dataclass(frozen=True)
class Defaults:
    """What transformers assumes when a configuration leaves a key out."""

    max_positions: int
    num_kv_heads: int | None = None
    """``None``: as many as query heads."""
    head_dim: int | None = None
    """``None``: hidden size divided by query heads."""


@dataclass(frozen=True)
class LlamaLike:
    """A model family that differs from Llama only in what its configuration says."""

    architectures: tuple[str, ...]
    name: str
    defaults: Defaults
    differences: Callable[[Settings], dict[str, Any]]
    """``ModelSpec`` fields of this family, read from the configuration."""

    def spec(self, config: Mapping[str, Any]) -> ModelSpec:
        """Read a ``config.json``.

        :raises ModelError: a value can't be honoured; names key and value
        """
        settings = Settings(config, self.name)
        settings.require_neutral()
        spec = _read_shape(settings, self.architectures[0], self.defaults)
        return msgspec.structs.replace(spec, **self.differences(settings))

    def weights(self, spec: ModelSpec) -> tuple[Weight, ...]:
        """Every tensor the model needs; tied heads are not listed."""
        return decoder_weights(spec)

    def build(self, spec: ModelSpec, builder: Builder) -> LlamaDecoder:
        """The decoder with its weights and kernels."""
        return LlamaDecoder(spec, builder)


def _read_shape(settings: Settings, architecture: str, defaults: Defaults) -> ModelSpec:
    hidden, heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    head_dim = _head_dim(settings, hidden, heads, defaults)
    max_positions = settings.integer("max_position_embeddings", defaults.max_positions)
    rope = read_rope(settings, head_dim, max_positions)
    bos = settings.token_ids("bos_token_id")
    return ModelSpec(
        architecture=architecture,
        vocab_size=settings.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=settings.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_kv_heads(settings, heads, defaults),
        head_dim=head_dim,
        intermediate_size=settings.integer("intermediate_size"),
        max_positions=context_limit(rope, max_positions),
        norm_eps=settings.number("rms_norm_eps", 1e-6),
        rope=rope,
        tie_embeddings=settings.boolean("tie_word_embeddings", default=False),
        eos_token_ids=settings.token_ids("eos_token_id"),
        bos_token_id=bos[0] if bos else None,
        dtype=_dtype(settings),
    )


def _head_dim(settings: Settings, hidden: int, heads: int, defaults: Defaults) -> int:
    if "head_dim" not in settings.config and defaults.head_dim is not None:
        return defaults.head_dim
    if settings.config.get("head_dim") is None and hidden % heads:
        settings.fail("head_dim", f"{heads} heads do not divide the hidden size {hidden}")
    return settings.integer("head_dim", hidden // heads)


def _kv_heads(settings: Settings, heads: int, defaults: Defaults) -> int:
    absent = "num_key_value_heads" not in settings.config
    kv_heads = settings.integer("num_key_value_heads", (absent and defaults.num_kv_heads) or heads)
    if heads % kv_heads:
        settings.fail("num_key_value_heads", f"it needs to divide the {heads} query heads")
    return kv_heads


def _dtype(settings: Settings) -> str:
    """As trained; transformers 5 writes ``dtype``, earlier ones ``torch_dtype``."""
    value = settings.config.get("dtype") or settings.config.get("torch_dtype") or "float32"
    return str(value).removeprefix("torch.")
