"""The sampler chain of a stack: how one row of logits becomes a token."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import torch

from .candidates import Candidates, first_best, top_of
from .errors import EnginebayError, StackError
from .flow import SamplingParams
from .hookspecs.sampler import Draw, Edit, Field, Greedy, RowView, Shape, Transform
from .sampling_fields import OwnedFields

_Member = TypeVar("_Member", bound=Transform)
_STAGES: Final[dict[str, type]] = {"edit": Edit, "shape": Shape, "draw": Draw}


class RowError(EnginebayError):
    """This row alone can't be drawn from: not finite, or every token is banned."""


class TransformError(EnginebayError):
    """A member failed on a row: that request alone ends with an error, naming it."""

    def __init__(self, plugin: str, cause: Exception) -> None:
        super().__init__(f"the sampler plugin {plugin!r} failed on this request")
        self.plugin = plugin
        self.cause = cause


class Drawn(NamedTuple):
    """One drawn token."""

    token_id: int
    candidates: Candidates | None = None
    """What it was drawn from, when the request wants processed log-probabilities."""


class Chain:
    """The transforms of a stack, in their order: edits, shapes, one draw.

    :param members: plugin names and what they built
    :raises StackError: the stages stand in another order, or a field has two owners
    """

    def __init__(self, members: Sequence[tuple[str, Transform]], vocab_size: int) -> None:
        _check_stages(members)
        self.members = tuple(members)
        self.vocab_size = vocab_size
        self._owned = OwnedFields(members, vocab_size)
        self._edits = [(name, member) for name, member in members if isinstance(member, Edit)]
        self._shapes = [(name, member) for name, member in members if isinstance(member, Shape)]
        # Asked of a protocol once here: isinstance is slow for one draw of many.
        self._greedy = {name: member for name, member in self._shapes if isinstance(member, Greedy)}
        self._last = [(name, member) for name, member in members if isinstance(member, Draw)][-1]

    @property
    def fields(self) -> Mapping[str, tuple[str, Field]]:
        """Field name -> (plugin that owns it, its declaration)."""
        return self._owned.fields

    def defaults(self, generation: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling fields of a ``generation_config`` that this chain takes.

        One that does not fit is dropped with one warning: it must not fail every request.
        """
        return self._owned.fitting(generation)

    def parse(
        self, sampling: SamplingParams, defaults: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Values of every owned field, neutral ones included; ``RowView.params``.

        :param defaults: for what the request does not give; held to ``defaults`` above
        :raises InvalidRequest: nobody owns a field, or its value does not fit
        """
        return self._owned.parse(sampling.transforms, defaults or {})

    def greedy(self, params: Mapping[str, Any], sampling: SamplingParams) -> bool:
        """Whether every row of this request is its plain argmax: for ``draw_greedy``.

        False for processed log-probabilities, which need what was drawn from.

        :raises TransformError: a member failed; names it
        """
        if _processed(sampling):
            return False
        if self._active(self._edits, params, sampling):
            return False
        return self._best_only(self._active(self._shapes, params, sampling), params)

    def draw_greedy(self, rows: torch.Tensor) -> list[int | RowError]:
        """What ``draw`` gives for rows (float32 [R, V]) of greedy requests, at once.

        :return: the best token id of each row, of equals the lowest; or the row's error
        """
        tokens, tops = best_of(rows)
        if all(map(math.isfinite, tops)):
            return [*tokens]
        return [_fault(top) or token for token, top in zip(tokens, tops, strict=True)]

    def draw(self, row: torch.Tensor, view: RowView) -> Drawn:
        """Run the active members on one row (float32 [V], which stays as it is).

        :raises RowError: the logits are not finite, or every token is banned
        :raises TransformError: a member failed; names it
        """
        fault = _fault(top_of(row))
        if fault is not None:
            raise fault
        row = self._edit(row, view)
        shapes = self._active(self._shapes, view.params, view.sampling)
        if self._best_only(shapes, view.params):
            candidates = Candidates(row).first()
            token_id = int(candidates.token_ids()[0])
        else:
            candidates = self._shape(shapes, Candidates(row), view)
            token_id = self._pick(candidates, view)
        return Drawn(token_id, candidates if _processed(view.sampling) else None)

    def _edit(self, row: torch.Tensor, view: RowView) -> torch.Tensor:
        active = self._active(self._edits, view.params, view.sampling)
        if not active:
            return row
        row = row.clone()
        for name, member in active:
            try:
                member.edit(row, view)
            except Exception as error:
                raise TransformError(name, error) from error
        fault = _fault(top_of(row), [name for name, _ in active])
        if fault is not None:
            raise fault
        return row

    @staticmethod
    def _shape(
        shapes: Sequence[tuple[str, Shape]], candidates: Candidates, view: RowView
    ) -> Candidates:
        for name, member in shapes:
            try:
                candidates = member.shape(candidates, view)
            except Exception as error:
                raise TransformError(name, error) from error
            if len(candidates) == 0:
                raise TransformError(name, ValueError("it left no candidate"))
        return candidates

    def _pick(self, candidates: Candidates, view: RowView) -> int:
        name, member = self._last
        try:
            token_id = int(member.draw(candidates, view))
        except Exception as error:
            raise TransformError(name, error) from error
        if not 0 <= token_id < self.vocab_size:
            raise TransformError(name, ValueError(f"it drew {token_id}, which is no token id"))
        return token_id

    def _best_only(self, shapes: Sequence[tuple[str, Shape]], params: Mapping[str, Any]) -> bool:
        """The first active shape leaves the best alone: no later member matters then."""
        name = shapes[0][0] if shapes else ""
        if name not in self._greedy:
            return False
        try:
            return self._greedy[name].greedy(params)
        except Exception as error:
            raise TransformError(name, error) from error

    def _active(
        self,
        members: Sequence[tuple[str, _Member]],
        params: Mapping[str, Any],
        sampling: SamplingParams,
    ) -> list[tuple[str, _Member]]:
        active = []
        for name, member in members:
            try:
                if member.active(params, sampling):
                    active.append((name, member))
            except Exception as error:
                raise TransformError(name, error) from error
        return active


def best_of(rows: torch.Tensor) -> tuple[list[int], list[float]]:
    """The best token id of each row [R, V], of equals the lowest, and its logit.

    A NaN counts as the largest of all. On the CPU by NumPy: three calls of torch's take
    longer than the search, when a step has just emptied the caches.
    """
    if rows.device.type != "cpu":
        best = first_best(rows)
        return best.tolist(), rows.gather(1, best.unsqueeze(1)).squeeze(1).tolist()
    values = rows.numpy()
    tokens: list[int] = values.argmax(axis=1).tolist()
    return tokens, [values.item(number, token) for number, token in enumerate(tokens)]


def _processed(sampling: SamplingParams) -> bool:
    return sampling.logprobs is not None and sampling.logprobs_mode == "processed"


def _fault(top: float, edits: Sequence[str] = ()) -> RowError | None:
    """What is wrong with a row whose largest entry, NaN before all, is ``top``."""
    if math.isfinite(top):
        return None
    if top == -math.inf:
        by = f" by {', '.join(edits)}" if edits else " by the model"
        return RowError(f"every token is banned{by}; allow at least one")
    after = f" after {', '.join(edits)}" if edits else ""
    return RowError(f"the logits are not finite{after} (NaN or infinity)")


def _check_stages(members: Sequence[tuple[str, Transform]]) -> None:
    before = ("", "")
    for name, member in members:
        stages = [stage for stage, kind in _STAGES.items() if isinstance(member, kind)]
        if len(stages) != 1:
            found = " and ".join(stages) or "none of them"
            msg = f"samplers: {name!r} must be one of edit, shape, draw; it is {found}"
            raise StackError(msg)
        stage = stages[0]
        order = list(_STAGES)
        if before[1] == "draw":
            msg = (
                f"samplers: {name!r} ({stage}) stands after the draw {before[0]!r}; "
                "a chain has exactly one draw, and it comes last"
            )
            raise StackError(msg)
        if before[1] and order.index(stage) < order.index(before[1]):
            msg = (
                f"samplers: {name!r} ({stage}) stands after {before[0]!r} ({before[1]}); "
                f"put it before: the order is edit, shape, draw"
            )
            raise StackError(msg)
        before = (name, stage)
    if before[1] != "draw":
        last = f"the last is {before[0]!r} ({before[1]})" if before[0] else "the chain is empty"
        msg = f"samplers: the chain must end with a draw; {last}; add 'gumbel'"
        raise StackError(msg)
