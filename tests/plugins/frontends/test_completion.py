"""completion: text and token prompts, checked against the model's vocabulary."""

import pytest

from enginebay.conformance.tiny_text import tiny_tokenizer
from enginebay.errors import InvalidRequest
from enginebay.flow import ChatPrompt, Request, TextPrompt, TokenPrompt
from enginebay.hookspecs.frontend import Parsed


def test_text(make_completion):
    """Text becomes the tokenizer's ids; no template is named."""
    encoded = make_completion().encode(TextPrompt(text="hello in"))
    assert list(encoded.token_ids) == tiny_tokenizer().encode("hello in").ids
    assert (encoded.tokenizer, encoded.template) == ("tokenizer's hash", "")


def test_special_tokens(make_completion):
    """The tokenizer's own BOS is added unless the prompt says otherwise."""
    frontend = make_completion(tiny_tokenizer(add_bos=True))
    with_bos = frontend.encode(TextPrompt(text="a")).token_ids
    without = frontend.encode(TextPrompt(text="a", add_special_tokens=False)).token_ids
    assert with_bos == (1, *without)
    assert frontend.encode(TextPrompt(text="<|im_end|>")).token_ids == (1, 2)


def test_empty_text(make_completion):
    """An empty text is refused, unless the tokenizer puts a BOS there (case 14)."""
    with pytest.raises(InvalidRequest, match="prompt is empty"):
        make_completion().encode(TextPrompt(text=""))
    with_bos = make_completion(tiny_tokenizer(add_bos=True))
    assert with_bos.encode(TextPrompt(text="")).token_ids == (1,)


def test_tokens(make_completion):
    """Ids are taken as they are, up to the end of the model's vocabulary (case 15)."""
    frontend = make_completion(vocab_size=320)
    assert frontend.encode(TokenPrompt(token_ids=(0, 319))).token_ids == (0, 319)


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ((), "prompt is empty"),
        ((1, 300), r"prompt\[1\] is 300; token ids of this model are integers from 0 to 299"),
        ((1, -1), r"prompt\[1\] is -1"),
        ((2**31,), "2147483648"),
        ((2**63,), "9223372036854775808"),
        ((2**70,), "an integer of 71 bits"),
        ((10**9999,), "an integer of 33216 bits"),
        ((1, "a"), r"prompt\[1\] is 'a'"),
        ((True,), r"prompt\[0\] is True"),
        ((1.0,), r"prompt\[0\] is 1.0"),
        ((None,), r"prompt\[0\] is missing"),
        (((1, 2),), r"prompt\[0\] is \(1, 2\)"),
    ],
)
def test_wrong_ids(token_ids, message, make_completion):
    """Ids that the model has not are refused by place and value (case 15)."""
    with pytest.raises(InvalidRequest, match=message) as caught:
        make_completion().encode(TokenPrompt(token_ids=token_ids))
    assert caught.value.detail.param == "prompt"


@pytest.mark.parametrize("text", ["a\ud800b", 5, None])
def test_what_is_no_text(text, make_completion):
    """Half of a surrogate pair, or no string at all, is refused."""
    with pytest.raises(InvalidRequest, match="not Unicode text"):
        make_completion().encode(TextPrompt(text=text))


def test_ids_beyond_the_model(make_completion):
    """Text that encodes beyond the model's vocabulary is refused."""
    with pytest.raises(InvalidRequest, match="vocabulary ends at 99"):
        make_completion(vocab_size=100).encode(TextPrompt(text="hello"))


def test_other_prompts(make_completion):
    """A chat prompt is none of this frontend's."""
    with pytest.raises(InvalidRequest, match="give a text or a list of token ids"):
        make_completion().encode(ChatPrompt(messages=({"role": "user", "content": "x"},)))


def test_parser(make_completion):
    """All text is content."""
    frontend = make_completion()
    parser = frontend.parser(Request(id="r", prompt=TextPrompt(text="x")))
    assert (parser.feed("a"), parser.flush()) == (Parsed(content="a"), Parsed())
