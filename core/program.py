"""A decoder's layers as one callable, which kernels may record and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .hookspecs.kernel import Buffered, Replaying

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch

    from .dispatch import KernelTable


class Program:
    """Runs a body as it is, or as the one plugin that all its ops come from records it.

    Which plugin that is shows at the first call: by then every op has been resolved.
    """

    def __init__(self, body: Callable[..., None], table: KernelTable) -> None:
        self.body = body
        self.table = table
        self.run: Callable[..., None] | None = None

    def __call__(self, hidden: torch.Tensor, cos_sin: torch.Tensor, attention: Any) -> None:
        """hidden [T, H] through all layers, in place."""
        if self.run is None:
            self.run = self._choose()
        self.run(hidden, cos_sin, attention)

    def buffers(self) -> tuple[torch.Tensor | np.ndarray[Any, Any], ...]:
        """What a recording keeps between steps, for the ledger's line ``runtime``."""
        return self.run.buffers() if isinstance(self.run, Buffered) else ()

    def _choose(self) -> Callable[..., None]:
        used = {choice.plugin for choice in self.table.choices.values()}
        kernels = [kernels for name, kernels in self.table.plugins if name in used]
        if len(used) == 1 and isinstance(kernels[0], Replaying):
            return kernels[0].recorded(self.body)
        return self.body
