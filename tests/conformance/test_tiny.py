"""The tiny models are what transformers takes them for, and are not degenerate."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from enginebay.conformance.scripted import chain, write_scripted
from enginebay.conformance.tiny import MODEL_TYPES, write_tiny
from enginebay.conformance.tiny_text import tiny_tokenizer

VARIANTS = [
    {},
    {"tie_word_embeddings": True},
    {"head_dim": 32, "num_key_value_heads": 1},
    {"attention_bias": True},
]


@pytest.mark.parametrize("architecture", MODEL_TYPES)
@pytest.mark.parametrize("overrides", VARIANTS, ids=str)
def test_transformers_finds_every_tensor(tmp_path, architecture, overrides):
    """No tensor is missing, unexpected or misshapen, and logits are far from flat."""
    folder = write_tiny(tmp_path / "m", architecture, **overrides)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(report.values())
    with torch.no_grad():
        logits = model(torch.arange(3, 40)[None]).logits[0]
    assert 2.0 < float(logits.std()) < 4.5


def test_equal_arguments_give_equal_weights(tmp_path):
    """The seed alone decides the weights."""
    one, two, other = (
        load_file(write_tiny(tmp_path / name, seed=seed) / "model.safetensors")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("text", ["hello the world", "  zwei  ", "🫠\n\t漢字", "\x00\x7f", "1234"])
def test_any_text_round_trips(text):
    """All 256 bytes are tokens, so decoding returns the text."""
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_template_renders_chat_markup(tmp_path):
    """The template's control tokens are single ids."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(write_tiny(tmp_path / "m"))
    messages = [{"role": "user", "content": "hello"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ids.count(1) == 2
    assert ids.count(2) == 1


def test_script_is_followed(tmp_path):
    """Greedy decoding says the scripted pieces, then the end token."""
    tokenizer = tiny_tokenizer(["<tool_call>", '{"a": 1}'])
    folder = write_scripted(tmp_path / "m", chain(10, 300, 301, 20, 2), tokenizer=tokenizer)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = model.generate(torch.tensor([[5, 10]]), max_new_tokens=9)[0].tolist()
    assert ids == [5, 10, 300, 301, 20, 2]
    assert tokenizer.decode([300, 301]) == '<tool_call>{"a": 1}'
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 302


def test_script_refuses_two_followers():
    """A token has one follower; the error names both."""
    with pytest.raises(ValueError, match="10 is followed by both 11 and 12"):
        chain(10, 11, 10, 12)
