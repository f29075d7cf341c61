"""What every sampler chain must do, as plain functions that raise ``AssertionError``.

Each message begins with the name of the check. Distributions are compared by Pearson's
chi-square over draws at fixed seeds and positions: noise is a function, so a check
gives the same verdict every time.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch

from enginebay.candidates import Candidates
from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams
from enginebay.hookspecs.sampler import Draw, Edit, RowView, Shape, Transform
from enginebay.sampling import Chain

from . import noise
from .sampler_reference import probabilities

NUM_DRAWS: Final = 2000
TOLERANCE: Final = 2e-5
"""Of processed log-probabilities: float32 on one side, float64 on the other."""
DEVIATIONS: Final = 5.0
"""Standard deviations of a normal at which a chi-square is called wrong."""


@dataclass(frozen=True)
class Case:
    """One row to draw from, and what the request asks for."""

    logits: torch.Tensor
    """float32 [V]"""
    asked: Mapping[str, Any] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()

    def view(self, chain: Chain, *, seed: int = 1, position: int = 0, choice: int = 0) -> RowView:
        """The row as the chain sees it."""
        sampling = SamplingParams(logprobs=0, logprobs_mode="processed", **self.asked)
        return RowView(
            params=chain.parse(sampling),
            sampling=sampling,
            prompt_ids=self.prompt_ids,
            output_ids=self.output_ids,
            position=position,
            index=choice,
            seed=seed,
            end_ids=frozenset(),
        )

    def expected(self, chain: Chain) -> noise.Floats:
        """The reference distribution [V], transforms in the chain's order."""
        asked = {name: self.asked[name] for name in chain.fields if name in self.asked}
        return probabilities(
            self.logits.numpy(), asked, prompt_ids=self.prompt_ids, output_ids=self.output_ids
        )


def check_pure(transform: Transform, case: Case, view: RowView) -> None:
    """Same inputs, same output; nothing but an edit's own row is touched."""
    before = copy.deepcopy((view, case.logits))
    first = _run(transform, case.logits, view)
    _run(transform, case.logits.flip(0), replace(view, position=view.position + 1))
    second = _run(transform, case.logits, view)
    _require(first == second, "pure: a second run on the same row gives something else")
    untouched = view == before[0] and torch.equal(case.logits, before[1])
    _require(untouched, "pure: the transform changed what it was given")


def check_neutral(chain: Chain, case: Case) -> None:
    """With every field neutral, left out or said, the draw is from the row as it is."""
    said = {
        name: declared.neutral
        for name, (_, declared) in chain.fields.items()
        if declared.neutral is not None
    }
    for asked in ({}, said):
        view = replace(case, asked=asked).view(chain)
        for name, member in chain.members:
            idle = isinstance(member, Draw) or not member.active(view.params, view.sampling)
            _require(idle, f"neutral: {name} is active though every field is neutral")
        left = chain.draw(case.logits, view).candidates
        same = left is not None and _seen(left) == _seen(Candidates(case.logits))
        _require(same, "neutral: the row is changed though every field is neutral")


def check_refusals(chain: Chain) -> None:
    """No boolean, text, NaN, infinity or value out of range passes for a number."""
    for name, (_, declared) in chain.fields.items():
        if declared.type not in ("number", "integer"):
            continue
        wrong: list[Any] = [True, "1", math.nan, math.inf, -math.inf, [1], {}]
        if declared.minimum is not None:
            wrong.append(declared.minimum if declared.exclusive_minimum else declared.minimum - 1)
        if declared.maximum is not None:
            wrong.append(declared.maximum + 1)
        for value in wrong:
            _check_refused(chain, name, value)
    _check_refused(chain, "no_such_field_anywhere", 1)


def check_golden_draws(chain: Chain) -> None:
    """The project's own vectors: the same seed gives the same text everywhere."""
    for golden in noise.vectors()["draws"]:
        logits = torch.tensor(golden["logits"])
        ids = golden["token_ids"] or range(len(logits))
        if max(ids) >= chain.vocab_size:
            continue
        row = torch.full((chain.vocab_size,), -torch.inf)
        row[list(ids)] = logits
        where = {name: golden[name] for name in ("seed", "position", "choice")}
        token_id = chain.draw(row, Case(row).view(chain, **where)).token_id
        told = f"golden-draws: {where} draws {token_id}, not {golden['token_id']}"
        _require(token_id == golden["token_id"], told)


def check_processed(chain: Chain, case: Case) -> None:
    """What is drawn from is the reference distribution, token by token."""
    left = chain.draw(case.logits, case.view(chain)).candidates
    _require(left is not None, "processed: the chain does not tell what it drew from")
    assert left is not None
    found = np.zeros(len(case.logits))
    found[left.token_ids().numpy()] = torch.softmax(left.logits.double(), 0).numpy()
    expected = case.expected(chain)
    extra = np.flatnonzero((found > 0) & (expected == 0)).tolist()
    lost = np.flatnonzero((found == 0) & (expected > 0)).tolist()
    told = f"processed: {dict(case.asked)} keeps {extra} too many and loses {lost}"
    _require(not extra and not lost, told)
    worst = float(np.abs(found - expected).max())
    _require(worst <= TOLERANCE, f"processed: {dict(case.asked)} is off by {worst:.2g}")


def check_distribution(chain: Chain, case: Case, num_draws: int = NUM_DRAWS) -> None:
    """Draws over positions fit the reference distribution."""
    counts = np.zeros(len(case.logits))
    view = case.view(chain)
    for position in range(num_draws):
        counts[chain.draw(case.logits, replace(view, position=position)).token_id] += 1
    expected = case.expected(chain) * num_draws
    stray = np.flatnonzero((counts > 0) & (expected == 0)).tolist()
    _require(not stray, f"distribution: {dict(case.asked)} draws {stray}, which it excludes")
    _fit("distribution", f"{dict(case.asked)}", counts, expected)


def check_independent(chain: Chain, along: str, num_draws: int = NUM_DRAWS) -> None:
    """Neighbours along ``seed``, ``position`` or ``index`` are drawn independently.

    Six equal tokens give 36 equally likely pairs.
    """
    row = torch.full((chain.vocab_size,), -torch.inf)
    row[:6] = 0.0
    view = Case(row).view(chain)
    counts = np.zeros((6, 6))
    for number in range(num_draws):
        here = replace(view, seed=7 * number, position=number)
        there = replace(here, **{along: getattr(here, along) + 1})
        counts[chain.draw(row, here).token_id, chain.draw(row, there).token_id] += 1
    _fit("independent", f"along {along}", counts.ravel(), np.full(36, num_draws / 36))


def check_narrowing(chain: Chain, case: Case, num_draws: int = 50) -> None:
    """Where narrowing took away only tokens that were impossible anyway, draws stay."""
    kept = case.expected(chain) > 0
    row = case.logits.masked_fill(torch.from_numpy(~kept), -torch.inf)
    narrow, whole = replace(case, logits=row).view(chain), Case(row).view(chain)
    for position in range(num_draws):
        drawn = [
            chain.draw(row, replace(view, position=position)).token_id for view in (narrow, whole)
        ]
        told = f"narrowing: {dict(case.asked)} changes a draw among the same tokens: {drawn}"
        _require(drawn[0] == drawn[1], told)


def check_chain(chain: Chain, cases: Sequence[Case], num_draws: int = NUM_DRAWS) -> None:
    """All checks; narrowing only as ``top_k``, where the stack has it."""
    check_refusals(chain)
    check_golden_draws(chain)
    for along in ("seed", "position", "index"):
        check_independent(chain, along, num_draws)
    for case in cases:
        check_neutral(chain, case)
        view = case.view(chain)
        for _, member in chain.members:
            if member.active(view.params, view.sampling):
                check_pure(member, case, view)
        check_processed(chain, case)
        check_distribution(chain, case, num_draws)
        if "top_k" in chain.fields:
            check_narrowing(chain, Case(case.logits, {"top_k": 5}))


def _run(transform: Transform, logits: torch.Tensor, view: RowView) -> Any:
    if isinstance(transform, Edit):
        row = logits.clone()
        transform.edit(row, view)
        return _seen(Candidates(row))
    if isinstance(transform, Shape):
        return _seen(transform.shape(Candidates(logits), view))
    assert isinstance(transform, Draw)
    return transform.draw(Candidates(logits), view)


def _seen(candidates: Candidates) -> dict[int, float]:
    pairs = zip(candidates.token_ids().tolist(), candidates.logits.tolist(), strict=True)
    return {token_id: logit for token_id, logit in pairs if logit > -math.inf}


def _check_refused(chain: Chain, name: str, value: Any) -> None:
    try:
        chain.parse(SamplingParams(transforms={name: value}))
    except InvalidRequest as error:
        _require(error.detail.param == name, f"refusals: {name}={value!r} blames another field")
    else:
        _require(False, f"refusals: {name}={value!r} is accepted")


def _fit(check: str, what: str, counts: noise.Floats, expected: noise.Floats) -> None:
    """Chi-square, cells with fewer than 5 expected put together (Wilson-Hilferty)."""
    usual = expected >= 5
    observed = np.append(counts[usual], counts[~usual].sum())
    wanted = np.append(expected[usual], expected[~usual].sum())
    full = wanted >= 1
    square = float(((observed[full] - wanted[full]) ** 2 / wanted[full]).sum())
    freedom = max(int(full.sum()) - 1, 1)
    spread = 2.0 / (9.0 * freedom)
    limit = freedom * (1.0 - spread + DEVIATIONS * math.sqrt(spread)) ** 3
    told = f"{check}: {what} does not fit: chi-square {square:.1f} of {freedom}, limit {limit:.1f}"
    _require(square <= limit, told)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)
