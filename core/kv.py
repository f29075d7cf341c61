"""What a model asks of attention and its KV store."""

from .hookspecs.kernel import KVSpec, OpSignature
from .hookspecs.model import ModelSpec


def kv_spec(
    spec: ModelSpec, *, block_size: int, max_model_len: int, dtype: str, cache_dtype: str = ""
) -> KVSpec:
    """What the KV store of a model must hold, ``block_size`` tokens a block.

    :param dtype: of the activations
    :param cache_dtype: of keys and values, when it is another: ``int8``
    """
    return KVSpec(
        num_layers=spec.num_layers,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=block_size,
        max_model_len=max_model_len,
        dtype=dtype,
        scale=spec.head_dim**-0.5,
        sliding_window=spec.sliding_window,
        cache_dtype=cache_dtype,
    )


def attention_signature(kv: KVSpec) -> OpSignature:
    """The op that the kernel table resolves to a builder of ``Attention``."""
    features = {"sliding_window": kv.sliding_window, "soft_cap": kv.soft_cap}
    return OpSignature(
        op="attention",
        dtype=kv.dtype,
        scheme=kv.cache_dtype,
        sizes=(
            ("heads", kv.num_heads),
            ("kv_heads", kv.num_kv_heads),
            ("head_dim", kv.head_dim),
            ("block_size", kv.block_size),
        ),
        features=tuple(name for name, value in features.items() if value is not None),
    )
