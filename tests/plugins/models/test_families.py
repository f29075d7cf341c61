"""What the families read out of a configuration, and what they refuse."""

import pytest

from enginebay.conformance.tiny import tiny_config, tiny_shapes
from enginebay.errors import ModelError
from enginebay.hookspecs.model import ModelContext
from enginebay.plugins.models import llama, mistral, qwen2, qwen3

PLUGINS = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}


def family(architecture):
    plugin = PLUGINS[architecture]
    return plugin.enginebay_model(plugin.Options(), ModelContext())


def spec(architecture="LlamaForCausalLM", without=(), **overrides):
    config = tiny_config(architecture, **overrides)
    return family(architecture).spec({k: v for k, v in config.items() if k not in without})


@pytest.mark.parametrize("architecture", PLUGINS)
@pytest.mark.parametrize("overrides", [{}, {"tie_word_embeddings": True, "attention_bias": True}])
def test_weight_map_lists_what_a_checkpoint_has(architecture, overrides):
    """Names and shapes are those of the tiny checkpoints, tied heads and biases included."""
    if architecture == "MistralForCausalLM":
        overrides = {k: v for k, v in overrides.items() if k != "attention_bias"}
    config = tiny_config(architecture, head_dim=24, **overrides)
    weights = family(architecture).weights(family(architecture).spec(config))
    assert {weight.name: weight.shape for weight in weights} == tiny_shapes(config)


def test_weight_map_names_shard_axes_and_roles():
    """Column-parallel weights and biases split by rows, row-parallel ones by columns."""
    read = spec(attention_bias=True)
    weights = {weight.name: weight for weight in family("LlamaForCausalLM").weights(read)}
    layer = "model.layers.0"
    axes = {name: weight.shard_axis for name, weight in weights.items()}
    assert axes[f"{layer}.self_attn.k_proj.weight"] == 0
    assert axes[f"{layer}.self_attn.k_proj.bias"] == 0
    assert axes[f"{layer}.self_attn.o_proj.weight"] == 1
    assert axes[f"{layer}.self_attn.o_proj.bias"] is None
    assert axes[f"{layer}.mlp.down_proj.weight"] == 1
    assert axes[f"{layer}.input_layernorm.weight"] is None
    assert weights["lm_head.weight"].role == "head"
    assert weights["model.embed_tokens.weight"].role == "embedding"
    assert weights[f"{layer}.self_attn.o_proj.bias"].role == "bias"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("pretraining_tp", 2),
        ("num_local_experts", 8),
        ("num_experts", 64),
        ("n_routed_experts", 4),
        ("final_logit_softcapping", 30.0),
        ("residual_multiplier", 0.22),
        ("hidden_size", 0),
        ("intermediate_size", "64"),
        ("vocab_size", 3.5),
        ("num_hidden_layers", True),
        ("num_key_value_heads", 3),
        ("rms_norm_eps", 0),
        ("tie_word_embeddings", "yes"),
        ("eos_token_id", [1, -2]),
        ("attention_bias", 1),
    ],
)
def test_values_that_cannot_be_honoured_are_named(key, value):
    """A configuration that asks for something else stops the start, naming key and value."""
    with pytest.raises(ModelError) as raised:
        spec(**{key: value})
    assert repr(key) in str(raised.value)
    assert repr(value) in str(raised.value)


def test_missing_sizes_are_named():
    """A size without a default is required."""
    with pytest.raises(ModelError, match="'vocab_size' is missing"):
        spec(without=["vocab_size"])


def test_head_dim_has_to_follow_from_something():
    """Without ``head_dim`` the heads divide the hidden size."""
    with pytest.raises(ModelError, match="'head_dim' is None"):
        spec(hidden_size=66, head_dim=None)
    assert spec(head_dim=None).head_dim == 16


def test_defaults_are_those_of_transformers():
    """Keys that older checkpoints leave out have the values that transformers assumes."""
    absent = ["num_key_value_heads", "head_dim", "max_position_embeddings", "sliding_window"]
    assert spec(without=absent).num_kv_heads == 4
    assert spec(without=absent).max_positions == 2048
    read = spec("MistralForCausalLM", without=absent, num_attention_heads=16)
    assert (read.num_kv_heads, read.sliding_window) == (8, 4096)
    read = spec("Qwen3ForCausalLM", without=absent, num_attention_heads=32)
    assert (read.num_kv_heads, read.head_dim) == (32, 128)


def test_qwen_windows():
    """Off unless switched on, and then for all layers or none."""
    on = {"use_sliding_window": True, "sliding_window": 20}
    assert spec("Qwen2ForCausalLM", sliding_window=20).sliding_window is None
    assert spec("Qwen2ForCausalLM", max_window_layers=0, **on).sliding_window == 20
    assert spec("Qwen3ForCausalLM", max_window_layers=2, **on).sliding_window is None
    with pytest.raises(ModelError, match="'max_window_layers' is 1"):
        spec("Qwen3ForCausalLM", max_window_layers=1, **on)
    with pytest.raises(ModelError, match="'layer_types'"):
        spec("Qwen2ForCausalLM", layer_types=["full_attention", "sliding_attention"], **on)


def test_biases_that_a_family_does_not_have_are_refused():
    """Mistral has no biases: one in its configuration would be dropped silently."""
    with pytest.raises(ModelError, match="'attention_bias' is True"):
        spec("MistralForCausalLM", attention_bias=True)


def test_token_ids_and_dtype_in_both_spellings():
    """One EOS id or a list; ``dtype`` or ``torch_dtype``."""
    assert spec(eos_token_id=[1, 7]).eos_token_ids == (1, 7)
    assert spec(eos_token_id=None).eos_token_ids == ()
    assert spec(torch_dtype="torch.bfloat16").dtype == "bfloat16"
    assert spec(without=["torch_dtype"], dtype="float16").dtype == "float16"
