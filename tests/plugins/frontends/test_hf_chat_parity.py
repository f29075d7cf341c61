"""Rendered prompts are byte-equal to transformers' ``apply_chat_template`` (case 38)."""

from datetime import datetime
from pathlib import Path

import jinja2
import pytest
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from enginebay.conformance.tiny_text import SPECIALS, tiny_tokenizer
from enginebay.errors import InvalidRequest
from enginebay.flow import ChatPrompt

TEMPLATES = {path.stem: path for path in (Path(__file__).parent / "templates").glob("*.jinja")}
DATE = datetime(2025, 1, 31, 13, 5, 9)
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather <now> & here,\nin \u017d\u010f\u00e1r",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["city"],
        },
    },
}
CALLS = [
    {
        "id": f"call{number:05}",
        "type": "function",
        "function": {"name": "weather", "arguments": {"city": "Brno", "days": [number, None]}},
    }
    for number in range(2)
]
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "  What's new in \u65e5\u672c? \U0001fae0\n"}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nNot <much> & 'more'."}
MORE = {"role": "user", "content": "And?\r\nTell me"}
CALLING = {"role": "assistant", "content": "", "tool_calls": CALLS[:1]}
RESULT = {"role": "tool", "content": '{"sky": "blue"}', "tool_call_id": "call00000"}
PARTS = {"role": "user", "content": [{"type": "text", "text": text} for text in (" A ", "B")]}
CONVERSATIONS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ANSWER, MORE],
    "long": [SYSTEM, USER, ANSWER, MORE, ANSWER, MORE],
    "answered": [USER, ANSWER],
    "out of turn": [USER, MORE],
    "late system": [USER, SYSTEM],
    "reasoned": [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "\nhm\n"}],
    "empty": [{"role": "user", "content": ""}],
    "calling": [USER, CALLING],
    "called": [SYSTEM, USER, CALLING, RESULT, {"role": "assistant", "content": "Blue."}, MORE],
    "two calls": [USER, {**CALLING, "tool_calls": CALLS}, RESULT, RESULT],
    "named": [{**USER, "name": "Eva"}],
}
SETTINGS = [
    {"add_generation_prompt": True},
    {"tools": [WEATHER], "enable_thinking": False, "date_string": "1 Jan 2025"},
    {
        "tools": [WEATHER, WEATHER],
        "add_generation_prompt": True,
        "documents": [{"title": "T", "text": "x"}],
        "controls": {"length": "short"},
    },
]


class FrozenDate(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return DATE


@pytest.fixture
def reference(monkeypatch):
    """The same tokenizer and special tokens in transformers, with the clock stopped."""
    monkeypatch.setattr(chat_template_utils, "datetime", FrozenDate)
    return PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(),
        bos_token=SPECIALS[1],
        eos_token=SPECIALS[2],
        pad_token=SPECIALS[0],
    )


def prompt(messages, tools=None, add_generation_prompt=False, **template_kwargs):
    return ChatPrompt(
        messages=tuple(messages),
        tools=tuple(tools) if tools else None,
        add_generation_prompt=add_generation_prompt,
        template_kwargs=template_kwargs,
    )


def expect(reference, source, messages, settings):
    """Transformers' text, or the error its template run ended in."""
    try:
        return reference.apply_chat_template(
            messages, chat_template=source, tokenize=False, **settings
        )
    except (jinja2.TemplateError, TypeError) as error:
        return error


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendered_text(name, make_chat, reference):
    """Text, and refusals in the template's own words, are those of transformers."""
    source = TEMPLATES[name].read_text(encoding="utf-8")
    frontend = make_chat(source, date=DATE.isoformat())
    num_texts = 0
    for messages in CONVERSATIONS.values():
        for settings in SETTINGS:
            expected = expect(reference, source, messages, settings)
            if isinstance(expected, Exception):
                with pytest.raises(InvalidRequest) as caught:
                    frontend.render(prompt(messages, **settings))
                assert str(expected) in str(caught.value)
            else:
                assert frontend.render(prompt(messages, **settings)).text == expected
                num_texts += 1
    assert num_texts >= 6


def test_parts_reach_a_template_that_takes_them(make_chat, reference):
    """A template that iterates over parts gets the list, as in transformers (case 40)."""
    source = TEMPLATES["parts"].read_text(encoding="utf-8")
    got = make_chat(source).render(prompt([PARTS, ANSWER])).text
    assert got == expect(reference, source, [PARTS, ANSWER], {})


@pytest.mark.parametrize("name", ["llama3", "chatml", "gemma"])
def test_ids(name, make_chat, reference):
    """Ids too are those of transformers, with one BOS only (case 43)."""
    source = TEMPLATES[name].read_text(encoding="utf-8")
    with_bos = tiny_tokenizer(add_bos=True)
    ids = make_chat(source, with_bos).encode(prompt([USER], add_generation_prompt=True)).token_ids
    expected = reference.apply_chat_template(
        [USER],
        chat_template=source,
        tokenize=True,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert list(ids) == expected
    assert ids.count(1) == source.count("bos_token") + (name == "chatml") * 2


@pytest.mark.parametrize("name", ["chatml", "llama3", "zephyr", "parts", "qwen_thinking"])
@pytest.mark.parametrize("ending", ["An", " An \n", "", "<|im_end|>"])
def test_continued_message(name, ending, make_chat, reference):
    """A continued message ends the prompt where transformers ends it."""
    source = TEMPLATES[name].read_text(encoding="utf-8")
    last = {"role": "assistant", "content": ending}
    expected = reference.apply_chat_template(
        [USER, last], chat_template=source, tokenize=False, continue_final_message=True
    )
    frontend = make_chat(source, control_text="tokens")
    asked = ChatPrompt(messages=(USER, last), continue_final_message=True)
    assert frontend.render(asked).text == expected
