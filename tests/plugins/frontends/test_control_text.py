"""Control-token text in messages, where it is hard: split, escaped, overlapping."""

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from enginebay.conformance.text_families import byte_fallback, metaspace
from enginebay.conformance.tiny_text import tiny_tokenizer
from enginebay.flow import ChatPrompt


def user(content):
    return {"role": "user", "content": content}


def encode(frontend, *messages):
    return frontend.encode(ChatPrompt(messages=messages))


def test_control_text_split_over_messages(make_chat):
    """Neighbouring strings can't form a control token together."""
    source = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    for cut in range(1, 10):
        text = "<|im_end|>"
        ids = encode(make_chat(source), user(text[:cut] + " "), user(text[cut:])).token_ids
        assert not {0, 1, 2} & set(ids)
        assert tiny_tokenizer().decode(list(ids), skip_special_tokens=False) == text


def test_overlapping_control_texts(make_chat):
    """Control texts that share characters are all guarded."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(["<a|", "|b>"])
    ids = encode(make_chat("{{ messages[0].content }}", tokenizer), user("<a|b>")).token_ids
    assert max(ids) < 300


@pytest.mark.parametrize("word", ["user", "tokens_end"])
def test_control_tokens_that_are_words(word, make_chat):
    """Roles and keys reach the template as they are, whatever control tokens are called."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([word])
    source = "{% for m in messages if m.role == 'user' %}{{ m['content'] }}{% endfor %}"
    ids = encode(make_chat(source, tokenizer), user("a " + word)).token_ids
    assert tokenizer.decode(list(ids), skip_special_tokens=False) == "a " + word
    assert max(ids) < 300


def test_control_text_escaped_as_ascii(make_chat):
    """``tojson(ensure_ascii=true)`` writes guarded text as it was sent."""
    frontend = make_chat("{{ messages[0].content | tojson(ensure_ascii=true) }}")
    ids = encode(frontend, user("\u00e9\\ue000<|im_end|>\U0001fae0\x7f")).token_ids
    decoded = tiny_tokenizer().decode(list(ids), skip_special_tokens=False)
    assert decoded == '"\\u00e9\\\\ue000<|im_end|>\\ud83e\\udee0\\u007f"'
    assert 2 not in ids


@pytest.mark.parametrize("assets", [byte_fallback, metaspace])
def test_control_text_in_sentencepiece(assets, make_chat):
    """The space in front of a text appears once, however the text is guarded."""
    tokenizer = assets().tokenizer
    source = "<s>{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    frontend = make_chat(source, tokenizer)
    ids = encode(frontend, user("the </s> in"), user("the")).token_ids
    control = [tokenizer.token_to_id(token) for token in ("<s>", "</s>")]
    assert [each for each in ids if each in control] == [control[0], control[1], control[1]]
    plain = encode(frontend, user("the !/s! in"), user("the")).token_ids
    names = ["".join(map(tokenizer.id_to_token, each)) for each in (ids, plain)]
    assert names[0].count("\u2581") == names[1].count("\u2581")


def test_control_token_that_plain_text_would_give(make_chat):
    """A control token that is also a piece of the vocabulary is not reached by text."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((each, -2.0) for each in "</s>ab")]
    unigram = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.add_special_tokens(["</s>"])
    words = {"<unk>": 0, "</s>": 1, "a": 2}
    words_only = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    words_only.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words_only.add_special_tokens(["<unk>", "</s>"])
    letters = {"<unk>": 0, "</s>": 1, "<": 2, "/": 3, "s": 4, ">": 5, "a": 6, "</": 7, "</s": 8}
    merges = [("<", "/"), ("</", "s"), ("</s", ">")]
    merging = tokenizers.Tokenizer(models.BPE(letters, merges, unk_token="<unk>"))
    merging.add_special_tokens(["</s>"])
    for tokenizer in (unigram, words_only, merging):
        end = tokenizer.token_to_id("</s>")
        frontend = make_chat("{{ messages[0].content }} </s>", tokenizer)
        assert encode(frontend, user("a </s>")).token_ids.count(end) == 1
