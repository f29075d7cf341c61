"""``/v1/chat/completions``: events as chunks, or as one body."""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from enginebay.flow import ChoiceFinished, Delta, ToolCallDelta

from .answer import Answer, Choice, usage_body
from .logprobs import chat_logprobs
from .logprobs import prompt_logprobs as listed_prompt
from .record import Record
from .wire import ChatChoice, ChatLogprobs, Envelope, FunctionBody, Message, ToolCallBody, UsageBody


class ChatShape:
    """Words one chat answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._reply = answer.reply

    def opened(self, choice: Choice) -> Envelope | None:
        """The first chunk of a choice: its role, once."""
        with_ids = self._reply.return_token_ids and choice.index == 0
        return self._chunk(
            ChatChoice(index=choice.index, delta=Message(role="assistant", content="")),
            prompt_token_ids=choice.part.prompt_token_ids if with_ids else UNSET,
        )

    def delta(self, choice: Choice, event: Delta) -> Envelope | None:
        """A chunk, if the delta adds something to see."""
        logprobs = self._logprobs(choice)
        reply = self._reply
        token_ids = event.token_ids if reply.return_token_ids and event.token_ids else UNSET
        seen = event.content or event.reasoning or event.tool_calls
        if not seen and logprobs is None and token_ids is UNSET:
            return None
        message = Message(
            content=event.content if event.content or not seen else UNSET,
            reasoning_content=event.reasoning or UNSET,
            tool_calls=[_piece(call) for call in event.tool_calls] or UNSET,
        )
        return self._chunk(
            ChatChoice(index=choice.index, delta=message, logprobs=logprobs, token_ids=token_ids)
        )

    def finished(self, choice: Choice, event: ChoiceFinished) -> Envelope:
        """The one chunk with the choice's finish reason."""
        return self._chunk(
            ChatChoice(
                index=choice.index,
                delta=Message(),
                logprobs=self._logprobs(choice, final=True),
                finish_reason=choice.finish_reason,
                stop_reason=UNSET if event.stop is None else event.stop,
            )
        )

    def usage(self) -> Envelope:
        """The chunk after all finish reasons."""
        return self._envelope("chat.completion.chunk", [], usage_body(self._answer.usage))

    def body(self, records: Sequence[Record]) -> Envelope:
        """The whole answer."""
        answer, reply = self._answer, self._reply
        part = answer.choices[0].part
        scored = answer.scores.get(part.request_id) if reply.prompt_logprobs else None
        return self._envelope(
            "chat.completion",
            [self._whole(*pair) for pair in zip(answer.choices, records, strict=True)],
            usage_body(answer.usage),
            prompt_token_ids=part.prompt_token_ids if reply.return_token_ids else UNSET,
            prompt_logprobs=UNSET if scored is None else listed_prompt(scored),
        )

    def _whole(self, choice: Choice, record: Record) -> ChatChoice:
        calls = record.tool_calls()
        content = "".join(record.content)
        message = Message(
            role="assistant",
            content=content if content or not calls else None,
            reasoning_content="".join(record.reasoning) or UNSET,
            tool_calls=calls or UNSET,
        )
        stop = choice.finish.stop if choice.finish else None
        logprobs = None
        if choice.aligner is not None:
            logprobs = chat_logprobs(choice.aligner.take(final=True), self._reply.top_logprobs)
        return ChatChoice(
            index=choice.index,
            message=message,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=UNSET if stop is None else stop,
            token_ids=record.token_ids if self._reply.return_token_ids else UNSET,
        )

    def _logprobs(self, choice: Choice, *, final: bool = False) -> ChatLogprobs | None:
        if choice.aligner is None:
            return None
        shown = choice.aligner.take(final=final)
        return chat_logprobs(shown, self._reply.top_logprobs) if shown else None

    def _chunk(
        self, choice: ChatChoice, prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    ) -> Envelope:
        usage = None if self._reply.include_usage else UNSET
        return self._envelope("chat.completion.chunk", [choice], usage, prompt_token_ids)

    def _envelope(
        self,
        kind: str,
        choices: list[ChatChoice],
        usage: UsageBody | UnsetType | None,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
        prompt_logprobs: list[dict[str, Any] | None] | UnsetType = UNSET,
    ) -> Envelope:
        reply = self._reply
        return Envelope(
            id=reply.request_id,
            object=kind,
            created=reply.created,
            model=reply.model,
            choices=choices,
            usage=usage,
            prompt_token_ids=prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
        )


def _piece(call: ToolCallDelta) -> ToolCallBody:
    return ToolCallBody(
        index=call.index,
        id=UNSET if call.id is None else call.id,
        type=UNSET if call.id is None else "function",
        function=FunctionBody(
            name=UNSET if call.name is None else call.name, arguments=call.arguments
        ),
    )
