"""Whole answers of the OpenAI endpoints."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebay.conformance.openai_checks import (
    check_chat_logprobs,
    check_error,
    check_stream,
    check_text_logprobs,
    check_usage,
)
from enginebay.flow import ChoiceFinished, Delta, ToolCallDelta
from enginebay.hookspecs.sink import Reply

CHAT = {"request_id": "r1", "kind": "chat", "model": "m", "created": 7}
TEXT = {"request_id": "r1", "kind": "completion", "model": "m", "created": 7}


def test_a_chat_body(script, body):
    """The fields of ``chat.completion``."""
    raw = body(Reply(**CHAT), [*script.choice([b"Hi", b"!"], reason="stop"), script.ended(2, 3)])
    answer = json.loads(raw)
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi!"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert check_usage(answer["usage"])["total_tokens"] == 5


def test_a_completion_body(script, body):
    """The fields of ``text_completion``, n=2, with echo."""
    events = [*script.choice([b"a"], index=1), *script.choice([b"b"]), script.ended()]
    answer = json.loads(body(Reply(**TEXT, n=2, echo="> "), events))
    assert answer["object"] == "text_completion"
    assert [choice["text"] for choice in answer["choices"]] == ["> b", "> a"]


def test_a_failure_is_an_error_body(script, body):
    """Nothing of the answer is shown when the request failed."""
    events = [*script.choice([b"a"], reason="error"), script.ended(error="it failed")]
    error = check_error(body(Reply(**CHAT), events))
    assert (error["message"], error["type"]) == ("it failed", "server_error")


def test_tool_calls_are_put_together(body, script):
    """Pieces of two calls become two whole calls; content is null."""
    piece = ToolCallDelta
    events = [
        Delta(
            request_id="r1", index=0, tool_calls=(piece(index=0, id="a", name="f", arguments="{"),)
        ),
        Delta(
            request_id="r1",
            index=0,
            tool_calls=(piece(index=0, arguments="}"), piece(index=1, id="b", name="g")),
        ),
        ChoiceFinished(request_id="r1", index=0, reason="stop"),
        script.ended(),
    ]
    choice = json.loads(body(Reply(**CHAT), events))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]


@pytest.mark.parametrize("num_top", [0, 2])
def test_case_26_chat_logprobs(script, body, streamed, num_top):
    """content[] with token, logprob, bytes and as many alternatives as asked for."""
    tokens = [b"ch", b"\xf0\x9f", b"\x8c\xb6", b"!", b"<|end|>"]
    reply = Reply(**CHAT, logprobs=True, top_logprobs=num_top)
    events = script.choice(tokens, logprobs=num_top, reason="stop", hidden=frozenset({4}))
    answer = json.loads(body(reply, [*events, script.ended()]))["choices"][0]
    content = answer["logprobs"]["content"]
    check_chat_logprobs(answer["message"]["content"], content, num_top)
    assert [token["token"] for token in content] == [
        "ch",
        "bytes:\\xf0\\x9f",
        "bytes:\\x8c\\xb6",
        "!",
        "<|end|>",
    ]
    stream = check_stream(streamed(reply, [*events, script.ended()]), chat=True)
    assert stream.choices[0].tokens == content


@pytest.mark.parametrize("echo", [False, True])
def test_case_26_completion_logprobs(script, body, streamed, echo):
    """Four lists of equal length; offsets count from the start of the text, echo included."""
    reply = Reply(**TEXT, logprobs=True, top_logprobs=2, echo="ab c" if echo else None)
    events = [script.scored([b"ab", b" c"], 2)] if echo else []
    events += [*script.choice([b" d", b"\xc3", b"\xa9", b"f"], logprobs=2), script.ended()]
    choice = json.loads(body(reply, events))["choices"][0]
    check_text_logprobs(choice["text"], choice["logprobs"], echo=echo)
    base = 4 if echo else 0
    start = 2 if echo else 0
    assert choice["logprobs"]["text_offset"][start:] == [base, base + 2, base + 2, base + 3]
    assert set(choice["logprobs"]["top_logprobs"][start]) == {" d", "alt0"}
    stream = check_stream(streamed(reply, events), chat=False).choices[0]
    assert (stream.text, stream.logprobs) == (choice["text"], choice["logprobs"])


def test_echo_of_token_ids_takes_its_text_from_the_scores(script, body):
    """The prompt was ids: its text is that of its tokens, the first included."""
    from enginebay.hookspecs.sink import Part

    reply = Reply(**TEXT, parts=(Part(request_id="r1", echo_tokens=True),))
    events = [script.scored([b"x", b"y z"]), *script.choice([b"!"]), script.ended()]
    assert json.loads(body(reply, events))["choices"][0]["text"] == "xy z!"


def test_case_13_scoring_alone(script, body):
    """max_tokens 0 with echo and logprobs: the prompt's tokens, the first without value."""
    reply = Reply(**TEXT, logprobs=True, top_logprobs=1, echo="ab c")
    events = [script.scored([b"ab", b" c"], 1), *script.choice([]), script.ended(2, 0)]
    answer = json.loads(body(reply, events))
    choice = answer["choices"][0]
    check_text_logprobs(choice["text"], choice["logprobs"], echo=True)
    assert choice["text"] == "ab c"
    assert answer["usage"]["completion_tokens"] == 0


def test_the_text_of_the_first_token_without_its_bytes(script, body):
    """An engine that leaves ``first`` out: what the other tokens don't cover is its text."""
    import msgspec

    scored = msgspec.structs.replace(script.scored([b"ab", b" c"]), first=b"")
    reply = Reply(**TEXT, logprobs=True, echo="ab c")
    answer = json.loads(body(reply, [scored, *script.choice([]), script.ended()]))
    assert answer["choices"][0]["logprobs"]["tokens"] == ["ab", " c"]


def test_prompt_logprobs_extension(script, body):
    """prompt_logprobs: null for the first token, a mapping by id for the others."""
    reply = Reply(**CHAT, prompt_logprobs=True)
    events = [script.scored([b"ab", b" c"], 2), *script.choice([b"x"]), script.ended()]
    listed = json.loads(body(reply, events))["prompt_logprobs"]
    assert listed[0] is None
    assert listed[1]["2"]["decoded_token"] == " c"


def test_a_banned_token_has_a_finite_logprob(script, body):
    """Minus infinity is not JSON."""
    event = Delta(
        request_id="r1", index=0, content="a", logprobs=(script.entry(b"a", 0, float("-inf")),)
    )
    finished = ChoiceFinished(request_id="r1", index=0, reason="stop")
    reply = Reply(**CHAT, logprobs=True)
    answer = json.loads(body(reply, [event, finished, script.ended()]))
    assert answer["choices"][0]["logprobs"]["content"][0]["logprob"] == -9999.0


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(
        st.one_of(st.binary(min_size=1, max_size=4), st.text(max_size=3).map(str.encode)),
        max_size=12,
    ),
    chat=st.booleans(),
)
def test_streamed_text_and_logprobs_equal_the_whole_answer(script_module, tokens, chat):
    """Promise P3, for any bytes: text, token bytes and offsets agree in both forms."""
    script, streamed, body = script_module
    reply = Reply(**(CHAT if chat else TEXT), logprobs=True, top_logprobs=1)
    events = [*script.choice(tokens, logprobs=1), script.ended(1, len(tokens))]
    choice = json.loads(body(reply, events))["choices"][0]
    stream = check_stream(streamed(reply, events), chat=chat).choices[0]
    expected = b"".join(tokens).decode("utf-8", "replace")
    if chat:
        assert stream.text == choice["message"]["content"] == expected
        assert stream.tokens == choice["logprobs"]["content"]
        check_chat_logprobs(expected, stream.tokens, 1)
    else:
        assert stream.text == choice["text"] == expected
        assert (stream.logprobs or _EMPTY) == choice["logprobs"]
        check_text_logprobs(expected, choice["logprobs"])


_EMPTY = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
