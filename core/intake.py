"""The way in: door, frontend, budget. Runs in the caller's thread, not the step's."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from .errors import InvalidRequest, RequestRefused
from .flow import Refusal
from .hookspecs.admission import Ask, Load
from .sampling_limits import check_core
from .sequence import Group, Sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from collections.abc import Sequence as Sequence_

    from .admission import AdmissionChain
    from .flow import EncodedPrompt, Request, SamplingParams
    from .hookspecs.detokenizer import Detokenizer
    from .hookspecs.frontend import Frontend
    from .hookspecs.model import Limits
    from .sampling import Chain
    from .timeline import Timeline

log = structlog.get_logger(__name__)


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
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[int, int]] = {}
        self._waiting_choices = 0
        self._waiting_tokens = 0
        self._held: set[str] = set()
        self._next_id = 0

    @property
    def num_waiting(self) -> int:
        """Choices accepted or being tokenized that have not started."""
        return self._waiting_choices

    @property
    def num_held(self) -> int:
        """Requests that were taken in and have not ended."""
        return len(self._held)

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens of those."""
        return self._waiting_tokens

    def accept(self, request: Request, client: int) -> Group:
        """Admit a request.

        :raises InvalidRequest: wrong in itself; names the field
        :raises RequestRefused: turned away by admission
        """
        arrival = self._clock() if request.arrival is None else request.arrival
        sampling = self._checked(request)
        with self._lock:
            if request.id in self._held:
                raise InvalidRequest(f"a request with id {request.id!r} is under way", "id")
            self._held.add(request.id)
        self.timeline.mark(request.id, "accepted", arrival)
        try:
            self._ask(self.door, request, sampling, arrival, None)
            encoded = self._encode(request)
            max_tokens = self._max_tokens(sampling, len(encoded.token_ids))
            sampling = msgspec.structs.replace(sampling, max_tokens=max_tokens)
            self._ask(self.budget, request, sampling, arrival, len(encoded.token_ids))
            return self._group(request, client, encoded, sampling, arrival)
        except BaseException:
            self.release(request.id)
            raise

    def started(self, request_id: str) -> None:
        """A request's first choice got its seat: it waits no longer."""
        with self._lock:
            self._count(request_id, 0, 0)

    def finished(self, request_id: str) -> None:
        """A request that was admitted has ended."""
        self._released()
        self.release(request_id)

    def release(self, request_id: str) -> None:
        """A request was turned away or ended: give back what admission reserved."""
        with self._lock:
            self._count(request_id, 0, 0)
            self._held.discard(request_id)
        self.door.release(request_id)
        self.budget.release(request_id)

    def _count(self, request_id: str, choices: int, tokens: int) -> None:
        """A request waits with so many choices of so many prompt tokens; 0: no longer.
        Kept as sums, since every request asks for them. Called under the lock."""
        before, size = self._waiting.pop(request_id, (0, 0))
        self._waiting_choices += choices - before
        self._waiting_tokens += choices * tokens - before * size
        if choices:
            self._waiting[request_id] = (choices, tokens)

    def _checked(self, request: Request) -> SamplingParams:
        """Sampling with the model's defaults merged in and a seed drawn."""
        sampling = request.sampling
        check_core(sampling, self.limits.vocab_size, self.max_logprobs)
        transforms = {**self.defaults, **sampling.transforms}
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
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=sampling.max_tokens,
        )
        # One lock over reading the load and reserving: two callers can't both see the
        # last free place.
        with self._lock:
            refusal = chain.ask(ask, self._load())
            if refusal is None:
                self._count(request.id, sampling.n, num_prompt_tokens or 0)
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
        with _blamed(name):
            return frontend.encode(request.prompt)

    def _identity(self, request: Request, encoded: EncodedPrompt) -> bytes:
        """Root of the request's hash chain: everything that changes what a cached block
        means, and a salt of the tenant's that callers can neither guess nor set."""
        salt = hmac.new(self._secret, request.tenant.encode(), "sha256").hexdigest()
        parts = [self.identity, request.adapter, encoded.tokenizer, encoded.template, salt]
        return hashlib.sha256(msgspec.json.encode(parts)).digest()

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
        ends = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            ends |= self.eos_token_ids
        kind = str(request.prompt.__struct_config__.tag)
        for index in range(sampling.n):
            with self._lock:
                self._next_id += 1
                sequence = Sequence(self._next_id, group, index, group.max_tokens)
            sequence.end_ids = ends
            self._open_text(sequence, kind)
            group.sequences.append(sequence)
        return group

    def _open_text(self, sequence: Sequence, kind: str) -> None:
        """Give a sequence its text stream and its parser."""
        sampling = sequence.sampling
        with _blamed("detokenizer"):
            sequence.stream = self.detokenizer.open(
                sequence.group.prompt_ids,
                stop=sampling.stop,
                include_stop=sampling.include_stop_str_in_output,
                skip_special_tokens=sampling.skip_special_tokens,
            )
        name, frontend = self.frontends[kind]
        with _blamed(name):
            sequence.parser = frontend.parser(sequence.group.request)


@contextmanager
def _blamed(plugin: str) -> Iterator[None]:
    """A plugin that raises on a request fails that request alone, by name.

    :raises RequestRefused: in place of whatever the plugin raised
    """
    try:
        yield
    except InvalidRequest:
        raise
    except Exception as error:
        log.exception("plugin failed on a request", plugin=plugin)
        raise RequestRefused(
            Refusal(
                plugin=plugin,
                reason="plugin_error",
                kind="server",
                message=f"the plugin {plugin!r} failed on this request",
            )
        ) from error
