"""gumbel: a draw is a function of its request and of nothing else."""

import pytest
import torch

from enginebay.conformance import noise
from enginebay.plugins.samplers import narrowing, tops, winner

GENERATOR = torch.Generator().manual_seed(11)
ROW = torch.randn(9001, generator=GENERATOR)


def _sequence(chain, view, row, **where) -> list[int]:
    return [chain.draw(row, view(chain, position=p, **where)).token_id for p in range(12)]


def test_choices_of_one_seed_differ_and_reproduce(shipped, view):
    """n = 3 with one seed: three different sequences, each the same when asked again."""
    chain = shipped(9001)
    first = [_sequence(chain, view, ROW, seed=42, index=index) for index in range(3)]
    again = [_sequence(chain, view, ROW, seed=42, index=index) for index in range(3)]
    assert first == again
    assert len({tuple(tokens) for tokens in first}) == 3


@pytest.mark.parametrize("seed", [0, -1, -(2**63), 2**63 - 1])
def test_every_int64_seed_draws_its_own(shipped, view, seed):
    """Case 19: reproduced, 0 honoured, and no two of them alike."""
    chain = shipped(9001)
    drawn = _sequence(chain, view, ROW, seed=seed)
    assert drawn == _sequence(chain, view, ROW, seed=seed)
    assert drawn != _sequence(chain, view, ROW, seed=1)
    expected = [noise.draw(ROW.numpy(), noise.Place(seed, position)) for position in range(12)]
    assert drawn == expected


@pytest.mark.parametrize("kept", [1, 2, 50, 512, 513, 3000])
def test_few_and_many_candidates_draw_as_the_reference(shipped, view, kept):
    """Both ways to draw, below and above the number at which the row is rebuilt."""
    chain = shipped(9001)
    row = ROW * 0.3
    best = row.sort(descending=True, stable=True).indices[:kept]
    for position in range(8):
        drawn = chain.draw(row, view(chain, position=position, top_k=kept)).token_id
        place = noise.Place(1, position)
        assert drawn == noise.draw(row[best].numpy(), place, best.numpy())


def test_neighbours_do_not_matter(shipped, view):
    """A row inside a batch, on a strided view, draws what it draws alone."""
    chain = shipped(9001)
    batch = torch.stack([ROW.flip(0), ROW, ROW * 2], dim=1).T
    for position in range(8):
        where = view(chain, position=position)
        assert chain.draw(batch[1], where).token_id == chain.draw(ROW, where).token_id


def test_whatever_draws_is_compiled_when_built(shipped, view):
    """The first request does not wait for a compiler."""
    chain = shipped(9001)
    functions = [
        entry
        for module in (winner, narrowing, tops)
        for entry in vars(module).values()
        if hasattr(entry, "signatures") and not entry.targetoptions.get("inline")
    ]
    before = [entry.signatures[:] for entry in functions]
    asked = {"top_k": 900, "top_p": 0.9, "min_p": 0.01, "temperature": 0.5}
    for some in ({}, asked, *({name: value} for name, value in asked.items())):
        chain.draw(ROW, view(chain, **some))
    assert len(functions) >= 8
    assert before == [entry.signatures for entry in functions]


def test_gumbel_owns_no_field(shipped):
    """Seed and choice are the core's."""
    gumbel = dict(shipped(4).members)["gumbel"]
    with pytest.raises(ValueError, match="owns no field"):
        gumbel.parse("seed", 1, 4)
