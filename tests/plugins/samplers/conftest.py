"""The shipped sampler chain, found as a stack finds it, and rows to run it on."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points

import pytest
import torch

from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import RowView, SamplerContext, Transform
from enginebay.sampling import Chain

SHIPPED = (
    "allowed-tokens",
    "bad-words",
    "min-tokens",
    "logit-bias",
    "penalties",
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "gumbel",
)


def _build(name: str, vocab_size: int, text=None) -> Transform:
    (entry,) = entry_points(group="enginebay.samplers", name=name)
    module = import_module(entry.value)
    assert module.CONTRACT == (1, 0)
    context = SamplerContext(vocab_size=vocab_size, text=text)
    return module.enginebay_sampler(module.Options(), context)


@pytest.fixture
def shipped() -> Callable[..., Chain]:
    """Builds the chain of all shipped samplers over a vocabulary."""

    def build(vocab_size: int, text=None) -> Chain:
        members = [(name, _build(name, vocab_size, text)) for name in SHIPPED]
        return Chain(members, vocab_size)

    return build


@pytest.fixture
def view() -> Callable[..., RowView]:
    """Builds the view of a row of a request: ``view(chain, temperature=0.7)``."""

    def build(
        chain: Chain,
        *,
        prompt_ids=(),
        output_ids=(),
        position=5,
        index=0,
        seed=1,
        end_ids=(),
        **asked,
    ) -> RowView:
        sampling = SamplingParams(**asked)
        return RowView(
            params=chain.parse(sampling),
            sampling=sampling,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            position=position,
            index=index,
            seed=seed,
            end_ids=frozenset(end_ids),
        )

    return build


@pytest.fixture
def left(shipped, view) -> Callable[..., dict[int, float]]:
    """What a chain over some logits draws from: token id -> probability."""

    def run(logits: list[float] | torch.Tensor, text=None, **asked) -> dict[int, float]:
        row = torch.as_tensor(logits, dtype=torch.float32)
        chain = shipped(len(row), text)
        asked = {"logprobs": 0, "logprobs_mode": "processed", **asked}
        candidates = chain.draw(row, view(chain, **asked)).candidates
        chances = torch.softmax(candidates.logits, 0).tolist()
        pairs = zip(candidates.token_ids().tolist(), chances, strict=True)
        return {token_id: chance for token_id, chance in pairs if chance > 1e-12}

    return run
