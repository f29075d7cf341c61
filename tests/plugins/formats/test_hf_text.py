"""Tokenizer, templates and end tokens of a Hugging Face folder."""

import json
import shutil

import pytest
import tokenizers
import transformers

from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_text import CHAT_TEMPLATE, tiny_tokenizer, write_text
from enginebay.errors import ModelError
from enginebay.plugins.formats.hf_text import read_text_assets


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("text") / "tiny")


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny, tmp_path / "model")


def edit(folder, **entries):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def test_assets_of_a_chat_model(tiny):
    """Template, special tokens by role, control ids, end ids."""
    assets = read_text_assets(tiny, {"eos_token_id": 2}, {})
    assert assets.templates == {"default": CHAT_TEMPLATE}
    assert assets.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
    }
    assert assets.special_ids == {0, 1, 2}
    assert assets.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 1}, {"eos_token_id": [1, 7]}, (1, 7, 2)),
        ({"eos_token_id": [5, 6]}, {}, (5, 6, 2)),
        ({"eos_token_id": None}, {"eos_token_id": None}, (2,)),
        ({}, {"eos_token_id": 0}, (0, 2)),
    ],
)
def test_end_tokens_are_united(tiny, config, generation, expected):
    """Case 62: config, generation config and tokenizer each contribute."""
    assert read_text_assets(tiny, config, generation).eos_token_ids == expected


@pytest.mark.parametrize("value", ["2", 2.0, True, [1, "2"], {}])
def test_end_token_of_another_type_is_refused(tiny, value):
    """The error names the file, the key and the value."""
    with pytest.raises(ModelError, match=r"generation_config\.json: eos_token_id is"):
        read_text_assets(tiny, {}, {"eos_token_id": value})


def test_identity_follows_the_content(tiny, folder):
    """Equal files give equal identities; another vocabulary another one."""
    first, second = (read_text_assets(each, {}, {}).identity for each in (tiny, folder))
    assert first == second
    write_text(folder, tiny_tokenizer(["extra"]))
    assert read_text_assets(folder, {}, {}).identity != first


def test_truncation_and_padding_are_switched_off(folder):
    """Case 6: a tokenizer file with truncation would cut long prompts silently."""
    tokenizer = tiny_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    write_text(folder, tokenizer)
    loaded = read_text_assets(folder, {}, {}).tokenizer
    assert len(loaded.encode("x" * 100).ids) == 100
    assert len(loaded.encode("x").ids) == 1


def test_named_templates_and_template_files(folder):
    """Case 45: lists of named templates, a separate file, and additional ones."""
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]
    edit(folder, chat_template=named)
    assert read_text_assets(folder, {}, {}).templates == {"default": "A", "tool_use": "B"}
    (folder / "chat_template.jinja").write_text("C")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("D")
    templates = read_text_assets(folder, {}, {}).templates
    assert templates == {"default": "C", "tool_use": "B", "rag": "D"}


def test_base_model_has_no_template(folder):
    """Case 45: no template is no error here; a chat request is."""
    write_text(folder, chat_template=None)
    assert read_text_assets(folder, {}, {}).templates == {}


@pytest.mark.parametrize("template", [[{"name": "x"}], [3]])
def test_garbled_templates_are_refused(folder, template):
    """A list of something else than named templates names the file."""
    edit(folder, chat_template=template)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        read_text_assets(folder, {}, {})


def test_special_token_that_was_ordinary_becomes_control(folder):
    """A role makes a token a control token, in encoding as in decoding."""
    edit(folder, pad_token={"content": "hello", "special": True})
    assets = read_text_assets(folder, {}, {})
    number = assets.tokenizer.token_to_id("hello")
    assert number in assets.special_ids
    assert assets.tokenizer.decode([number], skip_special_tokens=True) == ""


def test_special_tokens_map_is_the_fallback(folder):
    """Older folders keep the roles in special_tokens_map.json."""
    path = folder / "tokenizer_config.json"
    path.write_text("{}")
    (folder / "special_tokens_map.json").write_text(
        json.dumps({"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"})
    )
    assets = read_text_assets(folder, {}, {})
    assert assets.special_tokens == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    assert assets.eos_token_ids == (2,)


def test_added_tokens_of_the_configuration(folder):
    """Tokens that only tokenizer_config.json lists get the ids it gives them."""
    listed = {
        "301": {"content": "<tool>", "special": False},
        "300": {"content": "<|x|>", "special": True},
        "2": {"content": "<|im_end|>", "special": True},
    }
    edit(folder, added_tokens_decoder=listed)
    assets = read_text_assets(folder, {}, {})
    assert assets.tokenizer.encode("<|x|><tool>").ids == [300, 301]
    assert 300 in assets.special_ids
    assert 301 not in assets.special_ids
    edit(folder, added_tokens_decoder={"305": {"content": "<|x|>"}})
    with pytest.raises(ModelError, match="has id 305, but beside"):
        read_text_assets(folder, {}, {})


@pytest.mark.parametrize(
    "flags",
    [
        {"add_bos_token": True},
        {"add_bos_token": True, "add_eos_token": True},
        {"add_bos_token": False},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("stored", ["nothing", "byte level", "bos"])
def test_bos_and_eos_are_added_as_in_transformers(folder, flags, stored):
    """Case 43: what tokenizer.json adds, or does not add, stands."""
    tokenizer = tiny_tokenizer(add_bos=stored == "bos")
    if stored == "nothing":
        tokenizer = tokenizers.Tokenizer.from_str(without_post_processor(tokenizer))
    write_text(folder, tokenizer, **flags)
    reference = transformers.AutoTokenizer.from_pretrained(folder)
    loaded = read_text_assets(folder, {}, {}).tokenizer
    assert loaded.encode("hello x").ids == reference("hello x").input_ids


def without_post_processor(tokenizer):
    return json.dumps({**json.loads(tokenizer.to_str()), "post_processor": None})


def test_missing_tokenizer_names_the_fix(folder):
    """A folder with only a SentencePiece model is told apart from a broken download."""
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="complete"):
        read_text_assets(folder, {}, {})
    (folder / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError, match=r"it has tokenizer\.model"):
        read_text_assets(folder, {}, {})


def test_damaged_tokenizer_is_named(folder):
    """A truncated tokenizer.json stops the start with its name."""
    path = folder / "tokenizer.json"
    path.write_text(path.read_text()[:500])
    with pytest.raises(ModelError, match=r"tokenizer\.json: the tokenizer can't be read"):
        read_text_assets(folder, {}, {})


def test_tokenizer_is_a_tokenizers_object(tiny):
    """No wrapper: several threads share the library's own object."""
    assert isinstance(read_text_assets(tiny, {}, {}).tokenizer, tokenizers.Tokenizer)
