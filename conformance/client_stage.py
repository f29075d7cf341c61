"""What a client check stands on: an engine that runs, and a client that carries it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from enginebay.engine import Engine
from enginebay.flow import Refusal, StepPlan
from enginebay.hookspecs.admission import Ask, Load
from enginebay.hookspecs.client import EngineClient
from enginebay.plugins.schedulers.chunked import Chunked, Options
from enginebay.stack import Stack

from .clocks import WallClock
from .harness import Harness
from .traffic import VOCAB_SIZE
from .worlds import limits_of

MAX_MODEL_LEN: Final = 96
PATIENCE: Final = 20.0
"""Seconds; far more than any check needs."""


@dataclass(frozen=True)
class Setting:
    """What a check asks of the engine under its client."""

    stall_seconds: float = 30.0
    num_blocks: int = 64
    max_sequences: int = 4


@dataclass
class Stage:
    """A started engine with one client."""

    engine: Engine
    client: EngineClient
    another: Callable[[], EngineClient]
    """Builds one more client of the same engine."""
    vocab_size: int
    patience: float
    """Seconds after which an event is taken to be lost."""
    max_model_len: int = MAX_MODEL_LEN

    def wreck(self) -> None:
        """From now on the engine fails when it computes."""
        self.engine.executor.execute = _broken  # type: ignore[method-assign]


MakeStage = Callable[[Setting], Stage]


class TooLong:
    """Admission of the imagined engine: prompt and answer fit the context."""

    def ask(self, ask: Ask, load: Load) -> Refusal | None:
        """Refuse prompts that leave no room for a token."""
        length = ask.num_prompt_tokens or 0
        if length < MAX_MODEL_LEN:
            return None
        return Refusal(
            plugin="too-long",
            reason="context_length",
            kind="invalid",
            message=f"{length} prompt tokens; at most {MAX_MODEL_LEN - 1}",
            limit=MAX_MODEL_LEN - 1,
            current=length,
            param="prompt",
        )

    def release(self, request_id: str) -> None:
        """Nothing was reserved."""


def imagined_stage(
    build: Callable[[Engine], EngineClient], *, patience: float = PATIENCE
) -> MakeStage:
    """Stages over an engine without a model: a step takes about 2 ms.

    :param build: makes a client of an engine
    :param patience: seconds after which an event is taken to be lost
    """

    def make(setting: Setting) -> Stage:
        limits = limits_of(
            num_blocks=setting.num_blocks,
            max_sequences=setting.max_sequences,
            max_model_len=MAX_MODEL_LEN,
        )
        harness = Harness(
            lambda given: Chunked(Options(), given),
            limits,
            clock=WallClock(),
            cost=_two_milliseconds,
            stall_seconds=setting.stall_seconds,
            budget=[("too-long", TooLong())],
        )
        return _started(harness.engine, build, VOCAB_SIZE, patience)

    return make


def stack_stage(stack: Stack) -> MakeStage:
    """Stages over a whole stack, with a model: seconds each; wants a tiny one."""

    def make(setting: Setting) -> Stage:
        import msgspec

        from enginebay.assembly import assemble

        options = msgspec.structs.replace(
            stack.engine,
            max_model_len=MAX_MODEL_LEN,
            num_blocks=setting.num_blocks,
            block_size=4,
            max_sequences=setting.max_sequences,
            stall_seconds=setting.stall_seconds,
        )
        smaller = msgspec.structs.replace(stack, engine=options).without("transports", "sinks")
        assembly = assemble(smaller)
        registry, entry = assembly.registry, stack.one("client")

        def build(engine: Engine) -> Any:
            from enginebay.hookspecs.client import ClientContext
            from enginebay.hookspecs.families import SLOTS

            return registry.build(SLOTS["client"], entry, ClientContext(engine=engine))

        return _started(assembly.engine, build, assembly.spec.vocab_size, PATIENCE)

    return make


def _started(
    engine: Engine, build: Callable[[Engine], EngineClient], vocab_size: int, patience: float
) -> Stage:
    client = build(engine)
    engine.start()
    return Stage(engine, client, lambda: build(engine), vocab_size, patience)


def _two_milliseconds(plan: StepPlan) -> float:
    return 0.002


def _broken(plan: StepPlan) -> Any:
    raise RuntimeError("the hardware is gone")
