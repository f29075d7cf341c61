"""Executor: runs plans on hardware. Several may be in flight."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ..flow import StepPlan, StepResult
from .markers import hookspec

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..dispatch import KernelTable
    from ..ledger.lines import Plan
    from ..sampling import Chain
    from .format import Checkpoint
    from .model import Limits, ModelFamily, ModelSpec
    from .quant import Quantizer


class Handle(Protocol):
    """A plan under way."""

    @property
    def step(self) -> int: ...


class Executor(Protocol):
    """Computes plans in the order given. Called from the step thread alone."""

    @property
    def num_blocks(self) -> int:
        """KV blocks in its pool."""

    @property
    def depth(self) -> int:
        """Plans that may be in flight at once, 1 or more."""

    def warm_up(self) -> None:
        """Compile and touch everything, so that the first request is not slower."""

    def execute(self, plan: StepPlan) -> Handle: ...
    def collect(self, handle: Handle) -> StepResult:
        """Wait for a plan. Handles are collected in order."""

    def memory(self) -> dict[str, int]:
        """Bytes by ledger line (``weights``, ``kv``, ...)."""

    def close(self) -> None: ...


@runtime_checkable
class Swapping(Protocol):
    """Optional: an executor that can keep KV blocks in host memory."""

    @property
    def num_swap_blocks(self) -> int:
        """Host slots, each for one KV block."""

    @property
    def swap_seconds(self) -> float:
        """Seconds to save one block and load it again, as measured at the start."""


@dataclass(frozen=True)
class Holding:
    """A tensor or buffer that an executor keeps: on which line it stands, what it is for."""

    line: str
    """``weights``, ``kv``, ``swap`` or ``runtime``; see ``enginebay.ledger``."""
    name: str
    memory: "torch.Tensor | np.ndarray[Any, Any]"
    role: str = ""
    """For weights: the tensor's role, ``metadata`` for scales and zero points, or
    ``constant`` for what the decoder computed itself."""
    scheme: str = ""


@runtime_checkable
class Accounting(Protocol):
    """Optional: an executor that shows every storage it keeps. May be asked from any
    thread."""

    @property
    def plan(self) -> "Plan":
        """What it meant to take, made before anything was loaded."""

    @property
    def before_load(self) -> int:
        """Bytes that the process itself took before the load; 0 when unknown."""

    @property
    def step_peak(self) -> tuple[int, int]:
        """(bytes, tokens): temporary memory at its highest within the largest step that
        was measured, and the positions of that step; zeros before ``warm_up``."""

    def holdings(self, line: str = "") -> tuple[Holding, ...]:
        """Everything kept between steps, or that of one line. Views of one storage may be
        named apart, on one line."""


@dataclass(frozen=True)
class ExecutorContext:
    """What an executor is built with."""

    spec: "ModelSpec"
    family: "ModelFamily"
    checkpoint: "Checkpoint"
    table: "KernelTable"
    quantizer: "Quantizer"
    chain: "Chain"
    limits: "Limits"
    """``num_blocks`` is 0 when ``kv_bytes`` decides."""
    kv_bytes: int
    dtype: str
    device: str
    threads: int
    cache_dtype: str = ""
    """How keys and values are kept, as ``KVSpec`` says it; empty for ``dtype``."""
    swap_bytes: int = 0
    """Host memory for swapped-out KV blocks."""
    before_load: int = 0
    """Bytes that the process itself took before the model was opened; 0: not measured."""


@hookspec(firstresult=True)
def enginebay_executor(options: Any, context: ExecutorContext) -> Executor:  # type: ignore[empty-body]
    """Load the model and build the executor. Called once, at assembly.

    :param options: the plugin's own ``Options``, filled from the stack file
    :param context: model, kernels, quantization, sampler chain and limits
    """
