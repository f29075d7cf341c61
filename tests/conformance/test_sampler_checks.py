"""The shipped chain passes the sampler checks, and broken chains fail the right one."""

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from enginebay.conformance import sampler_checks as checks
from enginebay.conformance.sampler_checks import Case
from enginebay.hookspecs.sampler import SamplerContext
from enginebay.plugins.samplers import gumbel, penalties, temperature, top_p
from enginebay.sampling import Chain

VOCAB = 40
NAMES = (
    "allowed_tokens", "bad_words", "min_tokens", "logit_bias", "penalties",
    "temperature", "top_k", "top_p", "min_p", "gumbel",
)  # fmt: skip
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 2
BEST = LOGITS.argsort(descending=True).tolist()
HISTORY = {
    "prompt_ids": (BEST[1], BEST[2], BEST[2], BEST[30]),
    "output_ids": (BEST[3], BEST[4], BEST[3], BEST[31], BEST[0]),
}
"""Of likely tokens, so that a history read wrongly shows."""
CASES = [
    Case(LOGITS),
    Case(LOGITS, {"temperature": 0.6}),
    Case(LOGITS, {"temperature": 0.0}),
    Case(LOGITS, {"temperature": 1.7, "top_k": 7}),
    Case(LOGITS, {"top_p": 0.7}),
    Case(LOGITS, {"temperature": 1.3, "top_p": 0.9, "top_k": 12}),
    Case(LOGITS, {"min_p": 0.08, "temperature": 1.5}),
    Case(LOGITS, {"logit_bias": {"3": -100, 8: 4.5, "11": -2}}),
    Case(LOGITS, {"allowed_token_ids": [5, 9, 2, 30], "temperature": 2.0}),
    Case(LOGITS, {"repetition_penalty": 1.8}, **HISTORY),
    Case(LOGITS, {"presence_penalty": 1.5, "frequency_penalty": 0.5}, **HISTORY),
    Case(
        LOGITS,
        {
            "logit_bias": {BEST[5]: 2.5},
            "repetition_penalty": 1.3,
            "presence_penalty": -1,
            "temperature": 0.8,
            "top_p": 0.85,
        },
        **HISTORY,
    ),
]


def build(vocab_size=VOCAB, **changed) -> Chain:
    """The shipped chain, with some members replaced."""
    context = SamplerContext(vocab_size=vocab_size)
    members = []
    for name in NAMES:
        module = import_module(f"enginebay.plugins.samplers.{name}")
        built = module.enginebay_sampler(module.Options(), context)
        members.append((name.replace("_", "-"), changed.get(name, built)))
    return Chain(members, vocab_size)


def test_the_shipped_chain_passes():
    """Every check holds; each case is compared exactly, and some by their draws too."""
    chain = build()
    checks.check_chain(chain, CASES[-1:], num_draws=1000)
    for case in CASES:
        checks.check_neutral(chain, case)
        checks.check_processed(chain, case)
    for case in (CASES[4], CASES[6], CASES[7]):
        checks.check_distribution(chain, case, num_draws=1000)


def test_golden_draws_over_a_large_vocabulary():
    """The vectors with high token ids hold too."""
    checks.check_golden_draws(build(vocab_size=49152))


class NoPosition(gumbel.Gumbel):
    """Draws every position with the noise of the first."""

    def draw(self, candidates, view):
        return super().draw(candidates, replace(view, position=0))


class NoChoice(gumbel.Gumbel):
    """All choices of a request share their noise."""

    def draw(self, candidates, view):
        return super().draw(candidates, replace(view, index=0))


class NoSeed(gumbel.Gumbel):
    """Ignores the seed."""

    def draw(self, candidates, view):
        return super().draw(candidates, replace(view, seed=0))


class SeedPlusPosition(gumbel.Gumbel):
    """Independent along each axis alone, but another function."""

    def draw(self, candidates, view):
        return super().draw(candidates, replace(view, seed=view.seed + view.position, position=0))


class Places(gumbel.Gumbel):
    """Uses the place among the candidates for the token id."""

    def draw(self, candidates, view):
        place = super().draw(checks.Candidates(candidates.logits), view)
        return int(candidates.token_ids()[place])


class Remembering(gumbel.Gumbel):
    """Keeps state between draws."""

    count = 0

    def draw(self, candidates, view):
        self.count += 1
        return super().draw(candidates, replace(view, position=self.count))


@pytest.mark.parametrize(
    ("mutant", "along"), [(NoPosition, "position"), (NoChoice, "index"), (NoSeed, "seed")]
)
def test_a_draw_that_ignores_where_it_stands_is_caught(mutant, along):
    """Losing one input of the noise shows as dependence along it, and only there."""
    chain = build(gumbel=mutant(VOCAB))
    for axis in ("seed", "position", "index"):
        if axis == along:
            with pytest.raises(AssertionError, match=f"independent: along {along}"):
                checks.check_independent(chain, axis)
        else:
            checks.check_independent(chain, axis)


@pytest.mark.parametrize("mutant", [NoPosition, NoSeed, SeedPlusPosition])
def test_other_noise_is_caught(mutant):
    """Noise that is as random, but another function, gives other golden draws."""
    with pytest.raises(AssertionError, match="golden-draws"):
        checks.check_golden_draws(build(gumbel=mutant(VOCAB)))


def test_noise_by_place_instead_of_token_is_caught():
    """A draw must not depend on which tokens were narrowed away before."""
    chain = build(gumbel=Places(VOCAB))
    row = torch.full((VOCAB,), -torch.inf)
    row[[3, 31, 17]] = torch.tensor([0.2, 0.5, 0.0])
    with pytest.raises(AssertionError, match="narrowing"):
        checks.check_narrowing(chain, Case(row, {"top_k": 3}))


def test_a_draw_with_a_memory_is_caught():
    """Two runs on the same row must agree."""
    chain = build(gumbel=Remembering(VOCAB))
    case = Case(torch.zeros(VOCAB))
    with pytest.raises(AssertionError, match="pure: a second run"):
        checks.check_pure(chain.members[-1][1], case, case.view(chain))


class DropsBoundary(top_p.TopP):
    """Leaves out the token at which the mass is reached."""

    def shape(self, candidates, view):
        kept = super().shape(candidates, view).sorted()
        return kept.best(max(len(kept) - 1, 1))


class KeepsOneMore(top_p.TopP):
    """Keeps the token after the boundary as well."""

    def shape(self, candidates, view):
        return candidates.best(len(super().shape(candidates, view)) + 1)


class OverTheKept(top_p.TopP):
    """Writes into the logits that it was given."""

    def shape(self, candidates, view):
        candidates.logits.sub_(1.0)
        return super().shape(candidates, view)


@pytest.mark.parametrize("mutant", [DropsBoundary, KeepsOneMore])
def test_a_wrong_top_p_boundary_is_caught(mutant):
    """By the processed distribution, and by the draws alone."""
    chain = build(top_p=mutant())
    case = Case(LOGITS, {"top_p": 0.7})
    with pytest.raises(AssertionError, match=r"processed: .*top_p"):
        checks.check_processed(chain, case)
    with pytest.raises(AssertionError, match=r"distribution: .*top_p"):
        checks.check_distribution(chain, case)


def test_a_shape_that_writes_into_its_input_is_caught():
    """The row belongs to the caller."""
    chain = build(top_p=OverTheKept())
    case = Case(LOGITS.clone(), {"top_p": 0.7})
    with pytest.raises(AssertionError, match="pure"):
        checks.check_pure(dict(chain.members)["top-p"], case, case.view(chain))


class BeforeDrafts(penalties.Penalties):
    """Reads the history without the draft accepted last."""

    def edit(self, row, view):
        super().edit(row, replace(view, output_ids=view.output_ids[:-1]))


class PromptCounts(penalties.Penalties):
    """Takes presence and frequency over the prompt as well."""

    def edit(self, row, view):
        super().edit(row, replace(view, output_ids=(*view.prompt_ids, *view.output_ids)))


@pytest.mark.parametrize("mutant", [BeforeDrafts, PromptCounts])
def test_penalties_from_the_wrong_history_are_caught(mutant):
    """By the processed distribution, and by the draws alone."""
    chain = build(penalties=mutant())
    case = Case(LOGITS, {"presence_penalty": 2.0, "frequency_penalty": 1.0}, **HISTORY)
    with pytest.raises(AssertionError, match=r"processed: .*presence_penalty"):
        checks.check_processed(chain, case)
    with pytest.raises(AssertionError, match=r"distribution: .*presence_penalty"):
        checks.check_distribution(chain, case)


class AlwaysOn(temperature.Temperature):
    """Never says that it is neutral."""

    def active(self, params, sampling):
        return True


def test_a_member_active_on_neutral_values_is_caught():
    """Neutral rows are skipped, not computed."""
    with pytest.raises(AssertionError, match="neutral: temperature"):
        checks.check_neutral(build(temperature=AlwaysOn()), Case(LOGITS))
