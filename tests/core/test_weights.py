"""Weights: what a checkpoint must have, what stays in memory, and what is warned of."""

from dataclasses import dataclass, field

import pytest
import torch
from structlog.testing import capture_logs

from enginebay.conformance.tiny import tiny_config, tiny_tensors
from enginebay.dispatch import KernelTable
from enginebay.errors import ModelError
from enginebay.hookspecs.format import TensorInfo
from enginebay.hookspecs.kernel import KernelContext
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.quant import PackedLinear
from enginebay.kv import attention_signature, kv_spec
from enginebay.plugins.kernels.reference import ReferenceKernels
from enginebay.plugins.models import llama
from enginebay.plugins.quant.none import Float
from enginebay.weights import CheckpointBuilder, load_decoder

FAMILY = llama.enginebay_model(llama.Options(), ModelContext())


@dataclass
class Fake:
    """A checkpoint in memory."""

    config: dict
    stored: dict
    location: str = "somewhere"
    reads: list = field(default_factory=list)

    @property
    def tensors(self):
        return {
            name: TensorInfo(
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                file="weights.safetensors",
            )
            for name, tensor in self.stored.items()
        }

    def load(self, name):
        self.reads.append(name)
        return self.stored[name]


def fake(**overrides):
    config = tiny_config("LlamaForCausalLM", **overrides)
    return Fake(config, tiny_tensors(config))


def kernels():
    return KernelTable([("reference", ReferenceKernels(KernelContext("cpu", 1)))])


def load(checkpoint, quantizer=None, dtype="float32"):
    spec = FAMILY.spec(checkpoint.config)
    return load_decoder(spec, FAMILY, checkpoint, quantizer or Float(), kernels(), dtype, "cpu")


def builder(checkpoint, quantizer=None):
    spec = FAMILY.spec(checkpoint.config)
    return CheckpointBuilder(
        checkpoint, FAMILY.weights(spec), quantizer or Float(), kernels(), "float32", "cpu"
    )


def num_bytes(tensors):
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())


@pytest.mark.parametrize("tied", [False, True])
def test_every_kept_tensor_is_recorded_once(tied):
    """The ledger's bytes are the checkpoint's and the rotary table's; a tied head adds none."""
    checkpoint = fake(tie_word_embeddings=tied, attention_bias=True, mlp_bias=True)
    decoder, tensors = load(checkpoint)
    rotary = 4 * decoder.spec.max_positions * checkpoint.config["head_dim"]
    assert num_bytes(tensors) == num_bytes(checkpoint.stored) + rotary
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensors.values()]
    assert len(set(storages)) == len(storages)
    assert ("lm_head.weight" in tensors) is not tied


def test_kept_tensors_are_copies():
    """A reader may hand out views of a mapped file; none of them stays."""
    checkpoint = fake()
    _, tensors = load(checkpoint)
    sources = {tensor.untyped_storage().data_ptr() for tensor in checkpoint.stored.values()}
    assert not sources & {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())


def test_parts_are_stacked_with_their_biases():
    """A fused layer has its parts' rows in order, and their biases."""
    checkpoint = fake(attention_bias=True)
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    packed = builder(checkpoint).linear("qkv", tuple(f"{name}.weight" for name in names))
    rows = torch.cat([checkpoint.stored[f"{name}.weight"] for name in names])
    assert torch.equal(packed.tensors["weight"], rows)
    bias = torch.cat([checkpoint.stored[f"{name}.bias"] for name in names])
    assert torch.equal(packed.bias, bias)
    assert (packed.in_features, packed.out_features) == (64, 128)


def test_a_quantizer_that_repacks_leaves_only_its_own_tensors():
    """What a scheme replaces is not kept; what it adds is recorded."""

    class Halves(Float):
        def pack(self, name, role, weight, bias):
            packed = super().pack(name, role, weight, bias)
            tensors = {"low": weight[:, ::2].clone(), "scale": weight.amax(1)}
            return PackedLinear(
                name, "int8", packed.in_features, packed.out_features, tensors, bias
            )

    made = builder(fake(tie_word_embeddings=True), Halves())
    made.tensor("model.embed_tokens.weight")
    made.linear("lm_head", ("model.embed_tokens.weight",), "head")
    made.linear("o", ("model.layers.0.self_attn.o_proj.weight",))
    assert set(made.tensors) == {
        "model.embed_tokens.weight", "lm_head.low", "lm_head.scale", "o.low", "o.scale",
    }  # fmt: skip


def test_each_tensor_is_read_once():
    """Loading reads nothing twice, tied embeddings included."""
    checkpoint = fake(tie_word_embeddings=True)
    load(checkpoint)
    assert sorted(checkpoint.reads) == sorted(checkpoint.stored)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.1.mlp.up_proj.weight"])
def test_missing_and_misshapen_tensors_stop_the_start(name):
    """The message names file and tensor (case 69's kind)."""
    checkpoint = fake()
    checkpoint.stored[name] = checkpoint.stored[name][:-1]
    with pytest.raises(ModelError, match=f"weights.safetensors: tensor '{name}' has shape"):
        load(checkpoint)
    del checkpoint.stored[name]
    with pytest.raises(ModelError, match=f"somewhere: tensor '{name}' is missing"):
        load(checkpoint)


def test_unknown_extras_warn_and_harmless_ones_do_not():
    """Case 68: extra keys are named in a warning; old rotary buffers are not."""
    checkpoint = fake()
    checkpoint.stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    with capture_logs() as logs:
        load(checkpoint)
    assert logs == []
    checkpoint.stored["model.layers.7.extra"] = torch.zeros(1)
    with capture_logs() as logs:
        load(checkpoint)
    (warning,) = logs
    assert warning["log_level"] == "warning"
    assert warning["names"] == ["model.layers.7.extra"]


def test_a_tied_head_may_be_stored_too_but_not_differ():
    """Equal copies are fine; a head of other values is defined twice, and stops the start."""
    checkpoint = fake(tie_word_embeddings=True)
    head = checkpoint.stored["model.embed_tokens.weight"].clone()
    checkpoint.stored["lm_head.weight"] = head
    with capture_logs() as logs:
        load(checkpoint)
    assert logs == []
    head[3, 3] += 1
    with pytest.raises(ModelError, match=r"weights.safetensors: 'lm_head.weight' differs"):
        load(checkpoint)


@pytest.mark.parametrize("said_by", ["config", "tensors"])
def test_case_66_float16_of_a_bfloat16_model_warns(said_by):
    """Case 66: bfloat16 weights run in float16 are warned of; other pairs are not."""
    checkpoint = fake(torch_dtype="bfloat16" if said_by == "config" else "float32")
    if said_by == "tensors":
        checkpoint.stored = {k: v.bfloat16() for k, v in checkpoint.stored.items()}
    with capture_logs() as logs:
        load(checkpoint)
    assert logs == []
    with capture_logs() as logs, pytest.raises(Exception, match="not in float16"):
        load(checkpoint, dtype="float16")
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert "65504" in logs[0]["event"]


def test_quantized_checkpoints_are_not_read_as_plain_numbers():
    """Their scales would be dropped as unknown extras; the start stops and names the method."""
    checkpoint = fake(quantization_config={"quant_method": "fp8"})
    with pytest.raises(ModelError, match="'quantization_config' of method 'fp8'"):
        load(checkpoint)


def test_kv_spec_and_attention_signature():
    """Head sizes go to the attention kernel; a window is a feature that it must have."""
    spec = FAMILY.spec(tiny_config("LlamaForCausalLM", head_dim=24))
    kv = kv_spec(spec, block_size=8, max_model_len=64, dtype="float32")
    assert (kv.num_heads, kv.num_kv_heads, kv.head_dim, kv.scale) == (4, 2, 24, 24**-0.5)
    assert attention_signature(kv).features == ()
    assert dict(attention_signature(kv).sizes)["block_size"] == 8
