"""The official client against a started server over a real engine."""

import gc
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from enginebay.conformance.openai_checks import (
    check_chat_logprobs,
    check_error,
    check_stream,
    check_text_logprobs,
)

MESSAGES = [{"role": "user", "content": "Say something"}]
CALM = {"temperature": 0, "seed": 7}


@pytest.fixture(scope="module")
def served(server_of):
    """One server for this module."""
    running = server_of()
    yield running
    assert running.idle()
    running.close()
    gc.collect()


def test_chat_streamed_equals_whole(served):
    """The same text, choice by choice; usage agrees (promise P3)."""
    whole = served.chat(n=2, temperature=1.0)
    texts, usage = {0: "", 1: ""}, None
    options = {"include_usage": True}
    for chunk in served.chat(n=2, temperature=1.0, stream=True, stream_options=options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert [choice.message.content for choice in whole.choices] == [texts[0], texts[1]]
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert served.idle()


def test_completion_streamed_equals_whole(served):
    """The same for completions, with stop strings and without."""
    text = served.complete().choices[0].text
    assert "".join(c.choices[0].text for c in served.complete(stream=True)) == text
    if len(text) > 3:
        stop = text[2:4]
        cut = served.complete(stop=stop)
        assert cut.choices[0].text == text[: text.index(stop)]
        assert cut.choices[0].finish_reason == "stop"
        streamed = "".join(c.choices[0].text for c in served.complete(stop=stop, stream=True))
        assert streamed == cut.choices[0].text


def test_chat_logprobs(served):
    """Case 26: bytes join to the text, alternatives as asked for, one entry a token."""
    answer = served.chat(logprobs=True, top_logprobs=3)
    choice = answer.choices[0]
    tokens = [token.model_dump() for token in choice.logprobs.content]
    check_chat_logprobs(choice.message.content, tokens, 3)
    assert len(tokens) == answer.usage.completion_tokens
    fields = {"messages": MESSAGES, "max_tokens": 12, "stream": True, **CALM}
    raw = served.post("/v1/chat/completions", logprobs=True, top_logprobs=3, **fields).content
    stream = check_stream(raw, chat=True).choices[0]
    assert stream.text == choice.message.content
    assert [t["bytes"] for t in stream.tokens] == [t["bytes"] for t in tokens]


@pytest.mark.parametrize("prompt", ["Once upon", [70, 80, 90], ["Once", "upon a"]])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_echo_with_logprobs(served, prompt, max_tokens):
    """Cases 13 and 26: the prompt in front, scored, for text and for token ids."""
    fields = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": max_tokens, **CALM}
    answer = served.post("/v1/completions", **fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    raw = served.post("/v1/completions", stream=True, **fields).content
    several = isinstance(prompt[0], str) and isinstance(prompt, list)
    stream = check_stream(raw, chat=False, n=len(prompt) if several else 1)
    for choice in body["choices"]:
        check_text_logprobs(choice["text"], choice["logprobs"], echo=True)
        assert stream.choices[choice["index"]].text == choice["text"]
        if isinstance(prompt[0], str):
            own = prompt[choice["index"]] if several else prompt
            assert choice["text"].startswith(own)
    tokens = sum(len(choice["logprobs"]["tokens"]) for choice in body["choices"])
    usage = body["usage"]
    assert tokens == usage["total_tokens"]
    assert usage["completion_tokens"] <= max_tokens * len(body["choices"])
    assert served.idle()


def test_token_ids_come_back(served):
    """return_token_ids: the ids of the prompt and of the answer."""
    body = served.post(
        "/v1/completions", prompt=[70, 80, 90], max_tokens=4, return_token_ids=True, **CALM
    ).json()
    choice = body["choices"][0]
    assert choice["prompt_token_ids"] == [70, 80, 90]
    assert len(choice["token_ids"]) == body["usage"]["completion_tokens"]


def test_sixteen_at_a_time(served):
    """Streams and whole answers together: each equals its answer alone (promise P1)."""
    prompts = [f"Number {i}" for i in range(16)]
    alone = [served.complete(prompt=prompt).choices[0].text for prompt in prompts]

    def one(i):
        if i % 2:
            return served.complete(prompt=prompts[i]).choices[0].text
        return "".join(c.choices[0].text for c in served.complete(prompt=prompts[i], stream=True))

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(one, range(16)))
    assert together == alone
    assert served.idle()


def test_a_hang_up_frees_everything(served):
    """A stream closed after its first chunk leaves no sequence and no block behind."""
    stream = served.complete(max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    assert served.idle()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["", "END"]}, "stop"),
        ({"stop": "x" * 1_000_000}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": 2 * 10**9}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logit_bias": {"100000": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"guided_json": {}}, "guided_json"),
        ({"temprature": 1}, "temprature"),
        ({"prompt": [1, 10**6]}, None),
        ({"prompt": [[1], [10**6]]}, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_the_stack_refuses_by_name(served, fields, param, stream):
    """Cases 9, 15, 19, 20, 21 and promise P4, through the whole door."""
    answer = served.post("/v1/completions", **({"prompt": "x", "stream": stream} | fields))
    assert answer.status_code == 400, answer.text
    error = check_error(answer.content)
    assert param is None or error["param"] == param
    assert len(answer.content) < 4000


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        [{"role": "bogus", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [5] * 5000}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        [{"role": "assistant", "tool_calls": "x"}],
        [{"content": "x"}],
    ],
)
def test_case_35_wrong_messages(served, messages):
    """400 in the error shape."""
    answer = served.post("/v1/chat/completions", messages=messages, max_tokens=2)
    assert answer.status_code == 400, answer.text
    check_error(answer.content)


@pytest.mark.parametrize("max_tokens", [1, None, 2, 10**9])
def test_case_11_lengths_around_the_limit(served, max_tokens):
    """One below the limit gives one token; the limit and above are 400."""
    limit = served.serving.assembly.limits.max_model_len
    ok = served.post("/v1/completions", prompt=[70] * (limit - 1), max_tokens=max_tokens)
    assert ok.status_code == 200, ok.text
    assert ok.json()["usage"]["completion_tokens"] == 1
    for length in (limit, limit + 1):
        answer = served.post("/v1/completions", prompt=[70] * length, max_tokens=max_tokens)
        assert answer.status_code == 400
        assert str(limit) in check_error(answer.content)["message"]
    assert served.idle()


def test_the_official_client_reads_the_errors(served):
    """Its exception types, and the code of an unknown model."""
    with pytest.raises(openai.NotFoundError) as missing:
        served.chat(model="nope")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="temperature"):
        served.chat(temperature=-1)
    assert served.client.models.list().data[0].id == served.model
    assert served.client.models.retrieve(served.model).id == served.model


def test_the_other_endpoints(served):
    """Readiness, metrics, version, model length."""
    assert served.http.get("/ready").json()["state"] == "ready"
    assert "# TYPE" in served.http.get("/metrics").text
    assert served.http.get("/version").json()["service_version"] == served.serving.assembly.version
    model = served.http.get("/v1/models").json()["data"][0]
    assert model["max_model_len"] == served.serving.assembly.limits.max_model_len


def test_case_32_an_engine_that_dies(server_of):
    """A step that raises: the stream ends with an error, health turns, nothing hangs."""
    running = server_of()

    def fail(plan):
        raise RuntimeError("secret")

    stream = running.complete(max_tokens=400, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    running.serving.assembly.engine.executor.execute = fail
    with pytest.raises(openai.APIError) as failed:
        list(stream)
    assert "secret" not in str(failed.value)
    assert running.http.get("/health").status_code == 503
    assert running.http.get("/ready").status_code == 503
    assert running.post("/v1/completions", prompt="x").status_code == 503
    running.close()


def test_case_33_stopped_with_a_stream_under_way(server_of):
    """Without time to finish, the stream ends with an error event and serve returns."""
    running = server_of(shutdown_timeout=0.0)
    fields = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    body = {"model": running.model, **fields}
    with running.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_raw()
        raw = next(lines)
        running.transport.stop()
        raw += b"".join(lines)
    assert check_stream(raw, chat=False).error["message"] == "the server is shutting down"
    running.close()


def test_case_33_stopped_with_time_to_finish(server_of):
    """With time, the stream finishes as it would have."""
    running = server_of()
    fields = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "stream": True}
    body = {"model": running.model, **fields}
    with running.http.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_raw()
        raw = next(lines)
        running.transport.stop()
        raw += b"".join(lines)
    assert check_stream(raw, chat=False).choices[0].finish_reason == "length"
    running.close()
