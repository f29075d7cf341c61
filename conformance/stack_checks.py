"""Checks of a stack as a whole: logits, sampler chain, invariance, its client.

Each takes (stack, positions) and returns a line of what it measured.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import torch

from enginebay.assembler import Assembler
from enginebay.hookspecs.kernel import KernelContext
from enginebay.hookspecs.quant import Preparing, QuantContext
from enginebay.hookspecs.sampler import SamplerContext
from enginebay.sampling import Chain
from enginebay.threads import configure_threads

from . import sampler_checks
from .check import CheckList, Skip
from .invariance import check_invariance, check_threads
from .parity import (
    ROUNDED,
    TOLERANCES,
    Parity,
    Subject,
    Tolerance,
    check_parity,
    compare_logits,
    load_subject,
    teacher_forced,
)
from .transformers_logits import load_transformers, transformers_logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from enginebay.hookspecs.format import Checkpoint
    from enginebay.hookspecs.kernel import Kernels
    from enginebay.hookspecs.model import ModelFamily
    from enginebay.stack import Stack

STACK_CHECKS: Final = CheckList()
TEXT: Final = (
    "A cache keeps what was computed once and is needed again. A model that writes one word "
    "after another reads, for every word, all that it has read and written before; keeping "
    "those keys and values means that only the newest word has to be worked out. The cache "
    "grows with every word, for every request, and so the memory of a server is divided "
    "among the conversations it holds. 1984 pages, 16 words a page: a request holds whole "
    "pages, the last of which is partly empty. Čísla, žluťoučký kůň, 東京 and 🫠 count too.\n\n"
    "def attention(query, keys, values):\n    return softmax(query @ keys.T) @ values\n"
)
"""Ordinary and less ordinary text; repeated where more positions are asked for."""


@STACK_CHECKS.add("parity/reference")
def logits_agree_with_the_reference_kernels(given: tuple[Stack, int]) -> str:
    """Teacher-forced logits, prefill and decode, agree with the plain torch kernels.

    Both run the same weights: what a quantizer makes of them is not judged here.
    """
    judged = _Judged(*given)
    reference = teacher_forced(judged.load(()), judged.token_ids)
    return judged.against(reference, "the reference kernels")


@STACK_CHECKS.add("parity/transformers")
def logits_agree_with_transformers(given: tuple[Stack, int]) -> str:
    """Teacher-forced logits, prefill and decode, agree with transformers in float32."""
    if find_spec("transformers") is None:
        reason = "transformers is not installed; pip install transformers"
        raise Skip(reason)
    judged = _Judged(*given)
    if judged.quantized:
        reason = f"this stack rounds the model's numbers ({judged.quantized})"
        raise Skip(reason)
    model = load_transformers(judged.checkpoint)
    return judged.against(transformers_logits(model, judged.token_ids), "transformers")


@STACK_CHECKS.add("sampler/chain")
def draws_fit_their_distribution(given: tuple[Stack, int]) -> str:
    """The chain refuses, reproduces and draws as its declared fields say."""
    build = Assembler(given[0])
    vocab_size = 64
    context = SamplerContext(vocab_size=vocab_size)
    chain = Chain(build.chain("samplers", lambda entry: context), vocab_size)
    noise = torch.Generator().manual_seed(5)
    logits = 2.0 * torch.randn(vocab_size, generator=noise)
    wanted = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.02, "presence_penalty": 0.5}
    asked = {name: value for name, value in wanted.items() if name in chain.fields}
    case = sampler_checks.Case(logits, asked, prompt_ids=(3, 4), output_ids=(5, 6, 5))
    sampler_checks.check_chain(chain, [sampler_checks.Case(logits), case])
    return f"chi-square over draws with {', '.join(asked)}"


@STACK_CHECKS.add("invariance/surroundings")
def tokens_do_not_depend_on_surroundings(given: tuple[Stack, int]) -> str:
    """Neighbours, order, chunks, block size, caches and cancels change nothing (promise P1)."""
    stack, _ = given
    return "\n".join(check_invariance(stack, _token_ids(_open(stack)[1], 60)))


@STACK_CHECKS.add("invariance/threads")
def tokens_do_not_depend_on_threads(given: tuple[Stack, int]) -> str:
    """One thread or two, alone or among neighbours: the same (promise P1)."""
    stack, _ = given
    return "\n".join(check_threads(stack, _token_ids(_open(stack)[1], 60)))


class _Judged:
    """A stack's model on the stack's kernels, with a text to read."""

    def __init__(self, stack: Stack, num_positions: int) -> None:
        options = stack.engine
        self.options = options
        threads = configure_threads(options.threads)
        self.build, checkpoint, self.family = _open(stack)
        self._context = QuantContext(dtype=options.dtype, device=options.device)
        quantizer = self.build.one("quant", self._context)
        if isinstance(quantizer, Preparing):
            spec = self.family.spec(checkpoint.config)
            checkpoint = quantizer.prepare(spec, self.family, checkpoint)
        self.checkpoint, self._quantizer = checkpoint, quantizer
        context = KernelContext(device=options.device, threads=threads)
        self.subject = self.load(self.build.chain("kernels", lambda entry: context))
        self.block_size = options.block_size
        self.token_ids = _token_ids(self.checkpoint, num_positions)

    def load(self, kernels: Sequence[tuple[str, Kernels]]) -> Subject:
        """The model on these kernels; without any, on the reference's."""
        return load_subject(
            self.checkpoint,
            self.family,
            kernels,
            quantizer=copy.deepcopy(self._quantizer),  # it may count what it has packed
            dtype=self.options.dtype,
            device=self.options.device,
            row_invariant=self.options.require_row_invariant and bool(kernels),
            cache_dtype=self.options.cache_dtype(),
        )

    @property
    def quantized(self) -> str:
        """What a stack rounds beyond its compute dtype; empty: nothing."""
        report = self._quantizer.report()
        rounded = {
            "weights": "" if report.scheme == "float" else report.scheme,
            "activations": self._rounded_rows,
            "keys and values": self.options.cache_dtype(),
        }
        return ", ".join(f"{what} in {how}" for what, how in rounded.items() if how)

    @property
    def _rounded_rows(self) -> str:
        activations: str = self._quantizer.activations
        return "" if activations == "float" else activations

    @property
    def _tolerance(self) -> Tolerance:
        if self._rounded_rows or self.options.cache_dtype():
            return ROUNDED
        return TOLERANCES[self.subject.dtype]

    def against(self, reference: torch.Tensor, what: str) -> str:
        """Hold prefill and decode against a reference's logits."""
        lines = []
        for way, chunk in (("prefill", None), ("decode", 1)):
            logits = teacher_forced(
                self.subject, self.token_ids, chunk=chunk, block_size=self.block_size
            )
            parity = compare_logits(logits, reference)
            check_parity(parity, self._tolerance, f"{way} and {what}")
            lines.append(_told(way, parity))
        return "\n".join(lines)


def _open(stack: Stack) -> tuple[Assembler, Checkpoint, ModelFamily]:
    build = Assembler(stack)
    _, checkpoint = build.checkpoint()
    family, _ = build.model(checkpoint)
    return build, checkpoint, family


def _token_ids(checkpoint: Checkpoint, count: int) -> list[int]:
    ids: list[int] = checkpoint.text.tokenizer.encode(TEXT, add_special_tokens=False).ids
    return (ids * (count // len(ids) + 1))[:count]


def _told(way: str, parity: Parity) -> str:
    return (
        f"{way}: {parity.num_positions} positions, max |Δlogit| {parity.max_difference:.1e}, "
        f"KL {parity.max_kl:.1e}, top-1 agreement {parity.top1_agreement:.4f}"
    )
