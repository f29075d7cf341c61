"""LLM: a model in this process, for programs that want answers and no server."""

from __future__ import annotations

import queue
import uuid
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from .assembler import no_progress
from .assembly import assemble
from .config import load_stack
from .errors import InvalidRequest, RequestRefused
from .flow import ChatPrompt, Ended, Request, SamplingParams, TextPrompt, TokenPrompt
from .outputs import Gathered, Output
from .stack import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from types import TracebackType

    from .assembly import Assembly
    from .flow import Accepted, Event, EventBatch, Prompt
    from .hookspecs.source import Progress
    from .stack import Stack


class LLM:
    """A stack with its engine running in this process.

        with LLM() as llm:
            print(llm.generate("Paged attention is", SamplingParams(max_tokens=32)).text)

    :param model: overrides the stack's model
    :param stack: a shipped stack's name, the path of a stack file, or a ``Stack``
    :param overrides: further stack keys, dotted: ``{"engine.block_size": 32}``
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        stack: str | Stack = DEFAULT,
        overrides: dict[str, Any] | None = None,
        progress: Progress = no_progress,
    ) -> None:
        changes = dict(overrides or {})
        if model is not None:
            changes["engine.model"] = model
        loaded = load_stack(stack, changes) if isinstance(stack, str) else stack
        self.assembly: Assembly = assemble(loaded.without("transports", "sinks"), progress)
        self.client = self.assembly.client
        self._queues: dict[str, queue.SimpleQueue[Event]] = {}
        self.client.events(self._sort)
        self.assembly.engine.start()

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Any:
        """Complete texts or token ids; several are batched together.

        :param sampling: for all prompts, or one for each
        :return: an ``Output`` for one prompt, a list of them for a list of prompts
        :raises InvalidRequest: the prompt or a parameter is wrong; names it
        """
        one, many = _prompts(prompts)
        outputs = self._answer(many, sampling or SamplingParams())
        return outputs[0] if one else outputs

    def chat(
        self, messages: Sequence[dict[str, Any]], sampling: SamplingParams | None = None
    ) -> Output:
        """Answer a conversation through the model's chat template."""
        prompt = ChatPrompt(messages=tuple(messages))
        return self._answer([prompt], sampling or SamplingParams())[0]

    def stream(
        self, prompt: Prompt | str, sampling: SamplingParams | None = None
    ) -> Generator[Event, None, None]:
        """One request's events as they come; the last is ``Ended``. Closing cancels it."""
        asked = TextPrompt(text=prompt) if isinstance(prompt, str) else prompt
        request = _request(asked, sampling or SamplingParams())
        _, events = self._submit(request)
        ended = False
        try:
            while not ended:
                event = events.get()
                ended = isinstance(event, Ended)
                yield event
        finally:
            if not ended:
                self.client.cancel(request.id)
            self._queues.pop(request.id, None)

    def close(self) -> None:
        """Stop the engine; unfinished requests end with an error."""
        self.client.drain(0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(
        self, prompts: Sequence[Prompt], sampling: SamplingParams | Sequence[SamplingParams]
    ) -> list[Output]:
        each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else sampling
        if len(each) != len(prompts):
            msg = f"{len(prompts)} prompts, {len(each)} sampling parameters; give one or as many"
            raise InvalidRequest(msg, "sampling")
        requests = [_request(p, s) for p, s in zip(prompts, each, strict=True)]
        under_way: deque[tuple[Request, Accepted, queue.SimpleQueue[Event]]] = deque()
        outputs: list[Output] = []
        try:
            for request in requests:
                while (entered := self._enter(request, under_way)) is None:
                    outputs.append(self._collect(*under_way[0]))
                    under_way.popleft()
                under_way.append((request, *entered))
            while under_way:
                outputs.append(self._collect(*under_way[0]))
                under_way.popleft()
        finally:  # an error, or the user's own interrupt: nobody reads the rest any more
            for request, _, _ in under_way:
                self.client.cancel(request.id)
                self._queues.pop(request.id, None)
        return outputs

    def _enter(
        self, request: Request, under_way: deque[tuple[Request, Accepted, queue.SimpleQueue[Event]]]
    ) -> tuple[Accepted, queue.SimpleQueue[Event]] | None:
        """Submit; ``None``: the engine is full, and one of the caller's own must end first."""
        try:
            return self._submit(request)
        except RequestRefused as error:
            if error.refusal.kind != "server" or not under_way:
                raise
            return None

    def _submit(self, request: Request) -> tuple[Accepted, queue.SimpleQueue[Event]]:
        events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._queues[request.id] = events
        try:
            return self.client.submit(request), events
        except BaseException:
            self._queues.pop(request.id, None)
            raise

    def _collect(
        self, request: Request, accepted: Accepted, events: queue.SimpleQueue[Event]
    ) -> Output:
        gathered = Gathered(request.sampling.n)
        while not gathered.take(events.get()):
            pass
        self._queues.pop(request.id, None)
        return gathered.output(accepted)

    def _sort(self, batch: EventBatch) -> None:
        for event in batch.events:
            waiting = self._queues.get(event.request_id)
            if waiting is not None:
                waiting.put(event)


def _request(prompt: Prompt, sampling: SamplingParams) -> Request:
    return Request(id=f"llm-{uuid.uuid4().hex}", prompt=prompt, sampling=sampling)


def _prompts(given: Any) -> tuple[bool, list[Prompt]]:
    """Whether it was one prompt, and the prompts."""
    if isinstance(given, str):
        return True, [TextPrompt(text=given)]
    items = list(given)
    if items and all(isinstance(item, int) for item in items):
        return True, [TokenPrompt(token_ids=tuple(items))]
    return False, [
        TextPrompt(text=item) if isinstance(item, str) else TokenPrompt(token_ids=tuple(item))
        for item in items
    ]
