"""Events as an engine would emit them, without an engine."""

import codecs
from collections.abc import Callable, Sequence

import pytest

from enginebay.flow import (
    Alternative,
    ChoiceFinished,
    Delta,
    Ended,
    Event,
    Failure,
    PromptScored,
    TokenLogprob,
    Usage,
)
from enginebay.hookspecs.sink import Reply, Sink, SinkContext
from enginebay.plugins.sinks import json as json_sink
from enginebay.plugins.sinks import sse as sse_sink


class Script:
    """Words tokens, given as their bytes, as one request's events."""

    request_id = "r1"

    def entry(self, data: bytes, num_top: int = 0, logprob: float = -0.5) -> TokenLogprob:
        """A token's log-probabilities; the alternatives are itself and fillers."""

        def alternative(data: bytes, logprob: float) -> Alternative:
            text = data.decode("utf-8", "replace")
            return Alternative(token_id=len(data), logprob=logprob, text=text, data=data)

        top = [alternative(data, logprob)]
        top += [alternative(b"alt%d" % i, logprob - i - 1) for i in range(num_top)]
        return TokenLogprob(token=alternative(data, logprob), top=tuple(top[:num_top]))

    def choice(
        self,
        tokens: Sequence[bytes],
        *,
        index: int = 0,
        logprobs: int | None = None,
        reason: str = "length",
        hidden: frozenset[int] = frozenset(),
        request_id: str = "r1",
    ) -> list[Event]:
        """One token a delta, its text when its character is whole, then the finish.

        ``hidden``: positions of tokens that add nothing to the text.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        events: list[Event] = []
        for position, data in enumerate(tokens):
            text = "" if position in hidden else decoder.decode(data)
            entries = None if logprobs is None else (self.entry(data, logprobs),)
            events.append(
                Delta(
                    request_id=request_id,
                    index=index,
                    token_ids=(position,),
                    content=text,
                    logprobs=entries,
                    num_generated=position + 1,
                )
            )
        rest = decoder.decode(b"", final=True)
        if rest:
            events.append(Delta(request_id=request_id, index=index, content=rest))
        finished = ChoiceFinished(request_id=request_id, index=index, reason=reason)
        return [*events, finished]

    def scored(self, tokens: Sequence[bytes], num_top: int = 0) -> PromptScored:
        """Prompt log-probabilities."""
        later = (self.entry(data, num_top) for data in tokens[1:])
        ids = tuple(range(len(tokens)))
        return PromptScored(
            request_id=self.request_id, logprobs=(None, *later), token_ids=ids, first=tokens[0]
        )

    def ended(
        self, prompt: int = 3, completion: int = 5, error: str = "", request_id: str = "r1"
    ) -> Ended:
        """The terminal event."""
        return Ended(
            request_id=request_id,
            usage=Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=1),
            error=Failure(message=error, plugin="boom") if error else None,
        )


def play(sink: Sink, events: Sequence[Event]) -> bytes:
    """Everything a sink gives for these events, drained after each."""
    out = []
    for event in events:
        assert sink.offer(event)
        out += sink.drain()
    return b"".join(out)


def sse(reply: Reply, max_buffer: int = 65536) -> Sink:
    """A stream."""
    kind = sse_sink.enginebay_sink(sse_sink.Options(max_buffer=max_buffer), SinkContext())
    return kind.open(reply)


def whole(reply: Reply) -> Sink:
    """A body."""
    return json_sink.enginebay_sink(json_sink.Options(), SinkContext()).open(reply)


@pytest.fixture
def script() -> Script:
    """Words events."""
    return Script()


@pytest.fixture
def streamed() -> Callable[[Reply, Sequence[Event]], bytes]:
    """The bytes of a stream."""
    return lambda reply, events: play(sse(reply), events)


@pytest.fixture
def body() -> Callable[[Reply, Sequence[Event]], bytes]:
    """The bytes of a whole answer."""
    return lambda reply, events: play(whole(reply), events)


@pytest.fixture
def open_sse() -> Callable[..., Sink]:
    """Opens a stream."""
    return sse


@pytest.fixture(scope="module")
def script_module() -> tuple[Script, Callable[..., bytes], Callable[..., bytes]]:
    """The same without state between examples."""
    return (
        Script(),
        lambda reply, events: play(sse(reply), events),
        lambda reply, events: play(whole(reply), events),
    )
