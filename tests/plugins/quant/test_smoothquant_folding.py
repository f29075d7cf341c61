"""Smoothing changes no function, and is what saves a model with outlier channels."""

import json

import pytest
import torch

from enginebay.plugins.quant import quantization
from enginebay.plugins.quant.layers import Layer, Source
from enginebay.plugins.quant.smoothing import smooth as smooth_layers

from .conftest import cosine

MODELS = {
    "grouped": ("LlamaForCausalLM", {}),
    "tied, with every bias": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "window": ("MistralForCausalLM", {"sliding_window": 24}),
    "qkv bias": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "norms of queries and keys": ("Qwen3ForCausalLM", {"num_key_value_heads": 1}),
}


@pytest.mark.parametrize("name", MODELS)
def test_folding_preserves_the_function(name, tiny, smooth, monkeypatch):
    """Every layer was smoothed, and without rounding logits are those of the model."""
    architecture, config = MODELS[name]
    model = tiny(architecture, **config)
    chosen = {}

    def noted(*arguments):
        chosen.update(smooth_layers(*arguments))
        return {}

    def unrounded(made, layer, names, *, static):
        quantization._store_float(made, layer, names)

    monkeypatch.setattr(quantization, "smooth", noted)
    monkeypatch.setattr(quantization, "_store_int8", unrounded)
    right = model.logits()
    folder = model.path.with_name("folded")
    folder.mkdir()
    smooth(alpha=0.7).write(model.spec, model.family, model.checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    assert len(config.pop("quantization_config")["ignore"]) == 7 * model.spec.num_layers + 1
    (folder / "config.json").write_text(json.dumps(config))
    folded = type(model)(folder)
    assert len(chosen) == 4 * model.spec.num_layers + 1
    assert not folded.spec.tie_embeddings
    assert (folded.logits() - right).abs().max() < 1e-4
    names = ["model.embed_tokens.weight"]
    assert all(
        torch.equal(folded.checkpoint.load(name), model.checkpoint.load(name)) for name in names
    )
    norm = "model.layers.1.input_layernorm.weight"
    assert not torch.allclose(folded.checkpoint.load(norm), model.checkpoint.load(norm))


def planted(tensors):
    """Make a few channels of all norms and gated rows 200 times as large, and the columns
    that take them as much smaller: no logit changes."""
    places = torch.tensor([3, 17])
    for layer in range(2):
        name = f"model.layers.{layer}"
        for norm, parts in (
            ("input_layernorm", [f"self_attn.{letter}_proj" for letter in "qkv"]),
            ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
        ):
            tensors[f"{name}.{norm}.weight"][places] *= 200
            for part in parts:
                tensors[f"{name}.{part}.weight"][:, places] /= 200
        tensors[f"{name}.mlp.up_proj.weight"][places] *= 200
        tensors[f"{name}.mlp.down_proj.weight"][:, places] /= 200
    tensors["model.norm.weight"][places] *= 200
    tensors["lm_head.weight"][:, places] /= 200


def test_smoothing_saves_a_model_with_outlier_channels(tiny, smooth):
    """Plain W8A8 breaks: other channels are left with a code or two. Smoothed, the same
    model is as near to float as one without outliers."""
    model = tiny()
    right = model.logits()
    outliers = model.change(planted)
    assert (outliers.logits() - right).abs().max() < 2e-3
    plain = (outliers.logits(smooth(smoothing=False)) - right).abs()
    smoothed = (outliers.logits(smooth()) - right).abs()
    assert plain.mean() > 1.0  # logits have a standard deviation of 3
    assert smoothed.mean() < 0.15
    assert cosine(outliers.logits(smooth(smoothing=False)), right) < 0.9
    assert cosine(outliers.logits(smooth()), right) > 0.995


def test_the_search_is_no_worse_than_any_alpha(tiny, smooth):
    """On the rows that it looked at, by the error of the layer's output."""
    from enginebay.plugins.quant.smoothing import best_factors, in_int8

    rows = torch.randn(64, 32) * torch.logspace(-1, 1.5, 32)
    layer = Layer("layer", ("a",), "linear", torch.randn(48, 32), None, rows, (48,))
    layer.source = Source("norm", norm="norm")

    def error(columns):
        product = in_int8(rows / columns) @ in_int8(layer.weight * columns).T
        return float((product - rows @ layer.weight.T).norm())

    alphas = (0.0, 0.3, 0.5, 0.7, 1.0)
    found = best_factors(layer, alphas)
    errors = {alpha: error(best_factors(layer, (alpha,)).columns) for alpha in alphas}
    assert found.alpha == min(errors, key=errors.get)
    assert errors[found.alpha] < 0.8 * max(errors.values())


def test_query_heads_of_one_kv_head_share_factors():
    """Their values are the same: one factor a KV channel, the greatest of the group."""
    rows, weight = torch.ones(8, 2 * 3 * 4), torch.ones(5, 2 * 3 * 4)
    rows[:, 4] = 50.0  # head 1, channel 0: of the first KV head
    values = Layer("qkv", ("q", "k", "v"), "linear", torch.ones(40, 6), None, rows, (24, 8, 8))
    source = Source("values", layer=values, repeats=3, head_dim=4)
    layer = Layer("output", ("o",), "linear", weight, None, rows, (5,), source)
    smooth_layers([layer], [layer, values], (1.0,))
    assert torch.equal(layer.factors, torch.tensor([50.0, 1, 1, 1, 1, 1, 1, 1]))
    assert layer.weight[0, [0, 4, 8, 12]].tolist() == [50, 50, 50, 1]
    assert torch.allclose(values.weight[32], torch.tensor(0.02))
    assert torch.equal(values.weight[:32], torch.ones(32, 6))
