"""The compiled noise against the plain reference, and both against stored vectors."""

import numpy as np
import pytest
import torch

from enginebay.conformance import noise
from enginebay.plugins.samplers import jit, philox, winner
from enginebay.plugins.samplers.tops import tops_of

VECTORS = noise.vectors()


def _hex(words: list[str]) -> list[int]:
    return [int(word, 16) for word in words]


@pytest.mark.parametrize("known", VECTORS["philox4x32_10"])
def test_random123_known_answers(known):
    """Both implementations give the words that Random123 publishes."""
    counter, key = _hex(known["counter"]), _hex(known["key"])
    plain = noise.philox(tuple(counter), tuple(key))
    compiled = philox.philox(*(np.uint64(word) for word in (*counter, *key)))
    assert [int(word) for word in plain] == _hex(known["words"])
    assert [int(word) for word in compiled] == _hex(known["words"])


@pytest.mark.parametrize("golden", VECTORS["noise"])
def test_golden_noise(golden):
    """Word and uniform are exact; the Gumbel is right to the last bits of a float64."""
    where = noise.Place(golden["seed"], golden["position"], golden["choice"], golden["stream"])
    ids = np.array([golden["token_id"]])
    assert noise.words(ids, where).tolist() == [golden["word"]]
    assert noise.uniform(ids, where).tolist() == [golden["uniform"]]
    assert noise.gumbel(ids, where) == pytest.approx([golden["gumbel"]], rel=0, abs=1e-14)
    uniform, gumbel = philox.noise(ids, philox.place(*where))
    assert uniform.tolist() == [golden["uniform"]]
    assert gumbel == pytest.approx([golden["gumbel"]], rel=0, abs=1e-14)


def test_every_lane_and_many_ids_agree():
    """The compiled noise equals the reference over a whole vocabulary, bit for bit in u."""
    where = noise.Place(2**62 + 12345, 4097, 3)
    ids = np.arange(5003)
    uniform, gumbel = philox.noise(ids, philox.place(*where))
    assert np.array_equal(uniform, noise.uniform(ids, where))
    assert np.allclose(gumbel, noise.gumbel(ids, where), rtol=0, atol=1e-13)


def test_extreme_words_stay_finite():
    """The smallest and largest words give finite noise, which float32 would not."""
    lowest, highest = (0 + 0.5) / 2**32, (2**32 - 0.5) / 2**32
    assert -np.log(-np.log(lowest)) == pytest.approx(-3.1299, abs=1e-3)
    assert -np.log(-np.log(highest)) < winner.LARGEST
    assert np.float32(highest) == 1.0


@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("size", [1, 3, 256, 257, 4099])
def test_full_row_draw_equals_the_reference(size, spread):
    """The shortcuts of the full-row draw leave out only tokens that could not win."""
    generator = torch.Generator().manual_seed(size)
    logits = (torch.randn(size, generator=generator) * spread).numpy()
    tops = tops_of(logits)
    for position in range(40):
        drawn = winner.best_of_row(logits, tops, philox.place(99, position, 0))
        assert drawn == noise.draw(logits, noise.Place(99, position))


def test_candidate_draw_equals_the_reference():
    """Over candidates the draw is the same as over the row with all others banned."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randperm(5000, generator=generator)[:300].numpy()
    logits = torch.randn(300, generator=generator).numpy()
    row = np.full(5000, -np.inf, dtype=np.float32)
    row[ids] = logits
    for position in range(40):
        where = philox.place(-3, position, 1)
        expected = noise.draw(logits, noise.Place(-3, position, 1), ids)
        assert winner.best_among(logits, ids, where) == expected
        assert winner.best_of_row(row, tops_of(row), where) == expected


def test_large_logits_are_not_skipped():
    """At logits of a million, where float32 is coarse, no possible winner is passed over."""
    generator = torch.Generator().manual_seed(8)
    logits = (1e6 + torch.randn(512, generator=generator)).numpy()
    for position in range(100):
        drawn = winner.best_of_row(logits, tops_of(logits), philox.place(4, position, 0))
        assert drawn == noise.draw(logits, noise.Place(4, position))


def test_a_far_token_with_great_noise_still_wins():
    """The luckiest token of a million wins from 13 nats below: nothing skips it."""
    where = noise.Place(0, 1)
    size = 2**20
    luck = noise.gumbel(np.arange(size), where)
    lucky, other = int(luck.argmax()), 5
    assert luck[lucky] > 13
    row = np.full(size, -np.inf, dtype=np.float32)
    row[lucky], row[other] = 0.0, luck[lucky] - luck[other] - 0.01
    ids = np.array([other, lucky])
    assert winner.best_of_row(row, tops_of(row), philox.place(*where)) == lucky
    assert winner.best_among(row[ids], ids, philox.place(*where)) == lucky


def test_equal_scores_go_to_the_lower_id():
    """Two tokens with the same word and logit tie; neither order nor start decides."""
    where = noise.Place(0, 0)
    words = noise.words(np.arange(200_000), where)
    order = np.argsort(words, kind="stable")
    twins = np.flatnonzero(np.diff(words[order]) == 0)
    low, high = (int(token_id) for token_id in order[twins[0] : twins[0] + 2])
    row = np.full(200_000, -np.inf, dtype=np.float32)
    row[[low, high]] = 1.0
    at, logits = philox.place(*where), np.ones(2, dtype=np.float32)
    for first, second in ((low, high), (high, low)):
        assert winner.best_of_row(row, tops_of(row), at) == low
        assert winner.best_among(logits, np.array([first, second]), at) == low


def test_without_a_cache_folder_noise_is_compiled_anew(monkeypatch):
    """A machine on which nothing can be written still draws."""
    real = jit.numba.njit

    def refuse_cache(function, *, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(function, **options)

    monkeypatch.setattr(jit.numba, "njit", refuse_cache)
    assert jit.entry(lambda x: x + 1)(2) == 3


@pytest.mark.parametrize("best", [-3.0, 0.0, 7.25, 1e3, 1e12, -1e15])
def test_no_word_below_the_bound_reaches_the_score(best):
    """The bound is exact: words around it are held against the noise that they give."""
    for distance in np.concatenate([np.linspace(-5, 23, 600), np.geomspace(1e-9, 1e-3, 40)]):
        logit = float(np.float32(best - distance))
        wanted = winner.goal(best) - logit
        least = min(int(np.ceil(winner.least_word(wanted))), 2**32)
        if least:
            word = np.arange(max(least - 3, 0), least, dtype=np.float64)
            assert (logit - np.log(-np.log((word + 0.5) / 2**32)) < best).all()


def test_the_bound_rules_out_nearly_all_words():
    """It would be of no use otherwise: at 8 nats a word in 2,000 may pass, at 3 a word in 15."""
    for distance, words in ((3.0, 15), (8.0, 2000), (16.0, 10**6)):
        assert 2**32 - winner.least_word(distance) < 2**32 / words
