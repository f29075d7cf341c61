"""The one decoder of the Llama-like families, over the ops of the kernel table.

Pre-norm residual blocks: RMS norm, attention with rotary positions and grouped
queries, RMS norm, gated SiLU feed-forward (Touvron et al., arXiv 2302.13971); with
optional biases, and an optional norm of every query and key head before the rotation.
"""

from collections.abc import Callable

import torch

from enginebay.batch import Batch
from enginebay.hookspecs.kernel import Attention, OpSignature
from enginebay.hookspecs.model import Builder, ModelSpec

from .kit import Kit
from .rope import Rotary

EMBEDDINGS = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class LlamaDecoder:
    """T rows of token ids become logits for the rows that want them."""

    def __init__(self, spec: ModelSpec, builder: Builder) -> None:
        self.spec = spec
        self.embeddings = builder.tensor(EMBEDDINGS)
        kit = Kit(builder, str(self.embeddings.dtype).removeprefix("torch."), spec.norm_eps)
        sizes = (("vocab", spec.vocab_size), ("hidden", spec.hidden_size))
        self.embed: Callable[..., torch.Tensor] = kit.op("embedding", sizes)
        self.rotary = self._rotary(spec, builder)
        self.layers = [Layer(spec, number, kit) for number in range(spec.num_layers)]
        self.run_layers = builder.program(self._run_layers)
        self.head = kit.linear("lm_head", (EMBEDDINGS if spec.tie_embeddings else HEAD,), "head")
        self.norm = kit.norm(FINAL_NORM, self.head)

    def forward(self, batch: Batch, attention: Attention) -> torch.Tensor:
        """Compute every row of the batch and write its keys and values.

        :return: float32 logits [len(batch.logit_rows), vocab_size]
        """
        hidden = self.embed(batch.token_ids, self.embeddings)
        attention.prepare(batch)
        cos_sin = self.rotary.cos_sin(batch.positions)
        self.run_layers(hidden, cos_sin, attention)
        wanted = batch.logit_rows.shape[0]
        if wanted == 0:
            return hidden.new_empty((0, self.spec.vocab_size), dtype=torch.float32)
        if wanted < batch.num_tokens:
            hidden = hidden.index_select(0, batch.logit_rows)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits

    def _rotary(self, spec: ModelSpec, builder: Builder) -> Rotary:
        """Angles of every position, which the kernels look up as they do embeddings."""
        sizes = (("vocab", spec.max_positions), ("hidden", spec.rope.dim))
        look_up = builder.op(OpSignature(op="embedding", dtype="float32", sizes=sizes))
        device = self.embeddings.device
        return Rotary(spec.rope, device, builder.keep, spec.max_positions, look_up)

    def _run_layers(
        self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Attention
    ) -> None:
        for layer in self.layers:
            layer.forward(hidden, cos_sin, attention)


class Layer:
    """One residual block."""

    def __init__(self, spec: ModelSpec, number: int, kit: "Kit") -> None:
        self.number = number
        self.heads, self.kv_heads, self.dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        name = f"model.layers.{number}"
        self.qkv = kit.linear(f"{name}.self_attn.qkv", _projections(f"{name}.self_attn", "qkv"))
        self.input_norm = kit.norm(f"{name}.input_layernorm.weight", self.qkv)
        self.query_norm = self.key_norm = None
        if spec.qk_norm:
            self.query_norm = kit.head_norm(f"{name}.self_attn.q_norm.weight")
            self.key_norm = kit.head_norm(f"{name}.self_attn.k_norm.weight")
        self.output = kit.linear(f"{name}.self_attn.output", _projections(f"{name}.self_attn", "o"))
        self.feed_output = kit.feed(self.output)
        gate_up = tuple(f"{name}.mlp.{part}_proj.weight" for part in ("gate", "up"))
        self.gate_up = kit.linear(f"{name}.mlp.gate_up", gate_up)
        self.mlp_norm = kit.norm(f"{name}.post_attention_layernorm.weight", self.gate_up)
        self.down = kit.linear(f"{name}.mlp.down", (f"{name}.mlp.down_proj.weight",))
        self.activate = kit.activation(spec.intermediate_size, self.down)

    def forward(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Attention) -> None:
        """Add the block's attention and feed-forward to ``hidden`` [T, H], in place."""
        q, k, v = self._project(hidden)
        attention.write(self.number, q, k, v, cos_sin)
        self.output(self.feed_output(attention.attend(self.number, q)), hidden)
        self.down(self.activate(self.gate_up(self.mlp_norm(hidden))), hidden)

    def _project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [T, H] -> q [T, Hq, D], k and v [T, Hk, D], not rotated."""
        rows, dim = hidden.shape[0], self.dim
        qkv = self.qkv(self.input_norm(hidden)).view(rows, self.heads + 2 * self.kv_heads, dim)
        heads = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = torch.split(qkv, heads, dim=1)  # rows lie apart
        if self.query_norm is not None and self.key_norm is not None:
            q = self.query_norm(q.flatten(0, 1)).view(q.shape)
            k = self.key_norm(k.flatten(0, 1)).view(k.shape)
        return q, k, v


def _projections(name: str, letters: str) -> tuple[str, ...]:
    return tuple(f"{name}.{letter}_proj.weight" for letter in letters)
