"""The endpoints that only tell."""

import pytest

from enginebay import __version__
from enginebay.errors import PluginError
from enginebay.hookspecs.transport import TransportContext
from enginebay.plugins.transports import http
from enginebay.plugins.transports.http.info import join_metrics


def test_models(server):
    """The served names, in the API's shape, one by one too."""
    listed = server.http.get("/v1/models").json()
    assert listed["object"] == "list"
    model = listed["data"][0]
    assert (model["id"], model["object"], model["max_model_len"]) == ("m", "model", 64)
    assert server.http.get("/v1/models/m").json() == model
    missing = server.http.get("/v1/models/a/b")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_health_readiness_and_version(server):
    """Alive, ready, validated; the service version."""
    assert server.http.get("/health").json() == {"status": "ok"}
    ready = server.http.get("/ready")
    assert ready.status_code == 200
    assert ready.json() == {
        "state": "ready",
        "ready": True,
        "validated": True,
        "models": {"m": {"state": "ready", "validated": True}},
    }
    assert server.http.get("/version").json() == {
        "version": __version__,
        "service_version": "v-test",
    }


def test_case_32_not_ready_while_loading(server):
    """Alive but starting: 503 on /ready, 200 on /health."""
    server.client.state = "starting"
    assert server.http.get("/ready").status_code == 503
    assert server.http.get("/health").status_code == 200
    server.client.state = "ready"


def test_metrics_of_two_engines(start, scripted):
    """One exposition; each family once."""
    server = start({"m": scripted(), "o": scripted()})
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.count("# HELP steps") == 1
    assert answer.text.count("steps 1\n") == 2
    assert server.http.get("/v1/models").json()["data"][1]["id"] == "o"


def test_joined_families_stand_together():
    """Samples of one family follow each other, whatever the order they came in."""
    first = "# TYPE a counter\na 1\n# TYPE b gauge\nb 2\n"
    second = "# TYPE b gauge\nb 3\n# TYPE a counter\na 4\n"
    assert join_metrics([first, second]) == "# TYPE a counter\na 1\na 4\n# TYPE b gauge\nb 2\nb 3\n"


def test_a_stack_without_its_sinks_does_not_start():
    """The error says what to add where."""
    context = TransportContext(clients={}, sinks={"sse": None}, version="")
    with pytest.raises(PluginError, match="add json to 'sinks'"):
        http.enginebay_transport(http.Options(), context)
