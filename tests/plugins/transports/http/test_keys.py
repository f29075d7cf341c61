"""Whose request it is: API keys over real sockets, and the ring that holds them."""

import os
import socket
import time

import pytest
from structlog.testing import capture_logs

from enginebay.conformance.openai_checks import check_error
from enginebay.errors import StackError
from enginebay.keyfile import Key, line_of, new_key
from enginebay.plugins.transports.http.keyring import KeyRing, presented_key

ALICE, ALICE_TOO, BOB, OPS = (
    new_key("alice"),
    new_key("alice"),
    new_key("bob"),
    new_key("ops", admin=True),
)


def write(path, *pairs, text=""):
    """A key file, whose change nobody can miss."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text("".join(f"{line_of(key)}\n" for key, _ in pairs) + text)
    path.chmod(0o600)
    os.utime(path, ns=(before + 1, before + 1))
    return path


@pytest.fixture
def path(tmp_path):
    """Four keys of three tenants."""
    return write(tmp_path / "keys", ALICE, ALICE_TOO, BOB, OPS)


@pytest.fixture(scope="module")
def locked(start_once, tmp_path_factory):
    """A server that asks for keys."""
    path = write(tmp_path_factory.mktemp("keys") / "keys", ALICE, ALICE_TOO, BOB, OPS)
    return start_once(keys=str(path))


def bearer(pair):
    """The usual header."""
    return {"authorization": f"Bearer {pair[1]}"}


def until(done):
    """Wait for what another thread does next."""
    deadline = time.monotonic() + 10
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.parametrize("pair", [ALICE, ALICE_TOO, BOB])
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_the_tenant_is_the_keys(locked, pair, header):
    """Whatever the body says of users and tenants; in the log too."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "user": "mallory"}
    headers = bearer(pair) if header == "authorization" else {header: pair[1]}
    with capture_logs() as logs:
        answer = locked.http.post("/v1/chat/completions", json=body, headers=headers)
        until(lambda: any(log["event"] == "request" for log in logs))  # after the last byte
    assert answer.status_code == 200, answer.text
    assert locked.client.submitted[-1].tenant == pair[0].tenant
    assert [log["tenant"] for log in logs if log["event"] == "request"] == [pair[0].tenant]
    assert pair[1] not in str(logs)


def test_a_tenant_in_the_body_is_no_tenant(locked):
    """It is passed on as any unknown field is: for the stack to refuse by name."""
    body = {"model": "m", "prompt": "x", "tenant": "bob"}
    answer = locked.http.post("/v1/completions", json=body, headers=bearer(ALICE))
    assert answer.status_code == 200  # the scripted engine takes every field
    request = locked.client.submitted[-1]
    assert request.tenant == "alice"
    assert request.sampling.transforms == {"tenant": "bob"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer none"},
        {"authorization": f"Basic {ALICE[1]}"},
        {"authorization": f"Bearer {ALICE[1]}x"},
        {"authorization": f"Bearer {ALICE[1][:-1]}"},
        {"authorization": f"Bearer eb-{ALICE[0].id}-{BOB[1][16:]}"},
        {"authorization": f"Bearer {new_key('alice')[1]}"},
        {"authorization": b"Bearer \xff\xfe"},
        {"authorization": "Bearer " + "x" * 10_000},
        {"x-api-key": BOB[1].upper()},
        {"authorization": "Bearer wrong", "x-api-key": ALICE[1]},
    ],
    ids=range(13),
)
def test_without_a_good_key_nothing_is_told(locked, headers):
    """401 in the API's shape with a challenge, on every path alike."""
    before = len(locked.client.submitted)
    told = set()
    for url in ("/v1/chat/completions", "/v1/models", "/nowhere", "/version", "/v1/ledger"):
        method = "POST" if url.endswith("completions") else "GET"
        answer = locked.http.request(method, url, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["x-request-id"]
        told.add((answer.content, answer.headers["www-authenticate"]))
    ((body, challenge),) = told
    assert check_error(body)["code"] == "invalid_api_key"
    assert challenge.startswith('Bearer realm="enginebay"')
    assert len(locked.client.submitted) == before


def test_the_answer_comes_before_the_body(locked):
    """A megabyte is announced and never sent: 401 at once."""
    with socket.create_connection(("127.0.0.1", locked.transport.port), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
        )
        assert sock.recv(300).startswith(b"HTTP/1.1 401 ")


def test_a_body_that_is_sent_all_the_same_harms_nothing(locked):
    """The refusal is read, and the connection serves on."""
    answer = locked.http.post("/v1/chat/completions", content=b"x" * 3_000_000)
    assert answer.status_code == 401
    assert locked.http.get("/v1/models", headers=bearer(BOB)).status_code == 200


def test_what_stays_open(start, path):
    """Health and readiness for balancers; metrics unless they are protected: then they,
    which name every tenant, are for admins."""
    server = start(keys=str(path))
    for name in ("/health", "/ready", "/metrics"):
        assert server.http.get(name).status_code == 200
    protected = start(keys=str(path), protect_metrics=True)
    assert protected.http.get("/health").status_code == 200
    assert protected.http.get("/metrics").status_code == 401
    refused = protected.http.get("/metrics", headers=bearer(BOB))
    assert (refused.status_code, check_error(refused.content)["code"]) == (403, "admin_key_needed")
    assert protected.http.get("/metrics", headers=bearer(OPS)).status_code == 200
    assert start(protect_metrics=True).http.get("/metrics").status_code == 200


def test_while_the_model_loads_a_key_is_asked_for_too(locked):
    """401 without one; with one 503 and when to come back, before the body is read."""
    locked.client.state = "starting"
    assert locked.http.post("/v1/completions", json={}).status_code == 401
    for method, name in (("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/metrics")):
        answer = locked.http.request(method, name, headers=bearer(ALICE))
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert check_error(answer.content)["code"] == "starting"
    locked.client.state = "ready"


def test_a_changed_file_counts_within_a_second(path):
    """Read again without a restart, looked at no more than once a second."""
    now = [0.0]
    ring = KeyRing(path, clock=lambda: now[0])

    def tenant(pair):
        caller = ring.caller(pair[1].encode())
        return caller and caller.tenant

    fresh = new_key("carol")
    write(path, ALICE, fresh)
    assert (tenant(BOB), tenant(fresh)) == ("bob", None)
    now[0] = 1.0
    assert (tenant(ALICE), tenant(BOB), tenant(fresh)) == ("alice", None, "carol")
    path.unlink()
    now[0] = 2.0
    with capture_logs() as logs:
        assert tenant(ALICE) == "alice"
    assert "no such file" in logs[0]["problem"]
    write(path)
    now[0] = 3.0
    with capture_logs() as logs:
        assert tenant(ALICE) is None
    assert [log["log_level"] for log in logs] == ["info", "warning"]


def test_a_broken_file_keeps_the_old_keys(path):
    """One error names line and problem; once mended, the file counts again."""
    now = [0.0]
    ring = KeyRing(path, clock=lambda: now[0])
    write(path, ALICE, text='{"id": 5}\n')
    with capture_logs() as logs:
        for now[0] in (1.0, 2.0, 3.0):
            assert ring.caller(BOB[1].encode()).tenant == "bob"
    (error,) = logs
    assert error["log_level"] == "error"
    assert "line 2: Expected `str`, got `int` - at `$.id`" in error["problem"]
    write(path, ALICE)
    now[0] = 4.0
    assert ring.caller(BOB[1].encode()) is None


def test_a_broken_file_stops_the_start(tmp_path, start):
    """With the option's file, the line and the problem; so does a missing one."""
    broken = write(tmp_path / "broken", ALICE, text="{")
    for path, told in ((broken, "line 2"), (tmp_path / "none", "enginebay keys add")):
        with pytest.raises(StackError, match=told):
            start(keys=str(path))


def test_a_file_that_everybody_reads_is_named(path):
    """A warning, at the start and when it changes."""
    path.chmod(0o644)
    with capture_logs() as logs:
        KeyRing(path)
    assert [log["log_level"] for log in logs] == ["info", "warning"]
    assert "everybody" in logs[1]["event"]


def test_an_unknown_id_costs_what_a_known_one_does(path, monkeypatch):
    """One hash and one comparison, whatever was presented."""
    ring = KeyRing(path)
    calls = []
    matches = Key.matches
    monkeypatch.setattr(
        Key, "matches", lambda self, secret: calls.append(1) or matches(self, secret)
    )
    for presented in (ALICE[1].encode(), new_key("x")[1].encode(), b"junk", b"x" * 10_000, None):
        calls.clear()
        ring.caller(presented)
        assert calls == [1]


def test_the_decoy_lets_nobody_in(path):
    """What is compared where there is no key is no key."""
    ring = KeyRing(path)
    for presented in (b"-" * 43, b"eb--" + b"-" * 43, b"eb-000000000000-" + b"-" * 43):
        assert ring.caller(presented) is None


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"bearer  k ")], b"k"),
        ([(b"authorization", b"BEARER k"), (b"x-api-key", b"other")], b"k"),
        ([(b"x-api-key", b" k ")], b"k"),
        ([(b"authorization", b"Basic k"), (b"x-api-key", b"k2")], b"k2"),
        ([(b"x-api-key", b"")], None),
    ],
)
def test_where_a_key_is_looked_for(headers, key):
    """The scheme's case does not matter; a bearer key goes before the other header."""
    assert presented_key(headers) == key
