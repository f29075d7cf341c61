"""Commit: a step's result becomes tokens, text, events and ends.

The order of finish reasons, checked for each token as it is committed:

1. ``error``: the row's own failure, or a detokenizer or parser that raised
2. ``cancelled``, ``slow_reader``, ``capacity``: it was cut from outside
3. ``stop``: an end-of-sequence or stop token, once ``min_tokens`` are there
4. ``stop``: a stop string, once ``min_tokens`` are there
5. ``length``: ``max_tokens``, or the context limit (already in ``max_tokens``)

Tokens that a step drew past the one that ended a sequence are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from .flow import Alternative, ChoiceFinished, Delta, Ended, Failure, PromptScored, TokenLogprob
from .hookspecs.frontend import Parsed
from .sequence import State

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequence_

    from .flow import Event, FinishReason, SequenceResult
    from .hookspecs.detokenizer import Detokenizer
    from .sequence import Group, Sequence

_NOTHING: Final = Parsed()


class PluginFault(Exception):
    """A plugin that serves one request raised: that request alone ends."""

    def __init__(self, plugin: str, cause: BaseException) -> None:
        super().__init__(f"{plugin}: {cause}")
        self.plugin = plugin


class Commit:
    """Applies results to sequences and words them as events."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def advance(self, sequence: Sequence, result: SequenceResult | None, now: float) -> list[Event]:
        """Commit one sequence's share of a step; ends it when a reason applies."""
        if result is None or sequence.cut is not None:
            return []
        if result.error is not None:
            sequence.group.error = (result.error, result.plugin)
            return self.end(sequence, "error")
        events = self._prompt_scores(sequence, result)
        if not result.token_ids:
            return events
        if sequence.max_tokens == 0:  # the prompt alone was to be scored
            return events + self.end(sequence, "length")
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        sequence.last_token_at = now
        try:
            return events + self._tokens(sequence, result)
        except PluginFault as fault:
            sequence.group.error = ("a plugin failed on this request", fault.plugin)
            return events + self.end(sequence, "error")

    def end(
        self, sequence: Sequence, reason: FinishReason, stop: str | int | None = None
    ) -> list[Event]:
        """End a sequence, releasing what text was held back. Once; later calls do nothing."""
        if sequence.state is State.ENDED:
            return []
        sequence.state = State.ENDED
        sequence.reason = reason
        events: list[Event] = []
        if reason not in ("error", "cancelled", "slow_reader"):
            try:
                events = self._rest(sequence, flush=not isinstance(stop, str))
            except PluginFault as fault:
                sequence.group.error = ("a plugin failed on this request", fault.plugin)
                sequence.reason = reason = "error"
        message = sequence.cut[1] if sequence.cut else ""
        events.append(
            ChoiceFinished(
                request_id=sequence.request_id,
                index=sequence.index,
                reason=reason,
                stop=stop,
                message=message,
            )
        )
        return events

    def ended(self, group: Group) -> Ended:
        """The one terminal event of a request whose choices have all ended."""
        error = None
        if group.error is not None:
            message, plugin = group.error
            error = Failure(message=message, plugin=plugin)
        return Ended(request_id=group.request.id, usage=group.usage(), error=error)

    def _tokens(self, sequence: Sequence, result: SequenceResult) -> list[Event]:
        drawn = result.token_ids
        text, reason, stop = self._take(sequence, drawn[0])
        count = 1
        while reason is None and count < len(drawn):
            more, reason, stop = self._take(sequence, drawn[count])
            text, count = text + more, count + 1
        logprobs = result.logprobs and self._named(result.logprobs[:count])
        taken = drawn if count == len(drawn) else drawn[:count]
        events: list[Event] = [self._delta(sequence, text, taken, logprobs)]
        if reason is not None:
            events += self.end(sequence, reason, stop)
        return events

    def _take(
        self, sequence: Sequence, token: int
    ) -> tuple[str, FinishReason | None, str | int | None]:
        """Append one token. :return: its text, and why and by what it ends the sequence"""
        sampling = sequence.sampling
        sequence.token_ids.append(token)
        num_generated = len(sequence.token_ids) - sequence.num_prompt
        may_stop = num_generated >= sampling.min_tokens
        if may_stop and token in sequence.end_ids:
            text, given = "", token in sampling.stop_token_ids
            if sampling.include_stop_str_in_output and given:
                text = self._feed(sequence, token, may_stop=False)[0]
            return text, "stop", token if given else None
        text, hit = self._feed(sequence, token, may_stop=may_stop)
        if hit is not None:
            return text, "stop", hit
        return text, "length" if num_generated >= sequence.max_tokens else None, None

    def _feed(self, sequence: Sequence, token: int, *, may_stop: bool) -> tuple[str, str | None]:
        stream = sequence.stream
        if stream is None:
            return "", None
        try:
            piece = stream.feed(token, may_stop=may_stop)
        except Exception as error:
            raise PluginFault("detokenizer", error) from error
        return piece.text, piece.stop

    def _rest(self, sequence: Sequence, *, flush: bool) -> list[Event]:
        """Held text and whatever the parser still keeps, as a last delta."""
        try:
            text = sequence.stream.flush() if flush and sequence.stream else ""
        except Exception as error:
            raise PluginFault("detokenizer", error) from error
        if sequence.parser is None:
            return []
        try:
            fed = sequence.parser.feed(text) if text else Parsed()
            rest = sequence.parser.flush()
        except Exception as error:
            raise PluginFault("parser", error) from error
        content, reasoning = fed.content + rest.content, fed.reasoning + rest.reasoning
        calls = fed.tool_calls + rest.tool_calls
        if not (content or reasoning or calls):
            return []
        return [
            Delta(
                request_id=sequence.request_id,
                index=sequence.index,
                content=content,
                reasoning=reasoning,
                tool_calls=calls,
                num_generated=sequence.num_generated,
            )
        ]

    def _delta(
        self,
        sequence: Sequence,
        text: str,
        token_ids: tuple[int, ...],
        logprobs: tuple[TokenLogprob, ...] | None,
    ) -> Delta:
        if sequence.parser is None or not text:
            parsed = Parsed(content=text) if text else _NOTHING
        else:
            try:
                parsed = sequence.parser.feed(text)
            except Exception as error:
                raise PluginFault("parser", error) from error
        return Delta(
            request_id=sequence.request_id,
            index=sequence.index,
            token_ids=token_ids,
            content=parsed.content,
            reasoning=parsed.reasoning,
            tool_calls=parsed.tool_calls,
            logprobs=logprobs,
            num_generated=sequence.num_generated,
        )

    def _prompt_scores(self, sequence: Sequence, result: SequenceResult) -> list[Event]:
        """Prompt log-probabilities are reported whole, by the first choice alone."""
        group = sequence.group
        if group.sampling.prompt_logprobs is None or sequence.index or group.prompt_scored:
            return []
        group.prompt_logprobs.extend(self._named(result.prompt_logprobs))
        if len(group.prompt_logprobs) < len(group.prompt_ids) - 1:
            return []
        group.prompt_scored = True
        return [
            PromptScored(
                request_id=group.request.id,
                logprobs=(None, *group.prompt_logprobs),
                token_ids=group.prompt_ids,
                first=self._detokenizer.token_bytes(group.prompt_ids[0]),
            )
        ]

    def _named(self, logprobs: Sequence_[TokenLogprob]) -> tuple[TokenLogprob, ...]:
        """Give ids from the executor their text and bytes."""
        return tuple(
            TokenLogprob(
                token=self._alternative(entry.token),
                top=tuple(self._alternative(other) for other in entry.top),
            )
            for entry in logprobs
        )

    def _alternative(self, entry: Alternative) -> Alternative:
        data = self._detokenizer.token_bytes(entry.token_id)
        text = data.decode("utf-8", "replace")
        return msgspec.structs.replace(entry, data=data, text=text)
