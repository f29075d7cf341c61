"""Completion requests against a scripted engine."""

import pytest

from enginebay.conformance.openai_checks import check_error, check_stream, check_text_logprobs
from enginebay.errors import InvalidRequest
from enginebay.flow import TextPrompt, TokenPrompt


def post_stream(server, **fields):
    """The bytes of a completion stream."""
    body = {"model": "m", "prompt": "hi", "stream": True} | fields
    with server.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        return answer.read()


def test_a_whole_answer(server):
    """Sixteen tokens unless told otherwise."""
    body = server.complete().json()
    assert len(body["choices"][0]["text"].split()) == 16
    assert body["id"].startswith("cmpl-")
    assert server.client.submitted[-1].prompt == TextPrompt(text="hi")
    server.alive()


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_are_the_callers_choice(server, special):
    """add_special_tokens reaches the tokenizer."""
    server.complete(add_special_tokens=special)
    assert server.client.submitted[-1].prompt.add_special_tokens is special


def test_token_ids(server):
    """Ids are taken as they are."""
    assert server.complete(prompt=[1, 2], max_tokens=1).status_code == 200
    assert server.client.submitted[-1].prompt == TokenPrompt(token_ids=(1, 2))


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (["a", "b"], [TextPrompt(text="a"), TextPrompt(text="b")]),
        ([[1], [2, 3]], [TokenPrompt(token_ids=(1,)), TokenPrompt(token_ids=(2, 3))]),
    ],
)
def test_several_prompts(server, prompt, prompts):
    """One engine request each; choices numbered in order; usage summed; both forms equal."""
    before = len(server.client.submitted)
    body = server.complete(prompt=prompt, n=2, max_tokens=2).json()
    requests = server.client.submitted[before:]
    assert [request.prompt for request in requests] == prompts
    assert len({request.id for request in requests}) == 2
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 8
    raw = post_stream(
        server, prompt=prompt, n=2, max_tokens=2, stream_options={"include_usage": True}
    )
    stream = check_stream(raw, chat=False, n=4, include_usage=True)
    assert [c.text for c in stream.choices.values()] == [c["text"] for c in body["choices"]]
    assert stream.usage == body["usage"]
    server.alive()


@pytest.mark.parametrize("stream", [False, True])
def test_one_bad_prompt_takes_the_others_back(server, stream):
    """The second is refused: 400, and the first is cancelled."""

    def refuse(request):
        if request.prompt.text == "bad":
            raise InvalidRequest("prompt: it is bad", "prompt")

    server.client.on_submit = refuse
    server.client.hold.set()
    try:
        answer = server.complete(prompt=["ok", "bad", "ok"], stream=stream)
    finally:
        server.client.on_submit = lambda request: None
        server.client.hold.clear()
    assert answer.status_code == 400
    assert check_error(answer.content)["param"] == "prompt"
    first = server.client.submitted[-1]
    assert first.prompt.text == "ok"
    assert (first.id, "cancelled") in server.client.cancelled
    server.alive()


@pytest.mark.parametrize("echo", [False, True])
def test_case_26_logprobs(server, echo):
    """Four lists, offsets into the text, equal in both forms."""
    fields = {"prompt": "a b c", "max_tokens": 2, "logprobs": 2, "echo": echo}
    choice = server.complete(**fields).json()["choices"][0]
    assert choice["text"] == ("a b c" if echo else "") + "w0 w1 "
    check_text_logprobs(choice["text"], choice["logprobs"], echo=echo)
    stream = check_stream(post_stream(server, **fields), chat=False).choices[0]
    assert (stream.text, stream.logprobs) == (choice["text"], choice["logprobs"])
    server.alive()


def test_echo_of_token_ids(server):
    """The prompt was ids: its text comes from the engine."""
    choice = server.complete(prompt=[7, 8, 9], echo=True, max_tokens=1).json()["choices"][0]
    assert choice["text"] == "a b cw0 "
    assert choice["logprobs"] is None
    assert "prompt_logprobs" not in choice


def test_case_13_max_tokens_zero(server):
    """With echo and logprobs the prompt is scored and nothing is generated."""
    body = server.complete(prompt="a b c", max_tokens=0, echo=True, logprobs=1).json()
    choice = body["choices"][0]
    assert choice["text"] == "a b c"
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert len(choice["logprobs"]["tokens"]) == 3
    assert body["usage"]["completion_tokens"] == 0
    assert server.client.submitted[-1].sampling.max_tokens == 0
    server.alive()


@pytest.mark.parametrize("value", [1.5, "8", True, [], {}])
def test_case_13_max_tokens_of_the_wrong_type(server, value):
    """A number is not coerced."""
    answer = server.complete(max_tokens=value)
    assert answer.status_code == 400
    assert check_error(answer.content)["param"] == "max_tokens"


@pytest.mark.parametrize(
    "prompt",
    [
        [], [[]], [[], [1]], [[1], []], None, 5, 1.5, {}, {"a": 1}, [None], [{}], [True], [1, "a"],
        ["a", 1], [[1], "a"], [[1], [True]], [[[1]]], [1, -1], [1, 2**31], [1, 2**63], [1, 10**40],
        [1, 1.5],
    ],
)  # fmt: skip
def test_cases_14_and_15_wrong_prompts(server, prompt):
    """Empty lists, mixed lists, ids that no vocabulary holds: 400 naming ``prompt``."""
    answer = server.complete(prompt=prompt)
    assert answer.status_code == 400, answer.text
    assert check_error(answer.content)["param"] == "prompt"


def test_wrong_prompts_left_nothing_behind(server):
    """After all of them a plain request answers as ever."""
    server.alive()


def test_too_many_prompts(server):
    """The choices of one request are bounded before anything is submitted."""
    before = len(server.client.submitted)
    answer = server.complete(prompt=["a"] * 600, n=2)
    assert answer.status_code == 400
    assert check_error(answer.content)["param"] == "prompt"
    assert len(server.client.submitted) == before


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": "2"}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stop": [123]}, "stop[0]"),
        ({"stop": 5}, "stop"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"seed": True}, "seed"),
        ({"n": "2"}, "n"),
        ({"stream": "yes"}, "stream"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(server, fields, param):
    """A 400 that names the field."""
    answer = server.complete(**fields)
    assert answer.status_code == 400, answer.text
    assert check_error(answer.content)["param"] == param


@pytest.mark.parametrize("stop", [None, []])
def test_case_9_no_stop(server, stop):
    """null and an empty list mean none."""
    assert server.complete(stop=stop, max_tokens=1).status_code == 200
    assert server.client.submitted[-1].sampling.stop == ()
