"""A walk: a model's own decoder is run once over text, block by block."""

from collections.abc import Sequence

import torch

from enginebay.batch import Batch
from enginebay.hookspecs.format import Checkpoint
from enginebay.hookspecs.model import ModelFamily, ModelSpec

from .dense_attention import DenseAttention
from .layers import Source
from .walker import Finish, Walker


class WatchedAttention(DenseAttention):
    """Attention that tells a walker where its output comes from."""

    def __init__(self, spec: ModelSpec, walker: Walker) -> None:
        super().__init__(spec)
        self._walker = walker
        self._source: Source | None = None

    def write(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cos_sin: torch.Tensor,
    ) -> None:
        """A new block has begun: the one before is done with."""
        self._source = self._walker.values(v)
        self._walker.hand_over(keep=1)
        super().write(layer, q, k, v, cos_sin)

    def attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        """q [T, Hq, D], rotated -> [T, Hq * D]."""
        mixed = super().attend(layer, q)
        self._walker.made(mixed, self._source)
        return mixed


@torch.inference_mode()
def walk(
    spec: ModelSpec,
    family: ModelFamily,
    checkpoint: Checkpoint,
    sequences: Sequence[Sequence[int]],
    finish: Finish,
) -> dict[str, torch.Tensor]:
    """Run a model's decoder over sequences of token ids in float32.

    :param finish: given every linear layer once, those of a block together
    :return: the tensors that are no linear layer's, in float32
    """
    shapes = {weight.name: weight.shape for weight in family.weights(spec)}
    walker = Walker(spec, checkpoint, shapes, finish)
    decoder = family.build(spec, walker)
    decoder.forward(_batch(sequences), WatchedAttention(spec, walker))  # type: ignore[arg-type]
    walker.hand_over()
    return walker.tensors


def _batch(sequences: Sequence[Sequence[int]]) -> Batch:
    """Whole sequences, each from position 0, with logits wanted of every row."""
    sizes = [len(each) for each in sequences]
    ids = torch.tensor([token for each in sequences for token in each], dtype=torch.int64)
    positions = torch.cat([torch.arange(size) for size in sizes])
    starts = torch.tensor([0, *sizes], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return Batch(
        token_ids=ids,
        positions=positions,
        row_starts=starts,
        contexts=torch.tensor(sizes, dtype=torch.int32),
        tables=torch.zeros(len(sizes), 1, dtype=torch.int32),
        slots=torch.zeros(len(ids), dtype=torch.int64),
        logit_rows=torch.arange(len(ids)),
        block_size=max(sizes),
    )
