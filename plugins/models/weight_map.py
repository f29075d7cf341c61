"""The tensors of a Llama-like decoder: names, shapes, shard axes and quant roles.

Column-parallel projections split their rows (axis 0), row-parallel ones their columns
(axis 1), as in Megatron-LM (Shoeybi et al., arXiv 1909.08053); what is added after a
row-parallel projection is replicated.
"""

from collections.abc import Iterator

from enginebay.hookspecs.model import ModelSpec, Weight

from .decoder import EMBEDDINGS, FINAL_NORM, HEAD


def decoder_weights(spec: ModelSpec) -> tuple[Weight, ...]:
    """Every tensor that the decoder of ``spec`` needs; a tied head is not listed."""
    return tuple(_weights(spec))


def _weights(spec: ModelSpec) -> Iterator[Weight]:
    hidden = spec.hidden_size
    table = (spec.vocab_size, hidden)
    yield Weight(name=EMBEDDINGS, shape=table, role="embedding", shard_axis=0)
    for number in range(spec.num_layers):
        name = f"model.layers.{number}"
        yield _norm(f"{name}.input_layernorm", hidden)
        yield from _attention(f"{name}.self_attn", spec)
        yield _norm(f"{name}.post_attention_layernorm", hidden)
        yield from _feed_forward(f"{name}.mlp", spec)
    yield _norm(FINAL_NORM.removesuffix(".weight"), hidden)
    if not spec.tie_embeddings:
        yield Weight(name=HEAD, shape=table, role="head", shard_axis=0)


def _attention(name: str, spec: ModelSpec) -> Iterator[Weight]:
    hidden = spec.hidden_size
    heads = {"q": spec.num_heads, "k": spec.num_kv_heads, "v": spec.num_kv_heads}
    for letter, count in heads.items():
        rows = count * spec.head_dim
        yield from _linear(f"{name}.{letter}_proj", rows, hidden, 0, bias=spec.qkv_bias)
    columns = spec.num_heads * spec.head_dim
    yield from _linear(f"{name}.o_proj", hidden, columns, 1, bias=spec.output_bias)
    if spec.qk_norm:
        yield _norm(f"{name}.q_norm", spec.head_dim)
        yield _norm(f"{name}.k_norm", spec.head_dim)


def _feed_forward(name: str, spec: ModelSpec) -> Iterator[Weight]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    for part in ("gate", "up"):
        yield from _linear(f"{name}.{part}_proj", inner, hidden, 0, bias=spec.mlp_bias)
    yield from _linear(f"{name}.down_proj", hidden, inner, 1, bias=spec.mlp_bias)


def _norm(name: str, size: int) -> Weight:
    return Weight(name=f"{name}.weight", shape=(size,), role="norm")


def _linear(name: str, rows: int, columns: int, axis: int, *, bias: bool) -> Iterator[Weight]:
    yield Weight(name=f"{name}.weight", shape=(rows, columns), role="linear", shard_axis=axis)
    if bias:
        shard = 0 if axis == 0 else None
        yield Weight(name=f"{name}.bias", shape=(rows,), role="bias", shard_axis=shard)
