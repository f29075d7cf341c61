"""Teacher-forced logit parity: the same prefix, the same logits at every position.

The decoder runs directly over a block table: no engine, scheduler or sampler stands
between, so a difference is the model's or the kernels'. One ``chunk`` over the whole
prefix is a prefill, chunks of one token are a decode; both have to agree with the
reference kernels and with transformers in float32.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from enginebay.dispatch import KernelTable
from enginebay.hookspecs.format import Checkpoint
from enginebay.hookspecs.kernel import Attention, KernelContext, Kernels
from enginebay.hookspecs.model import Decoder, ModelFamily, ModelSpec
from enginebay.hookspecs.quant import Quantizer
from enginebay.kv import attention_signature, kv_spec
from enginebay.plugins.kernels.reference import ReferenceKernels
from enginebay.plugins.quant.none import Float
from enginebay.weights import load_decoder

from .batches import Stretch, make_batch


@dataclass(frozen=True)
class Tolerance:
    """How far logits may be from the reference, at any position."""

    max_difference: float
    """Of one logit."""
    max_kl: float
    """Of one position's distribution from the reference's, in nats."""


TOLERANCES: Final = {
    "float32": Tolerance(max_difference=1e-3, max_kl=1e-6),
    "float16": Tolerance(max_difference=0.1, max_kl=5e-3),
    "bfloat16": Tolerance(max_difference=0.75, max_kl=5e-2),
}
"""By compute dtype, for logits whose spread is a few units, with the same weights."""
ROUNDED: Final = Tolerance(max_difference=0.2, max_kl=5e-3)
"""Where activations or the cache are rounded to int8: two kernels that differ by a float32
rounding may take neighbouring steps, each about 1 % of its row's greatest value."""


@dataclass(frozen=True)
class Parity:
    """How two sets of logits for the same tokens differ."""

    num_positions: int
    max_difference: float
    worst_position: int
    """Where ``max_difference`` stands."""
    mean_kl: float
    """KL(reference || subject) in nats, averaged over positions."""
    max_kl: float
    top1_agreement: float
    """Share of positions with the same most likely token; 1 is all."""
    first_divergence: int | None
    """First position whose most likely token differs."""
    divergence_margin: float
    """The reference's best logit minus its logit of the subject's choice, there."""


@dataclass(frozen=True)
class Subject:
    """A loaded decoder with the kernels that it runs on."""

    spec: ModelSpec
    decoder: Decoder
    table: KernelTable
    dtype: str
    device: str
    cache_dtype: str = ""

    def attention(self, num_tokens: int, block_size: int) -> Attention:
        """Attention with room for so many positions, and one block more."""
        kv = kv_spec(
            self.spec,
            block_size=block_size,
            max_model_len=num_tokens,
            dtype=self.dtype,
            cache_dtype=self.cache_dtype,
        )
        attention: Attention = self.table.resolve(attention_signature(kv))(kv)
        attention.allocate(-(-num_tokens // block_size) + 1)
        return attention


def load_subject(
    checkpoint: Checkpoint,
    family: ModelFamily,
    kernels: Sequence[tuple[str, Kernels]] = (),
    *,
    quantizer: Quantizer | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    row_invariant: bool = False,
    cache_dtype: str = "",
) -> Subject:
    """Load a model on the kernels to judge; without any, on the reference kernels.

    :param kernels: names and plugins in the order of a stack's ``kernels``
    :param row_invariant: take row-invariant kernels alone
    :param cache_dtype: of keys and values, when it is another than ``dtype``
    :raises ModelError: the checkpoint does not fit the model
    :raises PluginError: no kernel takes an op; lists every reason
    """
    chosen = list(kernels) or [("reference", ReferenceKernels(KernelContext(device, 1)))]
    table = KernelTable(chosen, require_row_invariant=row_invariant)
    spec = family.spec(checkpoint.config)
    decoder, _ = load_decoder(spec, family, checkpoint, quantizer or Float(), table, dtype, device)
    return Subject(spec, decoder, table, dtype, device, cache_dtype)


def teacher_forced(
    subject: Subject,
    token_ids: Sequence[int],
    *,
    chunk: int | None = None,
    block_size: int = 16,
) -> torch.Tensor:
    """Logits of every position of a fixed prefix.

    :param chunk: tokens a step; ``None``: all in one, 1: as when generating
    :return: float32 [len(token_ids), vocab_size], on the CPU
    """
    attention = subject.attention(len(token_ids), block_size)
    # From the last block to the first, and never block 0: nobody may read the cache as
    # if it were contiguous.
    table = range(-(-len(token_ids) // block_size), 0, -1)
    step = chunk or len(token_ids)
    logits = []
    for start in range(0, len(token_ids), step):
        stretch = Stretch(token_ids[: start + step], start, table)
        batch = make_batch([stretch], block_size, subject.device)
        logits.append(subject.decoder.forward(batch, attention).cpu())
    return torch.cat(logits)


def compare_logits(logits: torch.Tensor, reference: torch.Tensor) -> Parity:
    """How a subject's logits differ from the reference's, both [T, V].

    :raises AssertionError: shapes differ, or a logit is not finite
    """
    if logits.shape != reference.shape:
        msg = f"logits have shape {list(logits.shape)}, the reference {list(reference.shape)}"
        raise AssertionError(msg)
    finite = torch.isfinite(logits).all(dim=1)
    if not finite.all():
        msg = f"logits of position {int(finite.int().argmin())} are not finite"
        raise AssertionError(msg)
    ours, theirs = logits.double(), reference.double()
    worst = (ours - theirs).abs().amax(dim=1)
    log_ours, log_theirs = ours.log_softmax(dim=1), theirs.log_softmax(dim=1)
    kl = (log_theirs.exp() * (log_theirs - log_ours)).sum(dim=1)
    chosen, best = ours.argmax(dim=1), theirs.argmax(dim=1)
    differing = torch.nonzero(chosen != best).flatten().tolist()
    first = differing[0] if differing else None
    margin = 0.0
    if first is not None:
        margin = float(theirs[first, best[first]] - theirs[first, chosen[first]])
    return Parity(
        num_positions=len(ours),
        max_difference=float(worst.max()),
        worst_position=int(worst.argmax()),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        top1_agreement=1.0 - len(differing) / len(ours),
        first_divergence=first,
        divergence_margin=margin,
    )


def check_parity(parity: Parity, tolerance: Tolerance, what: str = "logits") -> None:
    """Hold a comparison against a tolerance.

    Within it, the most likely token can differ only where the reference's own margin is
    at most twice the tolerance, since two logits can each be off by one.

    :raises AssertionError: says which bound is broken, where and by how much
    """
    if parity.max_difference > tolerance.max_difference:
        msg = (
            f"{what} differ by {parity.max_difference:.3g} at position {parity.worst_position} "
            f"of {parity.num_positions}; the tolerance is {tolerance.max_difference:.3g}; "
            f"the most likely token first differs at position {parity.first_divergence}"
        )
        raise AssertionError(msg)
    if parity.max_kl > tolerance.max_kl:
        msg = f"{what}: KL {parity.max_kl:.3g} nats; the tolerance is {tolerance.max_kl:.3g}"
        raise AssertionError(msg)
