"""The neutral batch: a step plan as tensors, the same for every model and kernel."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step. T rows (tokens) of S sequences, R rows with logits.

    Rows of one sequence are adjacent and in order of position; sequences stand in the
    plan's order. There is no prefill and no decode here: a sequence has one row or many.

    Read only, and good for its step alone: on the CPU the next one may lie in its memory,
    and be the same object.
    """

    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T], absolute"""
    row_starts: torch.Tensor
    """int32 [S + 1]: rows of sequence s are row_starts[s] .. row_starts[s + 1] - 1"""
    contexts: torch.Tensor
    """int32 [S]: positions in the cache after this step, the step's own included"""
    tables: torch.Tensor
    """int32 [S, W]: block ids by block number; entries past the context are 0"""
    slots: torch.Tensor
    """int64 [T]: block id * block_size + offset, where a row's keys and values go"""
    logit_rows: torch.Tensor
    """int64 [R]: rows whose logits are wanted, ascending"""
    block_size: int

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        """S."""
        return self.contexts.shape[0]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All of them, for the ledger."""
        return (
            self.token_ids,
            self.positions,
            self.row_starts,
            self.contexts,
            self.tables,
            self.slots,
            self.logit_rows,
        )
