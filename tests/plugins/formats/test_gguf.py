"""GGUF files give the tensors, configuration and tokenizer they were converted from."""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from enginebay.conformance.tiny import MODEL_TYPES, write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.errors import ModelError
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import gguf as plugin
from enginebay.plugins.formats.gguf_blocks import unpack

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
PLAIN = {"F16": torch.float16, "BF16": torch.bfloat16}


def open_(path, **options):
    reader = plugin.enginebay_format(plugin.Options(**options), FormatContext())
    return reader.open(Files(path=str(path), origin="test", revision="1"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("gguf") / "tiny")


def quantized(tensor, kind):
    """What ``tensor`` becomes by quantizing and dequantizing with the reference package."""
    type_ = gguf.GGMLQuantizationType[kind]
    return torch.from_numpy(
        gguf.quants.dequantize(gguf.quants.quantize(tensor.numpy(), type_), type_)
    )


@pytest.mark.parametrize("architecture", MODEL_TYPES)
@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
        {"head_dim": 32, "attention_bias": True},
    ],
    ids=str,
)
def test_every_architecture_round_trips(tmp_path, architecture, overrides):
    """Names, shapes and, for llama, the rows of q and k come back as they were."""
    folder = write_tiny(tmp_path / "m", architecture, **overrides)
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", folder))
    reference = load_file(folder / "model.safetensors")
    assert set(checkpoint.tensors) == set(reference)
    for name, tensor in reference.items():
        assert torch.equal(checkpoint.load(name), tensor), name
        assert checkpoint.tensors[name].shape == tuple(tensor.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_block_types_are_dequantized(tmp_path, tiny, kind):
    """Values equal the reference package's bit for bit, after the rows are put back."""
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", tiny, kind))
    reference = load_file(tiny / "model.safetensors")
    for name, tensor in reference.items():
        loaded = checkpoint.load(name)
        expected = tensor if tensor.ndim == 1 else quantized(tensor, kind)
        assert torch.equal(loaded.float(), expected), name
        assert loaded.dtype == PLAIN.get(kind if tensor.ndim > 1 else "F32", torch.float32)
        assert checkpoint.tensors[name].dtype == (kind if tensor.ndim > 1 else "F32")


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_k_quants_are_dequantized(kind):
    """Types that the package alone unpacks keep their rows and their order."""
    type_ = gguf.GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[type_]
    rows = np.random.default_rng(0).integers(0, 60, (5, 2 * block_bytes), dtype=np.uint8)
    values = unpack(rows, type_)
    assert values.shape == (5, 2 * block)
    assert torch.equal(values, torch.from_numpy(gguf.quants.dequantize(rows, type_)))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_unpacking_in_chunks_loses_nothing(kind):
    """A tensor larger than one chunk equals the reference, to the last value."""
    tensor = torch.randn(130, 4096, generator=torch.Generator().manual_seed(0))
    type_ = gguf.GGMLQuantizationType[kind]
    rows = gguf.quants.quantize(tensor.numpy(), type_)
    assert torch.equal(unpack(rows, type_), quantized(tensor, kind))


def test_loaded_tensors_own_their_memory(tmp_path, tiny):
    """No loaded tensor is a view of the mapped file."""
    checkpoint = open_(write_tiny_gguf(tmp_path / "m.gguf", tiny))
    for name, info in checkpoint.tensors.items():
        tensor = checkpoint.load(name)
        assert tensor.untyped_storage().nbytes() == 4 * np.prod(info.shape)
        tensor.add_(1.0)
        assert not torch.equal(checkpoint.load(name), tensor)


def test_configuration_is_translated(tmp_path):
    """The config.json of the folder comes back out of the metadata."""
    folder = write_tiny(tmp_path / "m", head_dim=32, rms_norm_eps=1e-5, rope_theta=500000.0)
    config = open_(write_tiny_gguf(tmp_path / "m.gguf", folder)).config
    assert {key: config[key] for key in EXPECTED} == EXPECTED


EXPECTED = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": [2],
    "sliding_window": None,
}


@pytest.mark.parametrize(
    ("overrides", "entries", "expected"),
    [
        ({"tie_word_embeddings": True}, {}, {"tie_word_embeddings": True}),
        ({"attention_bias": True}, {}, {"attention_bias": True}),
        ({}, {"tokenizer.ggml.eot_token_id": 0}, {"eos_token_id": [2, 0]}),
        ({}, {"tokenizer.ggml.eot_token_id": 2}, {"eos_token_id": [2]}),
        ({}, {"llama.attention.head_count_kv": [2, 2]}, {"num_key_value_heads": 2}),
        ({}, {"llama.attention.key_length": None}, {"head_dim": 16}),
        ({}, {"general.file_type": 1}, {"torch_dtype": "float16"}),
        (
            {},
            {"llama.attention.sliding_window": 32},
            {"architectures": ["MistralForCausalLM"], "sliding_window": 32},
        ),
    ],
    ids=str,
)
def test_configuration_follows_the_file(tmp_path, overrides, entries, expected):
    """Each entry that changes results changes the configuration."""
    folder = write_tiny(tmp_path / "m", **overrides)
    config = open_(write_tiny_gguf(tmp_path / "m.gguf", folder, entries=entries)).config
    assert {key: config[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"general.architecture": "gpt2"}, "GGUF architecture 'gpt2' can't be read; known are"),
        ({"llama.expert_count": 8}, "mixture of 8 experts"),
        ({"split.count": 3}, "one of 3 files of a split GGUF"),
        ({"llama.block_count": None}, r"llama\.block_count is None"),
        ({"llama.attention.head_count_kv": [2, 4]}, r"head_count_kv is \[2, 4\]"),
        ({"llama.embedding_length": "64"}, "embedding_length is '64'"),
        ({"general.alignment": 0}, "general.alignment is 0"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, tiny, entries, message):
    """Models that need more than the reader has stop the start, with file and entry."""
    path = write_tiny_gguf(tmp_path / "m.gguf", tiny, entries=entries)
    with pytest.raises(ModelError, match=message) as caught:
        open_(path)
    assert "m.gguf" in str(caught.value)


def test_unknown_tensors_keep_their_name(tmp_path, tiny):
    """They are listed, so that the check against the model's weights can warn."""
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("blk.0.attn_qkv.weight", np.zeros((4, 32), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    for key in ("context_length", "embedding_length", "feed_forward_length", "block_count"):
        writer.add_uint32(f"llama.{key}", 32)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_(path)
    assert set(checkpoint.tensors) == {"blk.0.attn_qkv.weight", "model.norm.weight"}
    assert checkpoint.config["num_key_value_heads"] == 2
    with pytest.raises(ModelError, match="no tensor 'lm_head"):
        checkpoint.load("lm_head.weight")


def test_folders_and_other_files(tmp_path, tiny):
    """One GGUF in a folder is taken, several need a name, others are declined."""
    assert "no .gguf files" in open_(tiny)
    assert "not a .gguf file" in open_(tiny / "config.json")
    write_tiny_gguf(tmp_path / "a.gguf", tiny)
    assert open_(tmp_path).location == str(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").rename(tmp_path / "a.blob")
    assert open_(tmp_path / "a.blob").location == str(tmp_path / "a.blob")
    write_tiny_gguf(tmp_path / "b.gguf", tiny)
    write_tiny_gguf(tmp_path / "c.gguf", tiny)
    with pytest.raises(ModelError, match=r"name one of them: b\.gguf, c\.gguf"):
        open_(tmp_path)
