"""What callers are told when something is wrong."""

import json

import httpx
import openai
import pytest

from enginebay.conformance.openai_checks import check_error
from enginebay.errors import EngineStopped, InvalidRequest, RequestRefused
from enginebay.flow import Refusal

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"content-type": "application/json"}
OK = '"model":"m","messages":[{"role":"user","content":"x"}]'


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"5",
        b"[" * 10_000,
        b"[" * 1_000_000,
        b'{"a":' * 100_000,
        b'{"model":"m","prompt":"x","messages":[{"role":"user","content":'
        + b"[" * 900
        + b"]" * 900
        + b'}],"metadata":'
        + b"[" * 900
        + b"]" * 900
        + b"}",
        b"\xff\xfe",
        b'{"model":"\xff"}',
        b'{"model":"\\ud800"}',
        b'{"model":"\xed\xa0\x80"}',
        b'{"model":NaN}',
        b'{"model":Infinity}',
        b'{"model":"m","temperature":1e999}',
        b'{"model":"m"} trailing',
        b'{"model":"m",}',
        b"\x00",
    ],
    ids=range(20),
)
def test_case_35_malformed_json(server, path, raw):
    """400, one bounded error, nothing of the server's inside."""
    answer = server.http.post(path, content=raw, headers=JSON)
    assert answer.status_code == 400, answer.text
    assert check_error(answer.content)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": 5}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": None}, "messages"),
        ({"tools": 5}, "tools"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"n": 1.0}, "n"),
        ({"logprobs": 3}, "logprobs"),
        ({"stream": True, "stream_options": 3}, "stream_options"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"priority": "high"}, "priority"),
        ({"deadline": "soon"}, "deadline"),
    ],
)
def test_case_35_wrong_shapes(server, fields, param):
    """400 naming the field."""
    answer = server.chat(**fields)
    assert answer.status_code == 400, answer.text
    assert check_error(answer.content)["param"] == param


@pytest.mark.parametrize("name", ["model", "messages"])
def test_a_missing_field_is_named(server, name):
    """No model, no messages."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    del body[name]
    answer = server.http.post(CHAT, json=body)
    assert answer.status_code == 400
    assert check_error(answer.content)["param"] == name


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model_is_404(server, path):
    """The code is the API's; the message names what was asked for, its beginning alone."""
    body = {"model": "nope" * 900, "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    del body["prompt" if path == CHAT else "messages"]
    answer = server.http.post(path, json=body)
    assert answer.status_code == 404
    error = check_error(answer.content)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'nopenope" in answer.text
    assert "nope" * 17 not in answer.text


def test_wrong_media_type(server):
    """415 for a form; a missing content type is read as JSON."""
    answer = server.http.post(CHAT, content=b"a=b", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    check_error(answer.content)
    raw = ("{" + OK + "}").encode()
    assert server.http.post(CHAT, content=raw).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_get_on_post_routes(server, path):
    """405 with the allowed method, in the error shape."""
    answer = server.http.get(path)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
    check_error(answer.content)


def test_an_unknown_path(server):
    """404, in the error shape, without the path."""
    answer = server.http.get("/v2/secret-path")
    assert answer.status_code == 404
    check_error(answer.content)
    assert "secret" not in answer.text


def test_the_input_is_not_echoed(server):
    """Errors about megabytes are small."""
    huge = "A" * 2_000_000
    for fields in ({huge: 1}, {"stream": huge}, {"stop": [huge, 5]}, {"tool_choice": huge}):
        answer = server.chat(**fields)
        if answer.status_code != 200:
            check_error(answer.content)
            assert len(answer.content) < 4000
    server.alive()


def test_a_body_over_the_bound(start):
    """413, whether its size is declared or not."""
    server = start(max_body_bytes=1000)
    raw = ("{" + OK + ',"user":"' + "x" * 2000 + '"}').encode()
    for content in (raw, iter([raw[:700], raw[700:]])):
        answer = server.http.post(CHAT, content=content, headers=JSON)
        assert answer.status_code == 413
        assert check_error(answer.content)["code"] == "body_too_large"
    server.alive()


def test_the_callers_own_limit_is_a_rate_limit_to_the_official_client(server):
    """It has an exception for 429, which carries the whole refusal."""

    def refuse(request):
        raise RequestRefused(
            Refusal(
                plugin="rate-limit",
                reason="too_many_requests",
                kind="caller",
                message="60 a minute",
                limit=60,
                current=61,
                retry_after=0.2,
            )
        )

    server.client.on_submit = refuse
    with (
        httpx.Client(timeout=30, trust_env=False) as http_client,
        openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="k", max_retries=0, http_client=http_client
        ) as client,
    ):
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as refused:
                client.completions.create(model="m", prompt="x", stream=stream)
            assert refused.value.response.headers["retry-after"] == "1"
            assert refused.value.body["retry_after"] == 0.2
            assert (refused.value.body["limit"], refused.value.body["current"]) == (60, 61)
            assert refused.value.request_id
    server.client.on_submit = lambda request: None
    server.alive()


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e300, -5.0, 0.0])
def test_an_estimate_that_is_no_number_of_seconds(server, seconds):
    """A plugin's odd estimate still becomes whole seconds, at least one, at most a day."""

    def refuse(request):
        raise RequestRefused(
            Refusal(plugin="p", reason="r", kind="server", message="no", retry_after=seconds)
        )

    server.client.on_submit = refuse
    answer = server.chat()
    server.client.on_submit = lambda request: None
    assert answer.status_code == 503
    assert 1 <= int(answer.headers["retry-after"]) <= 86_400
    check_error(answer.content)


def test_a_refusal_says_who_and_when(server):
    """Promise P7: plugin, reason, limit, current value, and when to come back."""
    cases = {"caller": 429, "server": 503, "invalid": 400}
    for kind, status in cases.items():
        refusal = Refusal(
            plugin="bounded-queue",
            reason="queue_full",
            kind=kind,
            message="8 requests wait",
            limit=8,
            current=9,
            retry_after=None if kind == "invalid" else 1.2,
            param="n",
        )

        def refuse(request, refusal=refusal):
            raise RequestRefused(refusal)

        server.client.on_submit = refuse
        for stream in (False, True):
            answer = server.chat(stream=stream)
            assert answer.status_code == status
            error = check_error(answer.content)
            assert error["plugin"] == "bounded-queue"
            assert error["reason"] == error["code"] == "queue_full"
            assert (error["limit"], error["current"]) == (8, 9)
            assert answer.headers.get("retry-after") == (None if kind == "invalid" else "2")
    server.client.on_submit = lambda request: None
    server.alive()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (InvalidRequest("seed: too large", "seed", "bad_seed"), 400, "bad_seed"),
        (EngineStopped("the engine is draining; come back later"), 503, "engine_stopped"),
        (RuntimeError("secret /home/x.py"), 500, "internal_error"),
    ],
)
def test_case_29_errors_before_the_start(server, stream, raised, status, code):
    """A real status and JSON, in streaming mode too; an unknown error says nothing."""

    def fail(request):
        raise raised

    server.client.on_submit = fail
    answer = server.chat(stream=stream)
    server.client.on_submit = lambda request: None
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert check_error(answer.content)["code"] == code
    assert "secret" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)
    server.alive()


def test_the_request_id_comes_back(server):
    """A harmless one is kept, any other is replaced; every answer has one."""
    answer = server.http.get("/health", headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    for bad in ("x" * 200, "a b", 'a"b'):
        answer = server.http.get("/health", headers={"x-request-id": bad})
        assert len(answer.headers["x-request-id"]) == 32
    assert server.http.get("/nope").headers["x-request-id"]


def test_message_bound(server):
    """An error that quotes its input is cut."""

    def fail(request):
        raise InvalidRequest("x" * 1_000_000, "y" * 1_000_000)

    server.client.on_submit = fail
    answer = server.chat()
    server.client.on_submit = lambda request: None
    assert len(answer.content) < 4000
    assert json.loads(answer.content)["error"]["message"].endswith("...")
