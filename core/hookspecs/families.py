"""The table of families: which slot of a stack is filled from which group.

Adding a family is a hookspec file, a plugins folder, a conformance file and a row
here. Nothing in this module imports a contract, so listing plugins stays cheap.
"""

from dataclasses import dataclass
from typing import Final, Literal

Arity = Literal["one", "optional", "chain"]


@dataclass(frozen=True)
class Family:
    """One kind of plugin: its entry-point group, its hook and its stack slots."""

    name: str
    group: str
    """Entry-point group; the entry point's name is the value in a stack file."""
    hook: str
    """The building hook, specified in ``enginebay.hookspecs.<module>``."""
    version: tuple[int, int]
    """(major, minor) of the contract; a plugin names the one it was written for."""
    arity: Arity
    slots: tuple[str, ...]
    """Keys of the stack file that this family fills."""

    @property
    def module(self) -> str:
        """The module that holds the contract."""
        return f"enginebay.hookspecs.{self.name}"


def _family(name: str, arity: Arity, group: str, *slots: str) -> Family:
    return Family(
        name=name,
        group=f"enginebay.{group}",
        hook=f"enginebay_{name}",
        version=(1, 0),
        arity=arity,
        slots=slots or (group,),
    )


FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (
        _family("transport", "chain", "transports"),
        _family("client", "one", "clients", "client"),
        _family("admission", "chain", "admission", "door", "budget"),
        _family("frontend", "chain", "frontends"),
        _family("scheduler", "one", "schedulers", "scheduler"),
        _family("allocator", "one", "allocators", "allocator"),
        _family("executor", "one", "executors", "executor"),
        _family("kernel", "chain", "kernels"),
        _family("quant", "one", "quant"),
        _family("source", "chain", "sources"),
        _family("format", "chain", "formats"),
        _family("model", "chain", "models"),
        _family("sampler", "chain", "samplers"),
        _family("drafter", "optional", "drafters", "drafter"),
        _family("grammar", "optional", "grammars", "grammar"),
        _family("detokenizer", "one", "detokenizers", "detokenizer"),
        _family("sink", "chain", "sinks"),
        _family("observer", "chain", "observers"),
    )
}
SLOTS: Final[dict[str, Family]] = {
    slot: family for family in FAMILIES.values() for slot in family.slots
}
