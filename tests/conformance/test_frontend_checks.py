"""The shipped frontends pass the frontend checks, and broken ones fail the right one."""

import msgspec
import pytest

from enginebay.conformance.check import failures
from enginebay.conformance.frontend_checks import FRONTEND_CHECKS
from enginebay.errors import InvalidRequest
from enginebay.flow import ChatPrompt, TokenPrompt
from enginebay.hookspecs.frontend import Parsed
from enginebay.plugins.frontends import completion, hf_chat


def chat(context):
    return hf_chat.enginebay_frontend(hf_chat.Options(), context)


def plain(context):
    return completion.enginebay_frontend(completion.Options(), context)


class Mutant:
    """The shipped frontend for text; subclasses break one thing each."""

    kinds = ("text", "tokens")

    def __init__(self, context):
        self.context = context
        self.real = plain(context)

    def encode(self, prompt):
        return self.real.encode(prompt)

    def parser(self, request):
        return self.real.parser(request)


class NamesNoKind(Mutant):
    """Names a kind that no prompt has."""

    kinds = ("prompt",)


class TakesAnyId(Mutant):
    """Hands token ids on unread."""

    def encode(self, prompt):
        if isinstance(prompt, TokenPrompt):
            return self.real.encode(TokenPrompt(token_ids=(1,)))
        return self.real.encode(prompt)


class LosesIdentity(Mutant):
    """Leaves out which tokenizer it was."""

    def encode(self, prompt):
        return msgspec.structs.replace(self.real.encode(prompt), tokenizer="")


class RepeatsInput(Mutant):
    """Writes the whole prompt into the error."""

    def encode(self, prompt):
        try:
            return self.real.encode(prompt)
        except InvalidRequest as error:
            raise InvalidRequest(f"{error} in {'x' * 5000}", "prompt") from error


class Counts(Mutant):
    """Answers differently each time."""

    calls = 0

    def encode(self, prompt):
        self.calls += 1
        encoded = self.real.encode(prompt)
        return msgspec.structs.replace(encoded, token_ids=(self.calls % 7, *encoded.token_ids))


class OneParser(Mutant):
    """Gives every choice the same parser."""

    class Buffer:
        def __init__(self):
            self.text = ""

        def feed(self, text):
            self.text += text
            return Parsed()

        def flush(self):
            text, self.text = self.text, ""
            return Parsed(content=text)

    def __init__(self, context):
        super().__init__(context)
        self.shared = self.Buffer()

    def parser(self, request):
        return self.shared


class ChangesMessages(Mutant):
    """Adds a system message to the caller's own list."""

    kinds = ("chat",)

    def __init__(self, context):
        self.real = chat(context)

    def encode(self, prompt):
        encoded = self.real.encode(prompt)
        if isinstance(prompt, ChatPrompt):
            prompt.messages[0]["content"] += " "
        return encoded


MUTANTS = {
    NamesNoKind: "frontend/kinds",
    TakesAnyId: "frontend/refusal",
    RepeatsInput: "frontend/refusal",
    LosesIdentity: "frontend/ids",
    Counts: "frontend/pure",
    ChangesMessages: "frontend/pure",
    OneParser: "frontend/parser",
}


@pytest.mark.parametrize("make", [chat, plain])
def test_shipped_frontends(make):
    """Both shipped frontends keep every clause."""
    assert failures(FRONTEND_CHECKS, make) == {}


@pytest.mark.parametrize(("mutant", "clause"), MUTANTS.items())
def test_mutants_are_caught(mutant, clause):
    """Each broken frontend fails the check that is about its fault."""
    about = [check for check in FRONTEND_CHECKS if check.id == clause]
    assert clause in failures(about, mutant)


def test_every_check_catches_a_mutant():
    """No check is there that none of the mutants fails."""
    assert {check.id for check in FRONTEND_CHECKS} == set(MUTANTS.values())
