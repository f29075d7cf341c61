"""Messages and tools: what is wrong is named, what is right is copied (case 35)."""

import pytest

from enginebay.errors import InvalidRequest
from enginebay.plugins.frontends.messages import read_messages, read_tools

USER = {"role": "user", "content": "x"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}


def calling(**function):
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}


WRONG_MESSAGES = [
    ([], "messages", "at least one message"),
    ({}, "messages", "at least one message"),
    (5, "messages", "at least one message"),
    ([5], "messages[0]", "is 5; it must be an object"),
    ([USER, "x"], "messages[1]", "is 'x'"),
    ([{}], "messages[0].role", "is missing; it must be one of system, developer, user"),
    ([{"role": "bogus", "content": "x"}], "messages[0].role", "is 'bogus'"),
    ([{"role": ["user"], "content": "x"}], "messages[0].role", "is ['user']"),
    ([{"role": "user"}], "messages[0].content", "is missing; give a string or a list"),
    ([{"role": "user", "content": None}], "messages[0].content", "is missing"),
    ([{"role": "assistant", "content": None}], "messages[0].content", "is missing"),
    ([{"role": "user", "content": 5}], "messages[0].content", "is 5"),
    ([{"role": "user", "content": {"a": 1}}], "messages[0].content", "is {'a': 1}"),
    ([{"role": "user", "content": []}], "messages[0].content", "is an empty list"),
    ([{"role": "user", "content": ["a"]}], "messages[0].content[0]", "is 'a'"),
    ([{"role": "user", "content": [{}]}], "messages[0].content[0].type", "is missing"),
    (
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}],
        "messages[0].content[1].type",
        "is 'image_url'; this model takes parts of type 'text' only",
    ),
    (
        [{"role": "user", "content": [{"type": "text"}]}],
        "messages[0].content[0].text",
        "is missing",
    ),
    ([{**USER, "name": 5}], "messages[0].name", "is 5"),
    ([{**USER, "tool_call_id": 5}], "messages[0].tool_call_id", "is 5"),
    ([{**USER, "x": object()}], "messages", "hold a value of type object"),
    ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls", "is 'x'"),
    (
        [{"role": "assistant", "tool_calls": [5]}],
        "messages[0].tool_calls[0].function.name",
        "is missing",
    ),
    ([calling()], "messages[0].tool_calls[0].function.name", "is missing"),
    (
        [USER, calling(name="f", arguments='{"a": ')],
        "messages[1].tool_calls[0].function.arguments",
        "must be the text of a JSON object",
    ),
    (
        [calling(name="f", arguments="[1]")],
        "messages[0].tool_calls[0].function.arguments",
        "is [1]; it must be a JSON object",
    ),
    (
        [calling(name="f", arguments="[" * 100_000)],
        "messages[0].tool_calls[0].function.arguments",
        "must be the text",
    ),
]
WRONG_TOOLS = [
    ([5], "tools[0]", "is 5"),
    ([{}], "tools[0].type", "is missing; it must be 'function'"),
    ([{"type": "function"}], "tools[0].function", "is missing"),
    ([{"type": "function", "function": {}}], "tools[0].function.name", "is missing"),
    ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name", "is ''"),
]


@pytest.mark.parametrize(("messages", "param", "complaint"), WRONG_MESSAGES)
def test_wrong_messages(messages, param, complaint):
    """The first wrong field is named, with what it holds."""
    with pytest.raises(InvalidRequest) as caught:
        read_messages(messages)
    detail = caught.value.detail
    assert detail.param == param
    assert detail.message.startswith(param)
    assert complaint in detail.message
    assert len(detail.message) < 300


@pytest.mark.parametrize(("tools", "param", "complaint"), WRONG_TOOLS)
def test_wrong_tools(tools, param, complaint):
    """The first wrong field is named, with what it holds."""
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools)
    assert caught.value.detail.param == param
    assert complaint in caught.value.detail.message


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "x" * 10**6 + "\ud800", "name": 5},
        {"role": "x" * 10**6},
        {"role": "user", "content": [["x"] * 10**5]},
        {"role": "user", "content": [{"type": 10**9999}]},
    ],
)
def test_complaints_are_short(message):
    """A complaint never repeats the input at length."""
    with pytest.raises(InvalidRequest) as caught:
        read_messages([message])
    assert len(str(caught.value)) < 300


def test_copies():
    """Messages are copied, deeply, without the keys that hold nothing."""
    given = {"role": "user", "content": [{"type": "text", "text": "x"}], "audio": None, "k": {}}
    (message,) = read_messages([given])
    assert message == {"role": "user", "content": [{"type": "text", "text": "x"}], "k": {}}
    message["content"][0]["text"] = message["k"]["y"] = "changed"
    assert given["content"][0]["text"] == "x"
    assert given["k"] == {}
    assert read_tools(()) is read_tools(None) is None


def test_tool_calls():
    """Arguments become objects; a calling turn needs no content."""
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    (message,) = read_messages([called])
    assert "content" not in message
    assert message["tool_calls"][0]["function"]["arguments"] == {"a": [1]}
    assert CALL["function"]["arguments"] == '{"a": [1]}'
    for arguments in ("", "{}", {}):
        (message,) = read_messages([calling(name="f", arguments=arguments)])
        assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_one_name(name):
    """Reasoning reaches the template under the names that templates read."""
    (message,) = read_messages([{"role": "assistant", name: "r"}])
    assert message["reasoning_content"] == message["thinking"] == "r"


def test_roles_are_a_setting():
    """A role is known if the settings list it."""
    assert read_messages([{"role": "ipython", "content": "x"}], ("ipython",))
    with pytest.raises(InvalidRequest, match="one of ipython"):
        read_messages([USER], ("ipython",))
