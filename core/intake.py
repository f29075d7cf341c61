"""The way in: door, frontend, budget. Runs in the caller's thread, not the step's."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import secrets
from typing import TYPE_CHECKING, Any

import msgspec

from .blame import blamed
from .envelope import check_envelope
from .errors import InvalidRequest, RequestRefused
from .hookspecs.admission import Ask, Load
from .prompt_size import prompt_chars
from .sampling_limits import check_core
from .sequence import Group, Sequence, end_ids
from .waiting import Waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Sequence_

    from .admission import AdmissionChain
    from .flow import EncodedPrompt, Refusal, Request, SamplingParams
    from .hookspecs.detokenizer import Detokenizer
    from .hookspecs.frontend import Frontend
    from .hookspecs.model import Limits
    from .sampling import Chain
    from .timeline import Timeline


class Intake:
    """Turns a request into a ``Group`` of sequences, or says why not."""

    def __init__(
        self,
        *,
        door: AdmissionChain,
        budget: AdmissionChain,
        frontends: Sequence_[tuple[str, Frontend]],
        detokenizer: Detokenizer,
        chain: Chain,
        limits: Limits,
        identity: str,
        eos_token_ids: tuple[int, ...],
        defaults: Mapping[str, Any],
        max_logprobs: int,
        timeline: Timeline,
        clock: Callable[[], float],
        load: Callable[[], Load],
        refused: Callable[[Refusal], None],
        released: Callable[[], None],
    ) -> None:
        self.door = door
        self.budget = budget
        self.frontends = {kind: (name, f) for name, f in reversed(frontends) for kind in f.kinds}
        self.detokenizer = detokenizer
        self.chain = chain
        self.limits = limits
        self.identity = identity
        self.eos_token_ids = frozenset(eos_token_ids)
        self.defaults = defaults
        self.max_logprobs = max_logprobs
        self.timeline = timeline
        self._clock = clock
        self._load = load
        self._refused = refused
        self._released = released
        self._secret = secrets.token_bytes(32)
        self._waiting = Waiting()
        self._ids = itertools.count(1)

    @property
    def num_waiting(self) -> int:
        """Choices accepted or being tokenized that have not started."""
        return self._waiting.num_choices

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of those, once for each choice."""
        return self._waiting.num_tokens

    def oldest_wait(self, now: float) -> float:
        """Seconds that the request which has waited longest has waited."""
        since = self._waiting.oldest()
        return 0.0 if since is None else max(now - since, 0.0)

    @property
    def num_held(self) -> int:
        """Requests that were taken in and have not ended."""
        return self._waiting.num_held

    def accept(self, request: Request, client: int) -> Group:
        """Admit a request.

        :raises InvalidRequest: wrong in itself; names the field
        :raises RequestRefused: turned away by admission
        """
        sampling = self._checked(request)
        arrival = self._clock() if request.arrival is None else request.arrival
        self._waiting.hold(request.id)
        self.timeline.mark(request.id, "accepted", arrival, tenant=request.tenant)
        try:
            self._ask(self.door, request, sampling, arrival, None)
            encoded = self._encode(request)
            max_tokens = self._max_tokens(sampling, len(encoded.token_ids))
            sampling = msgspec.structs.replace(sampling, max_tokens=max_tokens)
            self._ask(self.budget, request, sampling, arrival, len(encoded.token_ids))
            self._check_length(len(encoded.token_ids))
            return self._group(request, client, encoded, sampling, arrival)
        except BaseException:
            self.release(request.id)
            raise

    def started(self, request_id: str, index: int) -> None:
        """A choice got its seat, or left: it waits no longer."""
        self._waiting.started(request_id, index)

    def finished(self, group: Group) -> None:
        """A request that was admitted has ended; ``released`` is told if it had run."""
        if any(sequence.started_at is not None for sequence in group.sequences):
            self._released()
        usage = group.usage()
        self.door.settle(group.request.id, usage)
        self.budget.settle(group.request.id, usage)
        self.release(group.request.id)

    def release(self, request_id: str) -> None:
        """A request was turned away or ended: give back what admission reserved."""
        self._waiting.drop(request_id)
        self.door.release(request_id)
        self.budget.release(request_id)

    def _checked(self, request: Request) -> SamplingParams:
        """Sampling with the model's defaults merged in and a seed drawn."""
        sampling = request.sampling
        check_envelope(request)
        check_core(sampling, self.limits.vocab_size, self.max_logprobs)
        given = {name: v for name, v in sampling.transforms.items() if v is not None}
        transforms = {**self.defaults, **given}
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        sampling = msgspec.structs.replace(sampling, transforms=transforms, seed=seed)
        self.chain.parse(sampling)
        return sampling

    def _ask(
        self,
        chain: AdmissionChain,
        request: Request,
        sampling: SamplingParams,
        arrival: float,
        num_prompt_tokens: int | None,
    ) -> None:
        ask = Ask(
            request_id=request.id,
            tenant=request.tenant,
            n=sampling.n,
            arrival=arrival,
            deadline=request.deadline,
            priority=request.priority,
            attempt=request.attempt,
            prompt_chars=prompt_chars(request.prompt),
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=sampling.max_tokens,
        )
        tokens = num_prompt_tokens or 0
        with self._waiting.asking(request.id, sampling.n, tokens, arrival) as admitted:
            refusal = chain.ask(ask, self._load())
            if refusal is None:
                admitted.append(True)
        if refusal is not None:
            self.timeline.mark(
                request.id, "refused", self._clock(), plugin=refusal.plugin, reason=refusal.reason
            )
            self._refused(refusal)
            raise RequestRefused(refusal)

    def _encode(self, request: Request) -> EncodedPrompt:
        kind = request.prompt.__struct_config__.tag
        if kind not in self.frontends:
            known = ", ".join(sorted(self.frontends))
            raise InvalidRequest(
                f"this stack takes no {kind} prompts; its frontends take {known}", "prompt"
            )
        name, frontend = self.frontends[str(kind)]
        with blamed(name):
            return frontend.encode(request.prompt)

    def _identity(self, request: Request, encoded: EncodedPrompt) -> bytes:
        """Root of the request's hash chain: everything that changes what a cached block
        means, and a salt of the tenant's that callers can neither guess nor set."""
        salt = hmac.new(self._secret, request.tenant.encode(), "sha256").hexdigest()
        parts = [self.identity, request.adapter, encoded.tokenizer, encoded.template, salt]
        return hashlib.sha256(msgspec.json.encode(parts)).digest()

    def _check_length(self, num_prompt: int) -> None:
        """Whatever admission a stack has, no position past the context is computed."""
        if num_prompt > self.limits.max_model_len:
            raise InvalidRequest(
                f"the prompt has {num_prompt} tokens, the context {self.limits.max_model_len}",
                "prompt",
                "context_length_exceeded",
            )

    def _max_tokens(self, sampling: SamplingParams, num_prompt: int) -> int:
        room = max(self.limits.max_model_len - num_prompt, 0)
        return room if sampling.max_tokens is None else min(sampling.max_tokens, room)

    def _group(
        self,
        request: Request,
        client: int,
        encoded: EncodedPrompt,
        sampling: SamplingParams,
        arrival: float,
    ) -> Group:
        group = Group(
            request,
            client,
            encoded.token_ids,
            sampling,
            identity=self._identity(request, encoded),
            arrival=arrival,
            max_tokens=sampling.max_tokens or 0,
        )
        ends = end_ids(sampling, self.eos_token_ids)
        kind = str(request.prompt.__struct_config__.tag)
        for index in range(sampling.n):
            sequence = Sequence(next(self._ids), group, index, group.max_tokens)
            sequence.end_ids = ends
            self._open_text(sequence, kind)
            group.sequences.append(sequence)
        return group

    def _open_text(self, sequence: Sequence, kind: str) -> None:
        """Give a sequence its text stream and its parser."""
        sampling = sequence.sampling
        with blamed("detokenizer"):
            sequence.stream = self.detokenizer.open(
                sequence.group.prompt_ids,
                stop=sampling.stop,
                include_stop=sampling.include_stop_str_in_output,
                skip_special_tokens=sampling.skip_special_tokens,
            )
        name, frontend = self.frontends[kind]
        with blamed(name):
            sequence.parser = frontend.parser(sequence.group.request)
