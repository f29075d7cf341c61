"""Made-up traces: ``poisson:rate=5,prompt=200,output=50,seconds=60,tenants=2,seed=1``.

``poisson`` draws independent gaps; ``steady`` has equal ones; ``burst`` has all calls
come at once, ``rate * seconds`` of them. The rest is drawn alike for all three.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_type_hints

import msgspec

from enginebay.config import suggestion

from .trace import Call, TraceError, read

KINDS: Final = ("poisson", "steady", "burst")


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a made-up trace is made from. Lengths are means."""

    rate: float = 5.0
    """Calls a second, of all tenants together."""
    seconds: float = 60.0
    """How long calls come."""
    prompt: int = 200
    """Prompt tokens, the shared prefix included."""
    output: int = 50
    """Tokens of an answer."""
    spread: float = 0.5
    """Standard deviation of both lengths, as a part of their means; 0: all alike. The
    lengths are gamma-distributed, so long ones are rare and none is below 1."""
    max_tokens: int = 0
    """What callers allow; 0: exactly what the answer has."""
    tenants: int = 1
    skew: float = 1.0
    """How many times as many calls the first tenant has as each of the others."""
    prefix: int = 0
    """Tokens that the calls of one tenant and prefix begin with."""
    prefixes: int = 1
    """Prefixes of each tenant."""
    n: int = 1
    deadline: float = 0.0
    """Seconds after arrival; 0: none."""
    priorities: int = 1
    """Classes 0 to ``priorities - 1``, equally often."""
    seed: int = 0


def is_synthetic(text: str) -> bool:
    """Whether a trace's name says how to make it."""
    return text.partition(":")[0] in KINDS


def load(text: str) -> list[Call]:
    """The calls of a file, or of a made-up trace.

    :raises TraceError: see ``read`` and ``parse``; what is neither is told the kinds
    """
    if is_synthetic(text):
        return make(text)
    if not Path(text).exists():
        kind = text.partition(":")[0]
        known = ", ".join(f"{name}:" for name in KINDS)
        raise TraceError(
            f"trace {text!r} can't be read: there is no such file, and {kind!r} is no made-up "
            f"load{suggestion(kind, KINDS)}; those are {known}"
        )
    return read(text)


def parse(text: str) -> tuple[str, Parameters]:
    """``kind:key=value,...`` -> kind and parameters.

    :raises TraceError: names the key, the value, and what is known
    """
    kind, _, rest = text.partition(":")
    types = get_type_hints(Parameters)
    values: dict[str, float | int] = {}
    for item in filter(None, rest.split(",")):
        key, _, value = item.partition("=")
        if key not in types:
            known = ", ".join(types)
            raise TraceError(
                f"{text!r}: unknown key {key!r}{suggestion(key, types)}; known: {known}"
            )
        try:
            values[key] = types[key](value)
        except ValueError:
            kind_of = types[key].__name__
            raise TraceError(f"{text!r}: {key} = {value!r} is not a number ({kind_of})") from None
    return kind, _sound(text, Parameters(**values))  # type: ignore[arg-type]


def make(text: str) -> list[Call]:
    """The calls of a made-up trace. :raises TraceError: see ``parse``"""
    kind, parameters = parse(text)
    noise = random.Random(parameters.seed)
    return [_call(moment, parameters, noise) for moment in _moments(kind, parameters, noise)]


def _sound(text: str, given: Parameters) -> Parameters:
    least = {"rate": 1e-9, "seconds": 0, "prompt": 1, "output": 1, "tenants": 1, "n": 1}
    least |= {"skew": 1e-9, "prefixes": 1, "priorities": 1, "spread": 0, "prefix": 0}
    for key, bound in least.items():
        if not getattr(given, key) >= bound:
            raise TraceError(f"{text!r}: {key} = {getattr(given, key)} is below {bound:g}")
    return given


def _moments(kind: str, given: Parameters, noise: random.Random) -> Iterator[float]:
    count = max(round(given.rate * given.seconds), 1)
    if kind != "poisson":
        yield from (number / given.rate if kind == "steady" else 0.0 for number in range(count))
        return
    moment = 0.0
    while moment <= given.seconds:
        yield moment
        moment += noise.expovariate(given.rate)


def _call(moment: float, given: Parameters, noise: random.Random) -> Call:
    weights = [given.skew, *[1.0] * (given.tenants - 1)]
    tenant = noise.choices(range(given.tenants), weights)[0]
    prompt = given.prefix + _length(max(given.prompt - given.prefix, 1), given.spread, noise)
    output = _length(given.output, given.spread, noise)
    return Call(
        time=moment,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=max(given.max_tokens, output) if given.max_tokens else 0,
        tenant=f"tenant-{tenant}",
        priority=noise.randrange(given.priorities),
        deadline=given.deadline or None,
        prefix=f"prefix-{noise.randrange(given.prefixes)}" if given.prefix else "",
        prefix_tokens=given.prefix,
        n=given.n,
    )


def _length(mean: float, spread: float, noise: random.Random) -> int:
    if spread == 0:
        return max(round(mean), 1)
    shape = 1 / spread**2
    return max(round(noise.gammavariate(shape, mean / shape)), 1)
