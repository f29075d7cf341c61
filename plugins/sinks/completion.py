"""``/v1/completions``: events as chunks, or as one body."""

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from enginebay.flow import ChoiceFinished, Delta

from .alignment import Shown
from .answer import Answer, Choice, usage_body
from .logprobs import Token, prompt_logprobs, text_logprobs
from .record import Record
from .wire import Envelope, TextChoice, TextLogprobs, UsageBody


class CompletionShape:
    """Words one completion. Reasoning is part of its text: it has no other place."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._reply = answer.reply

    def opened(self, choice: Choice) -> Envelope | None:
        """The first chunk of a choice repeats its prompt, if that was asked for."""
        echo, shown = self._answer.echo(choice.part)
        if not echo and not self._reply.return_token_ids:
            return None
        ids = choice.part.prompt_token_ids if self._reply.return_token_ids else UNSET
        logprobs = self._listed(shown) if choice.aligner is not None and shown else None
        return self._chunk(
            TextChoice(index=choice.index, text=echo, logprobs=logprobs, prompt_token_ids=ids)
        )

    def delta(self, choice: Choice, event: Delta) -> Envelope | None:
        """A chunk, if the delta adds something to see."""
        logprobs = self._logprobs(choice)
        text = event.reasoning + event.content
        token_ids = event.token_ids if self._reply.return_token_ids else UNSET
        if not text and logprobs is None and not token_ids:
            return None
        chunk = TextChoice(
            index=choice.index, text=text, logprobs=logprobs, token_ids=token_ids or UNSET
        )
        return self._chunk(chunk)

    def finished(self, choice: Choice, event: ChoiceFinished) -> Envelope:
        """The one chunk with the choice's finish reason."""
        return self._chunk(
            TextChoice(
                index=choice.index,
                text="",
                logprobs=self._logprobs(choice, final=True),
                finish_reason=choice.finish_reason,
                stop_reason=UNSET if event.stop is None else event.stop,
            )
        )

    def usage(self) -> Envelope:
        """The chunk after all finish reasons."""
        return self._envelope([], usage_body(self._answer.usage))

    def body(self, records: Sequence[Record]) -> Envelope:
        """The whole answer."""
        choices = [
            self._whole(choice, record)
            for choice, record in zip(self._answer.choices, records, strict=True)
        ]
        return self._envelope(choices, usage_body(self._answer.usage))

    def _whole(self, choice: Choice, record: Record) -> TextChoice:
        reply, part = self._reply, choice.part
        echo, shown = self._answer.echo(part)
        logprobs = None
        if choice.aligner is not None:
            logprobs = self._listed([*shown, *choice.aligner.take(final=True)])
        stop = choice.finish.stop if choice.finish else None
        scored = self._answer.scores.get(part.request_id) if reply.prompt_logprobs else None
        return TextChoice(
            index=choice.index,
            text=echo + record.text,
            logprobs=logprobs,
            finish_reason=choice.finish_reason,
            stop_reason=UNSET if stop is None else stop,
            token_ids=record.token_ids if reply.return_token_ids else UNSET,
            prompt_token_ids=part.prompt_token_ids if reply.return_token_ids else UNSET,
            prompt_logprobs=UNSET if scored is None else prompt_logprobs(scored),
        )

    def _logprobs(self, choice: Choice, *, final: bool = False) -> TextLogprobs | None:
        if choice.aligner is None:
            return None
        shown = choice.aligner.take(final=final)
        return self._listed(shown) if shown else None

    def _listed(self, shown: list[Shown[Token]]) -> TextLogprobs:
        return text_logprobs(shown, self._reply.top_logprobs)

    def _chunk(self, choice: TextChoice) -> Envelope:
        return self._envelope([choice], None if self._reply.include_usage else UNSET)

    def _envelope(self, choices: list[TextChoice], usage: UsageBody | UnsetType | None) -> Envelope:
        reply = self._reply
        return Envelope(
            id=reply.request_id,
            object="text_completion",
            created=reply.created,
            model=reply.model,
            choices=choices,
            usage=usage,
        )
