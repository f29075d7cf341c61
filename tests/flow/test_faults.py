"""Plugins that raise while they run: who is harmed, and who is not (case 73)."""

import pytest

from enginebay import SamplingParams
from enginebay.conformance.invariance import GREEDY
from enginebay.errors import EngineStopped, RequestRefused
from enginebay.flow import Ended, TextPrompt
from enginebay.outputs import RequestFailed

BIASED = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.0, logit_bias={"5": 1.0})


class Boom(Exception):
    """What a broken plugin raises."""


def boom(*arguments, **named):
    raise Boom("secret detail")


def text_of(llm):
    return llm.generate("Hello there", GREEDY).text


def member(llm, name):
    return dict(llm.assembly.engine.intake.chain.members)[name]


def test_a_sampler_that_raises_ends_its_request_alone(start, monkeypatch):
    """The row leaves with an error that names the plugin; its neighbour is not disturbed."""
    llm = start()
    before = text_of(llm)
    monkeypatch.setattr(member(llm, "logit-bias"), "edit", boom)
    neighbour = llm.stream(TextPrompt(text="Hello there"), GREEDY)
    first = next(neighbour)
    with pytest.raises(RequestFailed, match="logit-bias") as raised:
        llm.generate("Hello", BIASED)
    assert "secret" not in str(raised.value)
    rest = [first, *neighbour]
    assert "".join(event.content for event in rest if hasattr(event, "content")) == before
    assert text_of(llm) == before
    monkeypatch.undo()
    assert llm.generate("Hello", BIASED).outputs[0].finish_reason == "length"


@pytest.mark.parametrize("part", ["detokenizer", "parser"])
def test_a_text_plugin_that_raises_ends_its_request_alone(start, monkeypatch, part):
    """The request gets its one terminal event, with an error, and frees its blocks."""
    llm = start()
    before = text_of(llm)
    events = llm.stream(TextPrompt(text="Hello"), GREEDY)
    next(events)
    (sequence,) = llm.assembly.engine.roster.sequences.values()
    target = sequence.stream if part == "detokenizer" else sequence.parser
    monkeypatch.setattr(type(target), "feed", boom)
    rest = list(events)
    assert isinstance(rest[-1], Ended)
    assert rest[-1].error.plugin == part
    assert sum(isinstance(event, Ended) for event in rest) == 1
    monkeypatch.undo()
    assert text_of(llm) == before


@pytest.mark.parametrize("part", ["frontend", "detokenizer", "admission"])
def test_a_plugin_that_raises_on_the_way_in_refuses_that_request(start, monkeypatch, part):
    """503 with the plugin's name; what was reserved is given back; the next one passes."""
    llm = start()
    before = text_of(llm)
    intake = llm.assembly.engine.intake
    if part == "frontend":
        monkeypatch.setattr(type(intake.frontends["text"][1]), "encode", boom)
    elif part == "detokenizer":
        monkeypatch.setattr(type(intake.detokenizer), "open", boom)
    else:
        monkeypatch.setattr(type(intake.budget._members[-1][1]), "ask", boom)
    with pytest.raises(RequestRefused) as raised:
        text_of(llm)
    refusal = raised.value.refusal
    assert (refusal.kind, refusal.reason) == ("server", "plugin_error")
    assert "secret" not in refusal.message
    monkeypatch.undo()
    assert text_of(llm) == before


def test_an_observer_that_raises_is_switched_off_and_named(start, monkeypatch):
    """Requests go on; the observer is asked no more."""
    llm = start()
    before = text_of(llm)
    watch = llm.assembly.engine.watch
    monkeypatch.setattr(type(watch.observers[0][1]), "on_step", boom)
    assert text_of(llm) == before
    assert watch.switched_off == ["metrics"]
    assert watch.observers == []


def test_a_drafter_that_raises_is_switched_off(start):
    """The answer is the one without drafts."""
    from enginebay.drafting import Drafting

    llm = start()
    before = text_of(llm)

    class Broken:
        propose = boom

    engine = llm.assembly.engine
    engine.drafting = Drafting("broken", Broken(), 4, 300)
    assert text_of(llm) == before
    assert engine.drafting.switched_off


def test_drafts_change_nothing_but_the_number_of_steps(start):
    """Sample-and-match: right and wrong guesses leave tokens and text as they are."""
    from enginebay.drafting import Drafting

    llm = start()
    for sampling in (GREEDY, SamplingParams(max_tokens=16, ignore_eos=True, seed=9, top_p=0.9)):
        plain = llm.generate("Hello there", sampling)
        answer = plain.outputs[0].token_ids

        class Oracle:
            def propose(self, sequences, k, answer=answer):
                done = [s.num_tokens - s.num_prompt for s in sequences]
                # Every third guess is wrong, so that rejected positions are trimmed too.
                return [
                    tuple((t + (i % 3 == 2)) % 300 for i, t in enumerate(answer[d : d + k]))
                    for d in done
                ]

        engine = llm.assembly.engine
        steps = engine._step
        llm.generate("Hello there", sampling)
        plain_steps = engine._step - steps
        engine.drafting = Drafting("oracle", Oracle(), 4, 300)
        steps = engine._step
        drafted = llm.generate("Hello there", sampling)
        assert drafted.outputs[0].token_ids == answer
        assert drafted.text == plain.text
        assert engine._step - steps < plain_steps
        assert not engine.drafting.switched_off
        engine.drafting = None


@pytest.mark.parametrize("part", ["scheduler", "allocator", "executor", "kernel", "collect"])
def test_an_engine_part_that_raises_stops_the_engine(tiny, monkeypatch, part):
    """Every request gets an error event, readiness ends, no new request is taken."""
    from enginebay import LLM

    llm = LLM(tiny, stack="reference", overrides={"engine.num_blocks": 64})
    engine = llm.assembly.engine
    long = SamplingParams(max_tokens=400, ignore_eos=True, seed=1)
    events = [llm.stream(TextPrompt(text="Hello"), long) for _ in range(3)]
    for stream in events:
        next(stream)
    targets = {
        "scheduler": (engine.scheduler, "plan"),
        "allocator": (engine.allocator, "reserve"),
        "executor": (engine.executor, "execute"),
        "kernel": (llm.assembly.executor.attention, "attend"),
        "collect": (engine.executor, "collect"),
    }
    target, name = targets[part]
    monkeypatch.setattr(target, name, boom, raising=True)
    for stream in events:
        last = list(stream)[-1]
        assert isinstance(last, Ended)
        assert last.error.kind == "engine"
        assert "secret" not in last.error.message
    health = llm.client.health()
    assert (health.state, health.alive, health.ready) == ("failed", False, False)
    assert "Boom" in health.message
    with pytest.raises(EngineStopped, match="failed"):
        llm.generate("Hello", GREEDY)
    assert not engine.busy
