"""The readiness probe: a fixed prompt whose answer is known, before requests are taken.

Token ids must be those of the record, log-probabilities within the stack's tolerance;
a bitwise checksum counts only under the same fingerprint (weights, stack, machine).
Without a record for this model revision an engine is ready but not validated.
"""

from __future__ import annotations

import platform
import struct
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from .config import shipped_stacks
from .errors import ModelError, StackError
from .flow import Delta, Ended, Frozen, Request, SamplingParams, TextPrompt
from .identity import digest

if TYPE_CHECKING:
    from .assembly import Assembly
    from .flow import Event

PROMPT = "The capital of France is"
NUM_TOKENS = 8


class Record(Frozen, frozen=True, kw_only=True):
    """A known answer."""

    revision: str
    """Of the model that gave it."""
    prompt: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the tokens above, raw, natural logarithms."""
    fingerprint: str = ""
    checksum: str = ""
    """Over the float32 bits of ``logprobs``; compared under an equal fingerprint only."""


def probe(assembly: Assembly) -> Record:
    """Ask the probe's prompt and hold the answer to the record, when there is one.

    Must run before the engine's thread does.

    :return: the answer, which can be stored as a record
    :raises ModelError: the answer is not the recorded one
    :raises StackError: no record, and the stack requires validation
    """
    options = assembly.stack.engine
    known = find_record(options.probe_record)
    fits = known is not None and known.revision == assembly.files.revision
    answer = ask(assembly, known.prompt if known and fits else PROMPT)
    if known and fits:
        _compare(known, answer, options.probe_tolerance)
        assembly.engine.validated = True
    elif options.require_validation:
        raise StackError(
            f"engine.require_validation is on and there is no probe record for revision "
            f"{assembly.files.revision!r}; record one with "
            f"`enginebay conform --record-probe FILE` and set engine.probe_record"
        )
    return answer


def ask(assembly: Assembly, prompt: str) -> Record:
    """The engine's greedy answer to a prompt, through the whole path but the transport."""
    engine = assembly.engine
    greedy = {"temperature": 0.0} if "temperature" in engine.intake.chain.fields else {}
    sampling = SamplingParams(
        max_tokens=NUM_TOKENS, ignore_eos=True, seed=0, logprobs=0, transforms=greedy
    )
    events: list[Event] = []
    engine.attach(0, lambda batch: events.extend(batch.events))
    request = Request(id="readiness-probe", prompt=TextPrompt(text=prompt), sampling=sampling)
    observers, engine.watch.observers = engine.watch.observers, []
    try:  # nobody's request: it must not stand in anybody's metrics
        engine.enter(engine.intake.accept(request, 0))
        while engine.busy:
            engine.step()
    finally:
        engine.watch.observers = observers
    for event in events:
        if isinstance(event, Ended) and event.error is not None:
            raise ModelError(f"readiness probe: {event.error.message}")
    deltas = [event for event in events if isinstance(event, Delta)]
    logprobs = tuple(s.token.logprob for delta in deltas for s in delta.logprobs or ())
    return Record(
        revision=assembly.files.revision,
        prompt=prompt,
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=logprobs,
        fingerprint=digest([assembly.version, platform.node(), platform.processor()]),
        checksum=digest([struct.pack(f"<{len(logprobs)}f", *logprobs).hex()]),
    )


def find_record(reference: str) -> Record | None:
    """A record by path, or by the name of a file beside a shipped stack.

    :raises StackError: named but not found, or not a record
    """
    if not reference:
        return None
    path = Path(reference)
    places = [files(module).joinpath(reference) for module in set(shipped_stacks().values())]
    for place in (path, *places):
        if place.is_file():
            try:
                return msgspec.json.decode(place.read_bytes(), type=Record)
            except msgspec.DecodeError as error:
                raise StackError(f"engine.probe_record {reference!r}: {error}") from error
    raise StackError(f"engine.probe_record {reference!r}: no such file")


def _compare(known: Record, answer: Record, tolerance: float) -> None:
    if answer.token_ids != known.token_ids:
        raise ModelError(
            f"readiness probe: to {known.prompt!r} the engine drew tokens "
            f"{list(answer.token_ids)}, the record has {list(known.token_ids)}; "
            "weights, tokenizer or kernels are not those that were recorded"
        )
    pairs = zip(answer.logprobs, known.logprobs, strict=True)
    worst = max(abs(mine - theirs) for mine, theirs in pairs)
    if not worst <= tolerance:
        raise ModelError(
            f"readiness probe: log-probabilities differ by {worst:.2e} from the record, "
            f"engine.probe_tolerance is {tolerance:.2e}"
        )
    same = known.fingerprint and known.fingerprint == answer.fingerprint
    if same and known.checksum != answer.checksum:
        raise ModelError(
            "readiness probe: the same stack on the same machine gave other bits than the "
            "record; memory or a library is damaged"
        )
