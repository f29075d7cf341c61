"""What a ledger consists of: lines, their parts, and the plan that adds them up."""

from typing import Final

from ..flow import Frozen
from ..hookspecs.quant import QuantReport

NAMES: Final = ("weights", "kv", "swap", "runtime", "communication", "host", "reserve")
"""The lines, in the order in which they are shown."""
_HOST: Final = ("swap", "host")
"""Lines that lie in the host's memory, whatever the device."""

NOT_ASKED: Final = "not asked"
"""Begins the note of a planned line that has no figure because nothing was given for it."""


class Part(Frozen, frozen=True, kw_only=True):
    """A share of a line: tensors of one kind, or one figure of its sum."""

    name: str
    num_bytes: int
    count: int = 0
    """Tensors, where it is made of some."""
    dtype: str = ""
    scheme: str = ""
    metadata_bytes: int = 0
    """Of stored tensors: scales and minimums beside the codes."""


class Line(Frozen, frozen=True, kw_only=True):
    """One owner of memory, in bytes."""

    name: str
    planned: int = 0
    """Said before the load."""
    reserved: int = 0
    """Taken from the system, used or not."""
    allocated: int = 0
    """In use: for the pool its used blocks, for the runtime the peak of a step."""
    note: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def asked(self) -> bool:
        """Whether ``planned`` is a figure."""
        return not self.note.startswith(NOT_ASKED)


class Decision(Frozen, frozen=True, kw_only=True):
    """One of the three choices of a number format, each made for itself."""

    what: str
    """``weights``, ``activations`` or ``kv``."""
    choice: str
    num_bytes: int = 0
    """Of values and codes; nothing for activations, which live only in a step."""
    metadata_bytes: int = 0
    """Of scales and offsets beside them."""
    note: str = ""


class Plan(Frozen, frozen=True, kw_only=True):
    """A ledger before anything is loaded."""

    lines: tuple[Line, ...]
    token_bytes: int = 0
    """KV of one token over all layers."""
    block_size: int = 1
    block_bytes: int = 0
    tokens: int = 0
    """Of one request, 0 when nobody asked."""
    requests: int = 0
    device_memory: int = 0
    """0: not known."""
    host_is_elsewhere: bool = False
    """Whether the host's memory is another than the device's."""
    stored: tuple[Part, ...] = ()
    """The checkpoint's tensors as they are in its files, by stored type."""
    decisions: tuple[Decision, ...] = ()
    quantization: QuantReport | None = None
    """What the quantizer said when the load was rehearsed."""
    copies: str = ""
    """A tied weight that is kept twice: both names, forms and sizes."""

    def line(self, name: str) -> Line:
        """The line of that name; empty when the plan has none."""
        return next((line for line in self.lines if line.name == name), Line(name=name))

    @property
    def total(self) -> int:
        """Bytes of the device's memory."""
        return sum(line.planned for line in self.lines if self._counts(line))

    @property
    def left(self) -> int:
        """Device memory that no line takes; negative when it does not suffice."""
        return self.device_memory - self.total

    @property
    def request_blocks(self) -> int:
        """KV blocks of one request."""
        return -(-self.tokens // self.block_size)

    @property
    def request_bytes(self) -> int:
        """Physical KV of one request, its last block whole."""
        return self.request_blocks * self.block_bytes

    @property
    def fits(self) -> int:
        """Requests of that length that the device holds beside the other lines."""
        others = self.total - self.line("kv").planned
        room = max(self.device_memory - others, 0)
        return room // self.request_bytes if self.request_bytes else 0

    def _counts(self, line: Line) -> bool:
        return not (line.name in _HOST and self.host_is_elsewhere)
