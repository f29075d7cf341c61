"""What every client of an engine must do. Each check takes ``make(setting)``: a stage.

Here: what is said of requests and how. ``client_endings`` has how they are ended.
"""

import threading
import time
from typing import Final

import msgspec

from enginebay.errors import InvalidRequest, RequestRefused
from enginebay.flow import Delta, SamplingParams, TokenPrompt

from .check import CheckList, require
from .client_caller import Caller, plain_request
from .client_endings import ENDING_CHECKS
from .client_stage import MakeStage, Setting

TELLING_CHECKS: Final = CheckList()


@TELLING_CHECKS.add("client/one-end")
def one_end_each(make: MakeStage) -> None:
    """Exactly one Ended follows an Accepted, it is the last event, and counts are right."""
    caller = Caller(make(Setting()))
    names = [f"r{number}" for number in range(12)]
    for number, name in enumerate(names):
        caller.submit(name, 1 + number * 3, 1 + number, n=1 + number % 3)
    for number, answer in enumerate(caller.ended(*names)):
        told = f"{answer.request.id}: {answer.reasons} after {answer.num_tokens} tokens"
        right = answer.reasons == ("length",) * (1 + number % 3)
        require(right, "client/one-end", told)
        whole = answer.num_tokens == (1 + number) * (1 + number % 3)
        require(whole, "client/one-end", told)
    caller.quiet("client/one-end")
    time.sleep(0.05)
    caller.close()


@TELLING_CHECKS.add("client/order")
def events_come_in_order(make: MakeStage) -> None:
    """Tokens, texts, ends and usage of several choices arrive in the order of events."""
    caller = Caller(make(Setting()))
    caller.submit("many", 9, 8, n=3)
    caller.submit("one", 4, 8)
    for answer in caller.ended("many", "one"):
        for index, tokens in answer.tokens.items():
            told = f"{answer.request.id}, choice {index}: {len(tokens)} tokens"
            require(len(tokens) == 8, "client/order", told)
    caller.close()


@TELLING_CHECKS.add("client/one-batch")
def one_batch_a_step(make: MakeStage) -> None:
    """The listener wakes once a step: everything that a step drew comes together."""
    caller = Caller(make(Setting()))
    names = [f"r{number}" for number in range(4)]
    for name in names:
        caller.submit(name, 5, 24)
    caller.ended(*names)
    steps = [batch.step for batch in caller.answers.batches if _draws(batch.events)]
    told = f"several batches with tokens of one step: {steps}"
    require(len(set(steps)) == len(steps), "client/one-batch", told)
    widest = max(len(_draws(batch.events)) for batch in caller.answers.batches)
    told = f"4 requests ran together; no batch held tokens of more than {widest}"
    require(widest == 4, "client/one-batch", told)
    caller.close()


@TELLING_CHECKS.add("client/one-thread")
def one_thread_tells(make: MakeStage) -> None:
    """The listener is called from one thread, and not from a caller's."""
    caller = Caller(make(Setting()))
    for number in range(3):
        caller.submit(f"r{number}")
        caller.ended(f"r{number}")
    caller.client.cancel("r0")
    threads = caller.answers.threads
    told = f"called from {len(threads)} threads"
    alone = len(threads) == 1 and threading.current_thread() not in threads
    require(alone, "client/one-thread", told)
    caller.close()


@TELLING_CHECKS.add("client/accepted")
def acceptance_tells_what_will_be(make: MakeStage) -> None:
    """Accepted holds the prompt as taken, the seed in force and the cut max_tokens."""
    stage = make(Setting())
    caller = Caller(stage)
    given = caller.submit("seeded", 6, 5, seed=41)
    clause = "client/accepted"
    prompt = plain_request("seeded", 6, 5).prompt
    require(given.request_id == "seeded", clause, f"request_id is {given.request_id!r}")
    require(given.seed == 41, clause, f"seed is {given.seed}, 41 was given")
    require(given.max_tokens == 5, clause, f"max_tokens is {given.max_tokens}, 5 was given")
    same = TokenPrompt(token_ids=given.prompt_token_ids) == prompt
    require(same and given.num_prompt_tokens == 6, clause, f"the prompt is {given}")
    seeds = {caller.submit(f"free{number}", 6, 2, seed=None).seed for number in range(4)}
    require(len(seeds) == 4, clause, f"unseeded requests got the seeds {seeds}")
    long = caller.submit("long", 6, 10**6)
    room = stage.max_model_len - 6
    require(long.max_tokens == room, clause, f"max_tokens is {long.max_tokens}, not {room}")
    (answer,) = caller.ended("long")
    require(answer.num_tokens == room, clause, f"{answer.num_tokens} tokens, not {room}")
    caller.close()


@TELLING_CHECKS.add("client/duplicate")
def an_id_is_one_request(make: MakeStage) -> None:
    """An id that is under way is refused by name; afterwards it is free again."""
    caller = Caller(make(Setting()))
    caller.submit("same", 6, 40)
    try:
        caller.client.submit(plain_request("same", 3, 3))
    except InvalidRequest as error:
        require(error.detail.param == "id", "client/duplicate", f"param: {error.detail.param!r}")
    else:
        require(False, "client/duplicate", "a second request of the same id was accepted")
    (answer,) = caller.ended("same")
    require(answer.num_tokens == 40, "client/duplicate", "the first one was disturbed")
    caller.submit("same", 6, 3)
    caller.ended("same")
    caller.close()


@TELLING_CHECKS.add("client/invalid")
def wrong_requests_are_named(make: MakeStage) -> None:
    """A wrong field raises InvalidRequest naming it; nothing is left behind."""
    stage = make(Setting())
    caller = Caller(stage)
    base = plain_request("wrong", 4, 4)
    outside = TokenPrompt(token_ids=(1, stage.vocab_size))
    changed = msgspec.structs.replace
    for wrong, param in (
        (changed(base, sampling=SamplingParams(max_tokens=-1)), "max_tokens"),
        (changed(base, sampling=SamplingParams(n=0)), "n"),
        (changed(base, sampling=SamplingParams(seed=2**63)), "seed"),
        (changed(base, sampling=SamplingParams(no_such_field=1)), "no_such_field"),
        (changed(base, sampling=SamplingParams(seed=10**30)), None),
        (changed(base, prompt=outside), "prompt"),
        (changed(base, prompt=TokenPrompt(token_ids=())), "prompt"),
    ):
        try:
            caller.client.submit(wrong)
        except InvalidRequest as error:
            told = f"param is {error.detail.param!r}, not {param!r}: {error}"
            named = error.detail.param == param or param is None
            require(named and str(error), "client/invalid", told)
        else:
            require(False, "client/invalid", f"a wrong {param} was accepted")
    caller.quiet("client/invalid")
    caller.close()


@TELLING_CHECKS.add("client/refused")
def refusals_tell_who_and_why(make: MakeStage) -> None:
    """What admission turns away raises RequestRefused with plugin, limit and current."""
    stage = make(Setting())
    caller = Caller(stage)
    try:
        caller.client.submit(plain_request("long", stage.max_model_len + 1, 4))
    except RequestRefused as error:
        refusal = error.refusal
        told = f"a refusal that tells too little: {refusal}"
        whole = refusal.plugin and refusal.message and refusal.limit and refusal.current
        require(whole, "client/refused", told)
    else:
        require(False, "client/refused", "a prompt longer than the context was accepted")
    caller.quiet("client/refused")
    caller.close()


@TELLING_CHECKS.add("client/two-clients")
def clients_are_apart(make: MakeStage) -> None:
    """Two clients of one engine each get the events of their own requests, all of them."""
    stage = make(Setting())
    first, second = Caller(stage), Caller(stage, stage.another())
    for number in range(4):
        (first, second)[number % 2].submit(f"r{number}", 5, 6)
    first.ended("r0", "r2")
    second.ended("r1", "r3")
    first.close()
    second.answers.check()


def _draws(events: tuple[object, ...]) -> list[Delta]:
    return [event for event in events if isinstance(event, Delta) and event.token_ids]


CLIENT_CHECKS: Final = CheckList([*TELLING_CHECKS, *ENDING_CHECKS])
