"""Streams of the OpenAI endpoints, checked byte by byte."""

import json

import pytest

from enginebay.conformance.openai_checks import check_stream, sse_data
from enginebay.flow import ChoiceFinished, Delta, ToolCallDelta
from enginebay.hookspecs.sink import Part, Reply, SinkContext
from enginebay.plugins.sinks import sse

CHAT = Reply(request_id="r1", kind="chat", model="m", created=7)
TEXT = Reply(request_id="r1", kind="completion", model="m", created=7)


def with_(reply, **fields):
    """A reply with other fields."""
    return Reply(**{name: getattr(reply, name) for name in Reply.__struct_fields__} | fields)


@pytest.mark.parametrize("reply", [CHAT, TEXT], ids=["chat", "completion"])
def test_a_stream_carries_the_text_and_ends_once(script, streamed, reply):
    """Deltas join to the text, one finish reason, then [DONE] and no usage."""
    raw = streamed(reply, [*script.choice([b"one", b" two"]), script.ended()])
    stream = check_stream(raw, chat=reply is CHAT)
    assert stream.choices[0].text == "one two"
    assert stream.choices[0].finish_reason == "length"
    assert stream.ids == ("r1", 7, "m")


@pytest.mark.parametrize("reply", [CHAT, TEXT], ids=["chat", "completion"])
def test_case_28_the_usage_chunk(script, streamed, reply):
    """With include_usage: one chunk with empty choices, after every finish reason."""
    reply = with_(reply, n=2, include_usage=True)
    first, second = script.choice([b"a", b"b"]), script.choice([b"c"], index=1)
    raw = streamed(reply, [*first, *second, script.ended(3, 3)])
    stream = check_stream(raw, chat=reply.kind == "chat", n=2, include_usage=True)
    assert stream.usage["total_tokens"] == 6
    assert stream.usage["prompt_tokens_details"] == {"cached_tokens": 1}
    assert [stream.choices[i].text for i in (0, 1)] == ["ab", "c"]
    assert all(json.loads(data)["usage"] is None for data in sse_data(raw)[:-2])


def test_case_29_an_error_ends_the_stream(script, streamed):
    """An error after two tokens: one error event, no finish reason, no [DONE]."""
    events = script.choice([b"a", b"b"], reason="error")
    raw = streamed(CHAT, [*events, script.ended(error="a plugin failed on this request")])
    stream = check_stream(raw, chat=True)
    assert stream.choices[0].text == "ab"
    assert stream.choices[0].finish_reason is None
    assert stream.error["message"] == "a plugin failed on this request"
    assert stream.error["plugin"] == "boom"
    assert b"[DONE]" not in raw


def test_a_cut_before_a_failure_is_no_finish(script, streamed):
    """A choice that was taken back shows no finish when the request fails as a whole."""
    events = script.choice([b"a"], reason="cancelled")
    stream = check_stream(streamed(CHAT, [*events, script.ended(error="down")]), chat=True)
    assert stream.choices[0].finish_reason is None


@pytest.mark.parametrize(
    ("reason", "shown"),
    [("stop", "stop"), ("length", "length"), ("capacity", "length"), ("cancelled", "abort")],
)
def test_finish_reasons_in_the_words_of_the_api(script, streamed, reason, shown):
    """The engine's reasons become those that clients know."""
    raw = streamed(CHAT, [*script.choice([b"a"], reason=reason), script.ended()])
    assert check_stream(raw, chat=True).choices[0].finish_reason == shown


def test_a_choice_that_said_nothing_still_has_its_role(script, streamed):
    """An end token alone: role, finish reason, no text."""
    raw = streamed(CHAT, [*script.choice([], reason="stop"), script.ended()])
    stream = check_stream(raw, chat=True)
    assert (stream.choices[0].role, stream.choices[0].text) == ("assistant", "")


def test_tokens_without_text_make_no_chunk(script, streamed):
    """Bytes that wait for their character are not sent as empty deltas."""
    raw = streamed(CHAT, [*script.choice([b"\xf0", b"\x9f", b"\x8c", b"\xb6"]), script.ended()])
    assert len(sse_data(raw)) == 4  # role, the character, the finish, [DONE]
    assert "\ufffd" not in raw.decode()


def test_tool_calls_and_reasoning(streamed, script):
    """Reasoning has its own field; a call's id and name come once; the reason changes."""
    events = [
        Delta(request_id="r1", index=0, reasoning="hm"),
        Delta(
            request_id="r1",
            index=0,
            tool_calls=(ToolCallDelta(index=0, id="c1", name="f", arguments='{"a'),),
        ),
        Delta(request_id="r1", index=0, tool_calls=(ToolCallDelta(index=0, arguments='":1}'),)),
        ChoiceFinished(request_id="r1", index=0, reason="stop"),
        script.ended(),
    ]
    choice = check_stream(streamed(CHAT, events), chat=True).choices[0]
    assert choice.reasoning == "hm"
    assert choice.tool_calls == {0: {"id": "c1", "name": "f", "arguments": '{"a":1}'}}
    assert choice.finish_reason == "tool_calls"


def test_a_tool_call_cut_by_the_limit_is_not_complete(streamed, script):
    """Case 47: a call cut by max_tokens ends with ``length``."""
    events = [
        Delta(
            request_id="r1",
            index=0,
            tool_calls=(ToolCallDelta(index=0, id="c1", name="f", arguments='{"a'),),
        ),
        ChoiceFinished(request_id="r1", index=0, reason="length"),
        script.ended(),
    ]
    assert check_stream(streamed(CHAT, events), chat=True).choices[0].finish_reason == "length"


def test_echo_comes_first(script, streamed):
    """The prompt's text stands in front of every choice."""
    reply = with_(TEXT, n=2, echo="Say: ")
    events = [*script.choice([b"a"]), *script.choice([b"b"], index=1), script.ended()]
    stream = check_stream(streamed(reply, events), chat=False, n=2)
    assert [stream.choices[i].text for i in (0, 1)] == ["Say: a", "Say: b"]


def test_several_prompts_share_one_stream(script, streamed):
    """Choices are numbered over the prompts; the end waits for both; usage adds up."""
    parts = (Part(request_id="r1", echo="p"), Part(request_id="r2", echo="q"))
    reply = with_(TEXT, n=2, parts=parts, include_usage=True)
    events = [
        *script.choice([b"d"], index=1, request_id="r2"),
        *script.choice([b"a"]),
        *script.choice([b"c"], request_id="r2"),
        script.ended(2, 2, request_id="r2"),
        *script.choice([b"b"], index=1),
        script.ended(1, 2),
    ]
    stream = check_stream(streamed(reply, events), chat=False, n=4, include_usage=True)
    assert [stream.choices[i].text for i in range(4)] == ["pa", "pb", "qc", "qd"]
    assert stream.usage["total_tokens"] == 7


def test_token_ids_on_request(script, streamed):
    """With return_token_ids every token of the prompt and the answer is named."""
    reply = with_(CHAT, return_token_ids=True, prompt_token_ids=(9, 8))
    raw = streamed(reply, [*script.choice([b"\xf0", b"\x9f\x8c\xb6"]), script.ended()])
    chunks = [json.loads(data) for data in sse_data(raw)[:-1]]
    assert chunks[0]["prompt_token_ids"] == [9, 8]
    ids = [i for c in chunks for i in c["choices"][0].get("token_ids", ())]
    assert ids == [0, 1]


def test_offer_past_the_bound_takes_nothing(script, open_sse):
    """A full sink says no, loses nothing, and goes on after it was drained."""
    sink = open_sse(CHAT, max_buffer=200)
    events = [*script.choice([b"word"] * 9), script.ended()]
    refused, out = 0, b""
    for event in events:
        while not sink.offer(event):
            refused += 1
            out += b"".join(sink.drain())
    out += b"".join(sink.drain())
    assert refused > 2
    assert check_stream(out, chat=True).choices[0].text == "word" * 9
    assert sink.closed


def test_unshaped_events_are_refused():
    """A stream has a shape; the error names the sinks for raw events."""
    kind = sse.enginebay_sink(sse.Options(), SinkContext())
    with pytest.raises(ValueError, match="queue or callback"):
        kind.open(Reply(request_id="r"))
