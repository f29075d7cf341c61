"""Windows, slow readers, many callers."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx

from enginebay.conformance.openai_checks import check_error, check_stream
from enginebay.errors import RequestRefused
from enginebay.flow import Refusal

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_written_tokens_are_acknowledged(server, wait_until):
    """Of every choice, up to the last token; streams carry their window."""
    server.client.acknowledged.clear()
    with server.streaming(n=2, max_tokens=5) as answer:
        answer.read()
    request = server.client.submitted[-1]
    assert request.window == 256

    def last():
        reports = [w for batch in list(server.client.acknowledged) for w in batch]
        return {w.index: w.num_tokens for w in reports if w.request_id == request.id}

    assert wait_until(lambda: last() == {0: 5, 1: 5})
    server.chat(max_tokens=1)
    assert server.client.submitted[-1].window == 0


def test_a_sink_that_is_full_loses_nothing(start):
    """Sixteen choices a step against a buffer of one chunk: every word arrives."""
    server = start(max_buffer=1)
    with server.streaming(n=16, max_tokens=5) as answer:
        stream = check_stream(answer.read(), chat=True, n=16)
    assert {c.text for c in stream.choices.values()} == {"w0 w1 w2 w3 w4 "}


def test_a_small_window_still_streams_everything(start):
    """The engine may be only two tokens ahead: acknowledgements keep it going."""
    server = start(window=2)
    with server.streaming(max_tokens=40) as answer:
        stream = check_stream(answer.read(), chat=True)
    assert len(stream.choices[0].text.split()) == 40


def test_a_reader_that_takes_nothing_is_cut(start, wait_until):
    """The engine stalls at the window; then the connection is dropped, neighbours not."""
    server = start(slow_reader_seconds=0.5, window=100_000)
    server.client.acknowledged.clear()
    sock = server.raw_post(stream=True, max_tokens=10**6, receive_buffer=2048)
    server.client.hold.clear()
    assert wait_until(lambda: any(r == "slow_reader" for _, r in server.client.cancelled), 60)
    acknowledged = max(w.num_tokens for batch in server.client.acknowledged for w in batch)
    assert acknowledged < 2000  # not the megabytes that a kernel would hold
    server.alive()
    sock.close()


def test_the_loop_wakes_once_a_step(server, wait_until):
    """Sixteen streams: events leave in batches, far fewer than there are events."""
    batches, events = server.client.num_batches, server.client.num_events

    def one(_):
        body = BODY | {"stream": True, "max_tokens": 30}
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            answer = client.post("/v1/chat/completions", json=body)
        return check_stream(answer.content, chat=True).choices[0].text

    server.client.hold.set()
    before = len(server.client.submitted)
    with ThreadPoolExecutor(16) as pool:
        texts = pool.map(one, range(16))
        assert wait_until(lambda: len(server.client.submitted) == before + 16)
        server.client.hold.clear()
        assert set(texts) == {"".join(f"w{i} " for i in range(30))}
    assert server.client.num_events - events == 16 * 32
    assert server.client.num_batches - batches < 16 * 4
    server.alive()


def test_case_31_overload_is_refused_quickly(server, wait_until):
    """40 requests against 12 places: the counts add up and health still answers."""
    taken = set()
    lock = threading.Lock()

    def admit(request):
        with lock:
            if len(taken) >= 12:
                raise RequestRefused(
                    Refusal(
                        plugin="bounded-queue",
                        reason="queue_full",
                        kind="server",
                        message="12 requests are here",
                        limit=12,
                        current=len(taken),
                        retry_after=1,
                    )
                )
            taken.add(request.id)

    server.client.on_submit = admit
    server.client.hold.set()
    with (
        httpx.Client(
            base_url=server.url,
            timeout=60,
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        ) as client,
        ThreadPoolExecutor(40) as pool,
    ):
        answers = [pool.submit(client.post, "/v1/chat/completions", json=BODY) for _ in range(40)]
        assert wait_until(lambda: sum(a.done() for a in answers) == 28)
        assert server.http.get("/health").status_code == 200
        server.client.hold.clear()
        statuses = sorted(a.result().status_code for a in answers)
    server.client.on_submit = lambda request: None
    assert statuses == [200] * 12 + [503] * 28
    server.alive()


def test_too_many_wait_to_be_read(start, wait_until):
    """The transport's own queue is bounded too: 503 with Retry-After."""
    server = start(encode_threads=1, max_pending=2)
    go = threading.Event()
    server.client.on_submit = lambda request: go.wait(10)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.chat) for _ in range(2)]
        assert wait_until(lambda: server.transport._gateway._pending == 2)
        answer = server.chat()
        go.set()
        assert [w.result().status_code for w in waiting] == [200, 200]
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert check_error(answer.content)["code"] == "too_many_pending"
    server.alive()
