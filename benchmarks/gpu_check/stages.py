"""The stages: what each is called, how long it may take, and where it stands."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One process of the check."""

    name: str
    seconds: int
    """It is ended after so long; the others run all the same."""
    what: str


STAGES = (
    Stage("machine", 30, "versions, the GPU, its copy bandwidth"),
    Stage("tests", 150, "tests/gpu: the lane `gpu`"),
    Stage("logits", 90, "small models of every family, and the default one, against the CPU"),
    Stage("features", 60, "samplers, log-probabilities, several choices, swapping"),
    Stage("attention", 80, "prompts and decodes against torch's own attention"),
    Stage("serving", 60, "the engine at concurrency 1 and 16"),
)
"""Together less than 8 minutes."""
