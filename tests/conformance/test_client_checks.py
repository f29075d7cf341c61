"""The client checks pass the in-process client, encoded or not, and catch wrong ones by name."""

import pytest
from structlog.testing import capture_logs

from enginebay.config import load_stack
from enginebay.conformance.check import failures
from enginebay.conformance.client_checks import CLIENT_CHECKS
from enginebay.conformance.client_stage import imagined_stage, stack_stage
from enginebay.conformance.encoded_client import EncodedClient, over_the_wire
from enginebay.conformance.mutants.clients import CLIENT_MUTANTS
from enginebay.conformance.tiny import write_tiny
from enginebay.plugins.transports.inproc import Inproc

CLIENTS = {"inproc": Inproc, "encoded": lambda engine: EncodedClient(Inproc(engine))}


@pytest.fixture(autouse=True)
def quiet():
    """Some checks break the engine on purpose, and it says so."""
    with capture_logs():
        yield


@pytest.mark.parametrize("check", CLIENT_CHECKS, ids=lambda check: check.id)
@pytest.mark.parametrize("client", CLIENTS)
def test_right_clients_pass(check, client):
    """As plain calls, and with every message as bytes."""
    check.call(imagined_stage(CLIENTS[client]))


@pytest.mark.parametrize("mutant", CLIENT_MUTANTS, ids=lambda mutant: mutant.fault)
def test_mutants_are_caught_by_name(mutant):
    """The check that guards the broken clause fails."""
    guarding = [check for check in CLIENT_CHECKS if check.id == mutant.caught_by]
    found = failures(guarding, imagined_stage(mutant.make, patience=0.5))
    assert mutant.caught_by in found


@pytest.mark.parametrize("check", CLIENT_CHECKS, ids=lambda check: check.id)
def test_a_whole_stack_passes(check, tmp_path_factory):
    """With a model, a tokenizer and admission under it, the clauses are the same."""
    folder = tmp_path_factory.getbasetemp() / "client-checks-model"
    if not folder.exists():
        write_tiny(folder)
    stack = load_stack("reference", {"engine.model": str(folder), "engine.warm_up": False})
    check.call(stack_stage(stack))


def test_nothing_but_plain_data_crosses():
    """A tensor, a lock or a callable in a message is an error, not a pickle."""
    with pytest.raises(TypeError):
        over_the_wire({"lock": object()}, dict)
