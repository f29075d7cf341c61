"""Tenants over HTTP and a real engine: what they share, and what none sees of another."""

import gc

import pytest

from enginebay.keyfile import line_of, new_key

ALICE, ALICE_TOO, BOB, OPS = (
    new_key("alice"),
    new_key("alice"),
    new_key("bob"),
    new_key("ops", admin=True),
)
LONG = "The system prompt that all of one tenant's requests begin with, word for word. " * 2


class Office:
    """A server with keys, over an allocator that remembers prefixes."""

    def __init__(self, server_of, path):
        path.write_text("".join(f"{line_of(key)}\n" for key, _ in (ALICE, ALICE_TOO, BOB, OPS)))
        path.chmod(0o600)
        self.served = server_of({"allocator": "prefix-hash"}, keys=str(path))
        self.http, self.model = self.served.http, self.served.model

    def get(self, pair, path, **params):
        """Ask with a key."""
        headers = {"authorization": f"Bearer {pair[1]}"}
        return self.http.get(path, headers=headers, params=params)

    def complete(self, pair, prompt=LONG, **fields):
        """A greedy completion with a key. :return: its body"""
        fields = {"model": self.model, "prompt": prompt, "max_tokens": 4} | fields
        headers = {"authorization": f"Bearer {pair[1]}"}
        json = {"temperature": 0, "seed": 1, **fields}
        answer = self.http.post("/v1/completions", json=json, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def office(server_of, tmp_path_factory):
    """One server for this module."""
    running = Office(server_of, tmp_path_factory.mktemp("office") / "keys")
    yield running
    running.served.close()
    gc.collect()


def cached(body):
    """Prompt tokens that were not computed again."""
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_one_tenant_shares_its_prefix_and_two_do_not(office):
    """Keys of one tenant reuse each other's blocks; another's computes them again, gets the
    same answer, and naming the neighbour in the body helps nobody."""
    first = office.complete(ALICE)
    again = office.complete(ALICE_TOO)
    assert cached(first) == 0
    assert cached(again) > 0
    strange = office.complete(BOB, user="alice")
    assert cached(strange) == 0
    assert cached(office.complete(BOB)) == cached(again)
    texts = {body["choices"][0]["text"] for body in (first, again, strange)}
    assert len(texts) == 1


def test_a_prompt_that_was_only_scored_is_there_for_the_next(office):
    """An answer of one token ends in the step that computed its prompt."""
    prompt = LONG[::-1]
    assert cached(office.complete(ALICE, prompt, max_tokens=1)) == 0
    assert cached(office.complete(ALICE_TOO, prompt, max_tokens=1)) > 0


def test_a_tenant_in_the_body_is_refused_by_name(office):
    """No plugin owns such a field (promise P4)."""
    headers = {"x-api-key": BOB[1]}
    json = {"model": office.model, "prompt": "x", "tenant": "alice"}
    answer = office.http.post("/v1/completions", json=json, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tenant")


def test_a_timeline_tells_what_happened(office):
    """By the id that the answer carried: from accepted to the last token written, with the
    latencies that follow."""
    id_ = office.complete(ALICE, max_tokens=6, ignore_eos=True)["id"]
    answer = office.get(ALICE_TOO, f"/v1/requests/{id_}/timeline")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["id"], body["object"], body["model"]) == (id_, "request.timeline", office.model)
    said = [event["what"] for event in body["events"]]
    assert said[:2] == ["accepted", "admitted"]
    for what in ("started", "scheduled", "first_token", "token_ready", "finished", "released"):
        assert what in said
    (ready,) = [event for event in body["events"] if event["what"] == "token_ready"]
    assert ready["count"] == 6
    latencies = body["latencies"]
    assert 0 <= latencies["queue"] <= latencies["first_token"] <= latencies["engine"]
    assert latencies["token_interval"] > 0


def test_what_was_written_is_in_the_timeline(office):
    """Whole answers are written after the request has left: they count all the same."""
    id_ = office.complete(ALICE, max_tokens=3, ignore_eos=True)["id"]

    def transport():
        body = office.get(ALICE, f"/v1/requests/{id_}/timeline").json()
        return body["latencies"]["transport"]

    for _ in range(200):
        if transport() is not None:
            break
    assert transport() >= 0


def test_nobody_sees_another_tenants_requests(office):
    """404, as for an id that never was; an administrator sees them."""
    id_ = office.complete(ALICE)["id"]
    stranger = office.get(BOB, f"/v1/requests/{id_}/timeline")
    unknown = office.get(BOB, "/v1/requests/cmpl-none/timeline")
    assert stranger.status_code == unknown.status_code == 404
    assert stranger.content == unknown.content
    assert office.get(OPS, f"/v1/requests/{id_}/timeline").status_code == 200
    listed = {row["id"] for row in office.get(ALICE, "/v1/requests").json()["data"]}
    assert id_ in listed
    assert id_ not in office.get(BOB, "/v1/requests").text
    rows = office.get(OPS, "/v1/requests", limit=1).json()["data"]
    assert [row["tenant"] for row in rows] == ["alice"]


def test_a_request_of_several_prompts(office):
    """Its id leads to the timelines of all of them, and each has an id of its own."""
    id_ = office.complete(BOB, prompt=["One", "Two and more"])["id"]
    body = office.get(BOB, f"/v1/requests/{id_}/timeline").json()
    assert [part["id"] for part in body["data"]] == [f"{id_}-0", f"{id_}-1"]
    alone = office.get(BOB, f"/v1/requests/{id_}-1/timeline").json()
    assert alone["events"] == body["data"][1]["events"]
    trace = office.get(BOB, f"/v1/requests/{id_}/timeline", format="trace").json()
    assert {event["ph"] for event in trace["traceEvents"]} >= {"M", "X"}
    assert office.get(ALICE, f"/v1/requests/{id_}-1/timeline").status_code == 404


@pytest.mark.parametrize(
    ("path", "params", "param"),
    [
        ("/v1/requests/x/timeline", {"format": "html"}, "format"),
        ("/v1/requests", {"limit": "0"}, "limit"),
        ("/v1/requests", {"limit": "1001"}, "limit"),
        ("/v1/requests", {"limit": "-1"}, "limit"),
        ("/v1/requests", {"limit": "1" * 5000}, "limit"),
        ("/v1/requests", {"limit": "²"}, "limit"),
    ],
)
def test_a_wrong_question_is_named(office, path, params, param):
    """400 with the parameter."""
    answer = office.get(BOB, path, **params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_the_ledger_shows_each_tenant_its_own_rows(office):
    """Lines for whoever has a key, by model; requests and tenants of others for nobody but
    an administrator."""
    body = {"model": office.model, "prompt": "x", "max_tokens": 400, "stream": True}
    body |= {"ignore_eos": True}
    headers = {"x-api-key": ALICE[1]}
    with office.http.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        chunks = answer.iter_raw()  # dropped, it would close the answer
        next(chunks)
        seen = {}
        for name, pair in (("alice", ALICE), ("bob", BOB), ("ops", OPS)):
            (row,) = office.get(pair, "/v1/ledger").json()["data"]
            assert row["model"] == office.model
            ledger = row["ledger"]
            assert {line["name"] for line in ledger["lines"]} >= {"weights", "kv"}
            tenants = [entry["tenant"] for entry in ledger["tenants"]]
            seen[name] = (tenants, len(ledger["requests"]))
    assert seen == {"alice": (["alice"], 1), "bob": ([], 0), "ops": (["alice"], 1)}
