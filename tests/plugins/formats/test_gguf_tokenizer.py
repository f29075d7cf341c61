"""What GGUF metadata says beside the vocabulary: markup, BOS, templates, kind of split."""

import pytest
from structlog.testing import capture_logs

from enginebay.errors import ModelError
from enginebay.plugins.formats.gguf_tokenizer import read_text_assets


def test_control_and_user_defined_tokens(trained, entries):
    """Both stay whole in text; only control tokens are dropped when decoding."""
    assets = read_text_assets("m.gguf", entries("gpt-2"))
    number = len(trained.get_vocab())
    ids = assets.tokenizer.encode("[TOOL]<|im_end|>").ids
    assert ids == [number, 2]
    assert assets.special_ids == {0, 1, 2}
    assert assets.tokenizer.decode(ids) == "[TOOL]"


def test_padding_entries_have_no_text(entries):
    """An unused entry is no token that text could reach."""
    tokenizer = read_text_assets("m.gguf", entries("llama-bpe")).tokenizer
    assert tokenizer.token_to_id("[PAD1]") is None
    assert len(tokenizer.encode("[PAD1]", add_special_tokens=False).ids) > 1


@pytest.mark.parametrize(
    ("pre", "flags", "framed"),
    [
        ("smollm", {}, [7]),
        ("llama-bpe", {}, [1, 7]),
        ("tekken", {}, [1, 7]),
        ("llama-bpe", {"add_bos_token": False}, [7]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [1, 7, 2]),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, [7]),
    ],
)
def test_bos_and_eos(pre, flags, framed, entries):
    """Case 43: the file's flags, else the habit of the kind."""
    tokenizer = read_text_assets("m.gguf", entries(pre, **flags)).tokenizer
    text = tokenizer.decode([7])
    assert tokenizer.encode(text).ids == framed


def test_special_tokens_templates_and_ends(entries):
    """Roles, named templates, and both ids that end a turn."""
    table = entries("smollm", eot_token_id=0, padding_token_id=2)
    table |= {
        "tokenizer.chat_template": "A",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "B",
    }
    assets = read_text_assets("m.gguf", table)
    assert assets.templates == {"default": "A", "tool_use": "B"}
    assert assets.eos_token_ids == (2, 0)
    assert assets.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
    }


def test_identity_follows_the_split(entries):
    """Another way to cut text is another tokenizer."""
    first, again, other = (
        read_text_assets("m.gguf", entries(pre)).identity
        for pre in ("smollm", "starcoder", "gpt-2")
    )
    assert first == again != other


@pytest.mark.parametrize("pre", ["grok-9", None])
def test_unknown_split_is_refused_with_the_fix(pre, entries):
    """Other words would give other ids without any error, so the start stops."""
    table = {**entries(pre), "general.architecture": "llama"}
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre is .*set `pre_tokenizer`"):
        read_text_assets("m.gguf", table)
    assert read_text_assets("m.gguf", table, "smollm").identity


def test_missing_split_of_qwen_is_known(entries):
    """All Qwen 2 and 3 models cut text alike."""
    table = {**entries(None), "general.architecture": "qwen2"}
    known = read_text_assets("m.gguf", entries("qwen2"))
    assert read_text_assets("m.gguf", table).identity == known.identity


def test_default_split_warns(entries):
    """'default' says nothing certain: it is taken as GPT-2's, and said so."""
    with capture_logs() as logs:
        assets = read_text_assets("m.gguf", entries("default"))
    assert assets.identity == read_text_assets("m.gguf", entries("gpt-2")).identity
    assert "default" in logs[0]["event"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"tokens": None}, "0 tokens"),
        ({"token_type": [1]}, "1 types"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["abc"]}, "merges is missing or garbled"),
        ({"merges": ["nothere neither"]}, "don't fit together"),
        ({"eos_token_id": 99999}, "eos_token_id is 99999"),
    ],
)
def test_garbled_entries_are_named(changes, message, entries):
    """Each entry that does not fit stops the start with file and key."""
    with pytest.raises(ModelError, match=message) as caught:
        read_text_assets("m.gguf", entries("smollm", **changes))
    assert "m.gguf" in str(caught.value)
