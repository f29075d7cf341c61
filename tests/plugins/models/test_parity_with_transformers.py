"""Logit parity with transformers in float32, for every shape a family can take."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay.conformance.parity import Tolerance, check_parity, compare_logits

CLOSE = Tolerance(max_difference=1e-4, max_kl=1e-8)
IDS = torch.randint(0, 300, (90,), generator=torch.Generator().manual_seed(7)).tolist()

SHAPES = {
    "llama": ("LlamaForCausalLM", {}),
    "llama-tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama-biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", {}),
    "mistral-window": ("MistralForCausalLM", {"sliding_window": 20}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0},
    ),
    "qwen2-tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-biases": ("Qwen3ForCausalLM", {"attention_bias": True}),
}
CASE_60 = {
    "wide-heads": ("LlamaForCausalLM", {"head_dim": 32}),
    "narrow-heads": ("LlamaForCausalLM", {"hidden_size": 160, "head_dim": 24}),
    "multi-head": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "grouped": ("MistralForCausalLM", {"num_key_value_heads": 2, "head_dim": 24}),
    "multi-query": ("LlamaForCausalLM", {"num_key_value_heads": 1, "head_dim": 32}),
    "multi-query-norms": ("Qwen3ForCausalLM", {"num_key_value_heads": 1, "head_dim": 32}),
    "wide-heads-biases": ("Qwen2ForCausalLM", {"num_key_value_heads": 1, "head_dim": 32}),
    "attention-bias": ("LlamaForCausalLM", {"attention_bias": True, "head_dim": 24}),
}

FUSED = {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up")}


def hold(model, chunk):
    logits = model.logits(IDS, chunk=chunk)
    check_parity(compare_logits(logits, model.reference(IDS)), CLOSE)


@pytest.mark.parametrize("chunk", [None, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_families(tiny, shape, chunk):
    """Every family and option of it gives the logits of transformers."""
    architecture, overrides = shape
    hold(tiny(architecture, **overrides), chunk)


@pytest.mark.parametrize("chunk", [None, 1], ids=["prefill", "decode"])
@pytest.mark.parametrize("shape", CASE_60.values(), ids=CASE_60)
def test_case_60_head_shapes(tiny, shape, chunk):
    """Case 60: head sizes that are not hidden size / heads, grouped and single KV heads."""
    architecture, overrides = shape
    hold(tiny(architecture, **overrides), chunk)


def as_phi3(model):
    """The same weights under the names of Phi-3, which stores its projections fused."""
    weights = load_file(model.path / "model.safetensors")
    fused = {name: tensor for name, tensor in weights.items() if "_proj" not in name}
    for layer in range(2):
        name = f"model.layers.{layer}"
        for target, parts in FUSED.items():
            owner = target.split(".")[0]
            tensors = [weights[f"{name}.{owner}.{part}_proj.weight"] for part in parts]
            fused[f"{name}.{target}.weight"] = torch.cat(tensors)
        for same in ("self_attn.o_proj", "mlp.down_proj"):
            fused[f"{name}.{same}.weight"] = weights[f"{name}.{same}.weight"]
    return fused


@pytest.mark.parametrize("chunk", [None, 1], ids=["prefill", "decode"])
def test_case_60_partial_rotary(tiny, chunk):
    """Case 60: a head whose first half alone is rotated, as Phi-3's can be."""
    from transformers import Phi3Config, Phi3ForCausalLM

    from enginebay.conformance.transformers_logits import transformers_logits

    model = tiny(partial_rotary_factor=0.5)
    config = Phi3Config(
        vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, pad_token_id=0,
        max_position_embeddings=512, original_max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "partial_rotary_factor": 0.5},
        attn_implementation="eager",
    )  # fmt: skip
    reference = Phi3ForCausalLM(config).eval()
    reference.load_state_dict(as_phi3(model))
    expected = transformers_logits(reference, IDS)
    check_parity(compare_logits(model.logits(IDS, chunk=chunk), expected), CLOSE)
    full = tiny(name="full").logits(IDS)
    assert compare_logits(full, expected).max_difference > 0.1, "partial made no difference"


def test_row_invariant_kernels_agree_too(tiny):
    """The tiled products are held to the same tolerance as the plain ones."""
    from enginebay.conformance.parity import teacher_forced

    model = tiny("Qwen3ForCausalLM")
    subject = model.subject(row_invariant=True)
    assert subject.table.row_invariant
    logits = teacher_forced(subject, IDS, chunk=23)
    check_parity(compare_logits(logits, model.reference(IDS)), CLOSE)


def test_a_changed_weight_is_noticed(tiny):
    """The parity check fails when one norm weight differs by 1 percent."""
    model = tiny()
    expected = model.reference(IDS)
    weights = load_file(model.path / "model.safetensors")
    weights["model.layers.1.input_layernorm.weight"][3] *= 1.01
    save_file(weights, model.path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(AssertionError, match="differ by"):
        check_parity(compare_logits(model.logits(IDS), expected), CLOSE)
