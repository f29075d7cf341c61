"""Continuing the last message: the prompt ends with its text."""

import pytest

from enginebay.conformance.tiny_text import CHAT_TEMPLATE
from enginebay.errors import InvalidRequest
from enginebay.flow import ChatPrompt

TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
ITERATING = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
    "{% if part.type == 'text' %}{{ part.text }}|{% endif %}{% endfor %}{% endfor %}"
)


def user(content, **more):
    return {"role": "user", "content": content, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def render(frontend, *messages, **fields):
    return frontend.render(ChatPrompt(messages=messages, **fields)).text


def encode(frontend, *messages, **fields):
    return frontend.encode(ChatPrompt(messages=messages, **fields))


def test_continued_message(make_chat):
    """The prompt ends with the last message's text; no new header follows."""
    frontend = make_chat()
    last = {"role": "assistant", "content": "So<|im_end|> "}
    text = render(make_chat(control_text="tokens"), user("x"), last, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nSo<|im_end|> ")
    ids = encode(frontend, user("x"), last, continue_final_message=True).token_ids
    assert ids.count(2) == 1
    parted = {**last, "content": parts("a", "b")}
    text = render(make_chat(ITERATING), parted, continue_final_message=True)
    assert text == "<assistant>a|b"
    twice = "{{ messages | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    text = render(make_chat(twice), user("x"), continue_final_message=True)
    assert text == '[{"role": "user", "content": "x"}]x'


@pytest.mark.parametrize(
    ("source", "last", "message"),
    [
        (
            CHAT_TEMPLATE,
            {"role": "assistant", "content": None, "tool_calls": [TOOL]},
            r"messages\[1\].content has no text",
        ),
        ("{{ messages[0].content }}", user("y"), "doesn't show"),
    ],
)
def test_messages_that_can_not_be_continued(source, last, message, make_chat):
    """A last message without shown text can't be continued."""
    with pytest.raises(InvalidRequest, match=message):
        render(make_chat(source), user("x"), last, continue_final_message=True)
