"""Narrowing rows without ordering them whole: the same choice as by the definition."""

import numpy as np
import pytest
import torch

from enginebay.candidates import Candidates
from enginebay.plugins.samplers.narrowing import leaders, near, nucleus
from enginebay.plugins.samplers.tops import tops_of


def rows():
    """Flat and peaked rows, rows of equals, short ones, and rows with banned tokens."""
    noise = np.random.default_rng(5)
    for size in (1, 7, 64, 65, 1000, 20_000):
        for spread in (0.0, 0.3, 4.0, 20.0):
            row = (noise.standard_normal(size) * spread).astype(np.float32)
            yield row
            equals = np.round(row)
            equals[noise.random(size) < 0.4] = -np.inf
            equals[size // 2] = np.float32(1.0)
            yield equals


def kept(candidates: Candidates) -> list[int]:
    """Places of those that aren't banned, as the narrowing lists them."""
    ids = candidates.token_ids().numpy()
    return ids[candidates.logits.numpy() > -np.inf].tolist()


def in_order(row: np.ndarray) -> np.ndarray:
    """Places, descending; of equals the first."""
    return np.argsort(-row, kind="stable")


@pytest.mark.parametrize("share", [1e-6, 0.3, 0.9, 0.999])
def test_a_nucleus_is_the_shortest_head_of_the_order_that_carries_the_share(share):
    """Up to rounding of the masses, where two heads carry it within one part in 10**5."""
    for row in rows():
        order = in_order(row)
        weights = np.exp(row[order].astype(np.float64) - row.max())
        masses = weights.cumsum() / weights.sum()
        places = kept(nucleus(Candidates(torch.from_numpy(row)), share))
        count = len(places)
        assert (np.diff(places) > 0).all()
        assert set(places) == set(order[:count].tolist())
        assert masses[count - 1] >= share - 1e-5
        assert count == 1 or masses[count - 2] < share + 1e-5


@pytest.mark.parametrize("count", [1, 3, 40, 500, 900, 5000])
def test_leaders_are_the_head_of_the_order_without_banned_ones(count):
    """Fewer where fewer are allowed; of equals the first."""
    for row in rows():
        wanted = [place for place in in_order(row)[:count] if row[place] > -np.inf]
        assert kept(leaders(Candidates(torch.from_numpy(row)), count)) == sorted(wanted)


@pytest.mark.parametrize("distance", [0.0, -0.5, -3.0, -30.0])
def test_near_ones_are_those_within_a_distance(distance):
    """In float32, as a comparison of whole rows would have it."""
    for row in rows():
        wanted = np.flatnonzero(row - row.max() >= np.float32(distance))
        assert kept(near(Candidates(torch.from_numpy(row)), distance)) == wanted.tolist()


def test_a_list_and_a_full_row_keep_the_same():
    """How many make a list is a matter of time alone; ids are those of the vocabulary."""
    for row in rows():
        ids = torch.arange(3, 3 + 2 * len(row), 2)
        for narrow, bound in ((leaders, 30), (nucleus, 0.7), (near, -1.0)):
            listed, full = (
                narrow(Candidates(torch.from_numpy(row), ids), bound, many) for many in (10**5, 0)
            )
            assert kept(listed) == kept(full)
            assert len(full) == len(row)
            assert full.tops.tolist() == tops_of(full.logits.numpy()).tolist()


@pytest.mark.parametrize("count", [1, 40, 256])
def test_candidates_find_their_best_in_groups_as_by_the_definition(count):
    """Equal logits at the edge, and rows too short or too banned for groups."""
    for row in rows():
        wanted = [place for place in in_order(row)[:count] if row[place] > -np.inf]
        best = Candidates(torch.from_numpy(row)).best(count)
        found = [place for place in best.token_ids().tolist() if row[place] > -np.inf]
        assert found == wanted
        largest = Candidates(torch.from_numpy(row)).largest(count)
        assert largest.tolist() == row[in_order(row)[:count]].tolist()
