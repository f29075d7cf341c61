"""The shipped detokenizer passes the text checks, and broken ones fail the right one."""

import pytest

from enginebay.conformance.check import failures
from enginebay.conformance.text_checks import DETOKENIZER_CHECKS
from enginebay.hookspecs.detokenizer import DetokenizerContext, Piece
from enginebay.plugins.detokenizers import hf


def make(text):
    return hf.enginebay_detokenizer(hf.Options(), DetokenizerContext(text=text))


class Mutant:
    """The shipped detokenizer; subclasses break one thing each."""

    def __init__(self, text):
        self.text = text
        self.real = make(text)

    def open(self, prompt_ids, **kwargs):
        return self.real.open(prompt_ids, **kwargs)

    def token_bytes(self, token_id):
        return self.real.token_bytes(token_id)


class Stream:
    """A stream around another one."""

    def __init__(self, detokenizer, prompt_ids, kwargs):
        self.detokenizer = detokenizer
        self.kwargs = kwargs
        self.inner = detokenizer.real.open(prompt_ids, **kwargs)

    def feed(self, token_id, *, may_stop=True):
        return self.inner.feed(token_id, may_stop=may_stop)

    def flush(self):
        return self.inner.flush()


class EarlyReplacement(Mutant):
    """Decodes every token alone: parts of characters become U+FFFD at once."""

    class Each(Stream):
        def feed(self, token_id, *, may_stop=True):
            piece = self.inner.feed(token_id, may_stop=may_stop)
            data = self.detokenizer.token_bytes(token_id)
            broken = "\ufffd" in data.decode(errors="replace")
            return Piece(text="\ufffd", stop=piece.stop) if broken else piece

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class StripsEachToken(Mutant):
    """Drops the space in front of every token, not of the sequence."""

    class Each(Stream):
        def feed(self, token_id, *, may_stop=True):
            piece = self.inner.feed(token_id, may_stop=may_stop)
            return Piece(text=piece.text.removeprefix(" "), stop=piece.stop)

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class KeepsFirstSpace(Mutant):
    """Starts each output as if text stood before it."""

    def open(self, prompt_ids, **kwargs):
        word = self.text.tokenizer.encode("the", add_special_tokens=False).ids
        return self.real.open((*word, *prompt_ids), **kwargs)


class LeaksStopPrefix(Mutant):
    """Sends text at once and cuts only what the last token brought."""

    class Each(Stream):
        def __init__(self, detokenizer, prompt_ids, kwargs):
            stops = kwargs.pop("stop", ())
            super().__init__(detokenizer, prompt_ids, kwargs)
            self.stops, self.sent = stops, ""

        def feed(self, token_id, *, may_stop=True):
            text = self.inner.feed(token_id).text
            for stop in self.stops:
                if may_stop and stop in self.sent + text:
                    cut = max((self.sent + text).index(stop) - len(self.sent), 0)
                    return Piece(text=text[:cut], stop=stop)
            self.sent += text
            return Piece(text=text)

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class HoldsEverything(Mutant):
    """Sends nothing before the end."""

    class Each(Stream):
        def __init__(self, detokenizer, prompt_ids, kwargs):
            super().__init__(detokenizer, prompt_ids, kwargs)
            self.held = ""

        def feed(self, token_id, *, may_stop=True):
            piece = self.inner.feed(token_id, may_stop=may_stop)
            self.held += piece.text
            return Piece() if piece.stop is None else Piece(text=self.held, stop=piece.stop)

        def flush(self):
            return self.held + self.inner.flush()

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class IgnoresMinTokens(Mutant):
    """Looks for stop strings in every token."""

    class Each(Stream):
        def feed(self, token_id, *, may_stop=True):
            return self.inner.feed(token_id)

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class ForgetsTheRest(Mutant):
    """Loses what is held when the choice ends."""

    class Each(Stream):
        def flush(self):
            return ""

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class SharesOneStream(Mutant):
    """All requests are fed into one stream."""

    class Each(Stream):
        def feed(self, token_id, *, may_stop=True):
            shared = self.detokenizer.__dict__.setdefault("shared", self.inner)
            return shared.feed(token_id, may_stop=may_stop)

    def open(self, prompt_ids, **kwargs):
        return self.Each(self, prompt_ids, kwargs)


class KeepsSpecials(Mutant):
    """Shows control tokens whatever the request says."""

    def open(self, prompt_ids, **kwargs):
        return self.real.open(prompt_ids, **{**kwargs, "skip_special_tokens": False})


class BytesOfText(Mutant):
    """Gives a token's name as its bytes."""

    def token_bytes(self, token_id):
        return self.text.tokenizer.id_to_token(token_id).encode()


MUTANTS = {
    EarlyReplacement: "detokenizer/characters",
    StripsEachToken: "detokenizer/spaces",
    KeepsFirstSpace: "detokenizer/spaces",
    LeaksStopPrefix: "detokenizer/stop-cut",
    HoldsEverything: "detokenizer/released",
    IgnoresMinTokens: "detokenizer/may-stop",
    ForgetsTheRest: "detokenizer/flush",
    SharesOneStream: "detokenizer/streams",
    KeepsSpecials: "detokenizer/joined",
    BytesOfText: "detokenizer/token-bytes",
}


def test_shipped_detokenizer():
    """The detokenizer ``hf`` keeps every clause."""
    assert failures(DETOKENIZER_CHECKS, make) == {}


@pytest.mark.parametrize(("mutant", "clause"), MUTANTS.items())
def test_mutants_are_caught(mutant, clause):
    """Each broken detokenizer fails the check that is about its fault."""
    about = [check for check in DETOKENIZER_CHECKS if check.id == clause]
    assert clause in failures(about, mutant)


def test_every_check_catches_a_mutant():
    """No check is there that none of the mutants fails."""
    assert {check.id for check in DETOKENIZER_CHECKS} == set(MUTANTS.values())
