"""Reads values of a ``config.json``, with errors that name key and value."""

from collections.abc import Mapping
from typing import Any, NoReturn

from enginebay.errors import ModelError

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu", "swish"),
    "pretraining_tp": (1,),
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "num_experts_per_tok": (0,),
    "no_rope_layers": ([],),
    "position_embedding_type": ("rope", "rotary"),
    "embedding_multiplier": (1,),
    "residual_multiplier": (1,),
    "logits_scaling": (1,),
    "logit_scale": (1,),
    "final_logit_softcapping": (),
    "attn_logit_softcapping": (),
    "attention_multiplier": (),
    "query_pre_attn_scalar": (),
    "clip_qkv": (),
    "use_qk_norm": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
}
"""Keys that change the computation, with the values this decoder agrees with.

An absent key and ``null`` always agree.
"""


class Settings:
    """A ``config.json`` as typed values. Absent keys and ``null`` take the default."""

    def __init__(self, config: Mapping[str, Any], model: str) -> None:
        self.config = config
        self.model = model

    def fail(self, key: str, needs: str) -> NoReturn:
        """:raises ModelError: names the key, what it holds and what it needs"""
        held = repr(self.config[key]) if key in self.config else "missing"
        msg = f"config.json of a {self.model} model: {key!r} is {held}; {needs}"
        raise ModelError(msg)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number; required when there is no default."""
        value = self.config.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.fail(key, f"it needs to be a whole number of at least {minimum}")
        return value

    def number(self, key: str, default: float) -> float:
        """A positive number."""
        value = self.config.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.fail(key, "it needs to be a positive number")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """``true`` or ``false``."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, "it needs to be true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.config.get(key)
        ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in ids):
            self.fail(key, "it needs to be a token id or a list of token ids")
        return tuple(ids)

    def require(self, key: str, *agreed: Any) -> None:
        """:raises ModelError: the key holds something else than the values given"""
        if self.config.get(key) not in agreed:
            told = " or ".join("null" if one is None else repr(one) for one in agreed)
            self.fail(key, f"only {told} is supported")

    def require_neutral(self) -> None:
        """:raises ModelError: a key asks for something that this decoder can't do"""
        for key, agreed in NEUTRAL.items():
            self.require(key, *agreed, None)
