"""Chat requests against a scripted engine."""

import json

import pytest

from enginebay.conformance.openai_checks import check_chat_logprobs, check_error, check_stream
from enginebay.flow import ChatPrompt

WORDS = "w0 w1 w2 "


def test_a_whole_answer(server):
    """The API's fields, the request's own limit, usage."""
    answer = server.chat(max_tokens=3)
    assert answer.status_code == 200
    body = answer.json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": WORDS}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 6
    assert body["id"].startswith("chatcmpl-")
    server.alive()


def test_a_stream(server):
    """The same text, in chunks, with usage."""
    options = {"include_usage": True}
    with server.streaming(max_completion_tokens=3, stream_options=options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        raw = answer.read()
    stream = check_stream(raw, chat=True, include_usage=True)
    assert stream.choices[0].text == WORDS
    server.alive()


def test_two_choices_with_logprobs(server):
    """n=2 in both forms, each choice with its own log-probabilities."""
    fields = {"n": 2, "max_tokens": 2, "logprobs": True, "top_logprobs": 2}
    whole = server.chat(**fields).json()
    with server.streaming(**fields) as answer:
        stream = check_stream(answer.read(), chat=True, n=2)
    for i, choice in enumerate(whole["choices"]):
        assert choice["index"] == i
        tokens = choice["logprobs"]["content"]
        check_chat_logprobs(choice["message"]["content"], tokens, 2)
        assert stream.choices[i].tokens == tokens
        assert stream.choices[i].text == choice["message"]["content"] == "w0 w1 "
    server.alive()


def test_every_field_arrives(server):
    """Core fields, template fields, and those that sampler plugins own."""
    answer = server.chat(
        max_tokens=2,
        min_tokens=1,
        stop="END",
        stop_token_ids=[5],
        include_stop_str_in_output=True,
        ignore_eos=True,
        seed=-3,
        n=2,
        logprobs=True,
        top_logprobs=4,
        prompt_logprobs=1,
        skip_special_tokens=False,
        temperature=0.5,
        top_p=0.9,
        logit_bias={"5": 1},
        repetition_penalty=1.1,
        priority=-1,
        deadline=60,
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        tool_choice="auto",
        chat_template_kwargs={"enable_thinking": False},
    )
    assert answer.status_code == 200, answer.text
    request = server.client.submitted[-1]
    sampling = request.sampling
    assert sampling.max_tokens == 2
    assert sampling.min_tokens == 1
    assert sampling.stop == ("END",)
    assert sampling.stop_token_ids == (5,)
    assert sampling.include_stop_str_in_output
    assert sampling.ignore_eos
    assert sampling.seed == -3
    assert sampling.n == 2
    assert sampling.logprobs == 4
    assert sampling.prompt_logprobs == 1
    assert not sampling.skip_special_tokens
    assert sampling.transforms == {
        "temperature": 0.5,
        "top_p": 0.9,
        "logit_bias": {"5": 1},
        "repetition_penalty": 1.1,
    }
    assert (request.priority, request.deadline, request.tenant) == (-1, 60, "default")
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages == ({"role": "user", "content": "hi"},)
    assert request.prompt.tools[0]["function"]["name"] == "f"
    assert request.prompt.template_kwargs == {"enable_thinking": False}
    assert "prompt_logprobs" in answer.json()


def test_harmless_fields_change_nothing(server):
    """Bookkeeping fields and neutral values are accepted and not passed on."""
    answer = server.chat(
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        prediction=None,
        safety_identifier="x",
        prompt_cache_key="k",
        response_format={"type": "text"},
        tool_choice="none",
        tools=[{"type": "function", "function": {"name": "f"}}],
        best_of=1,
        use_beam_search=False,
        length_penalty=1.0,
        modalities=["text"],
        temperature=None,
        foo=None,
    )
    assert answer.status_code == 200, answer.text
    request = server.client.submitted[-1]
    assert request.sampling.transforms == {}
    assert request.prompt.tools is None


def test_a_continued_message(server):
    """Continuing the last message takes no generation prompt."""
    assert server.chat(continue_final_message=True).status_code == 200
    prompt = server.client.submitted[-1].prompt
    assert prompt.continue_final_message
    assert not prompt.add_generation_prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": 3}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"suffix": "x"}, "suffix"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"echo": True}, "echo"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": 1}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(server, fields, param):
    """Promise P4: a 400 that names the field, and nothing is submitted."""
    before = len(server.client.submitted)
    answer = server.chat(**fields)
    assert answer.status_code == 400, answer.text
    assert check_error(answer.content)["param"] == param
    assert len(server.client.submitted) == before


@pytest.mark.parametrize("name", ["guided_json", "structured_outputs", "cache_salt", "foo"])
def test_unknown_fields_reach_the_stack(server, name):
    """What the transport doesn't know is for the stack to take or refuse."""
    assert server.chat(**{name: "x"}).status_code == 200
    assert server.client.submitted[-1].sampling.transforms == {name: "x"}


def test_token_ids_on_request(server):
    """return_token_ids names the prompt's and the answer's tokens."""
    body = json.loads(server.chat(max_tokens=2, return_token_ids=True).content)
    assert body["prompt_token_ids"] == [7, 8, 9]
    assert body["choices"][0]["token_ids"] == [1, 2]
