"""Which layers stay in float: names and patterns, held against a model's layers."""

from collections.abc import Callable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch

from enginebay.errors import StackError
from enginebay.hookspecs.kernel import OpSignature
from enginebay.hookspecs.model import ModelFamily, ModelSpec, Role
from enginebay.hookspecs.quant import PackedLinear


class Selection:
    """The options ``head`` and ``ignore``.

    A pattern is matched with a layer's name as the decoder has it
    (``model.layers.0.self_attn.qkv``) and with those of its projections
    (``model.layers.0.self_attn.q_proj``): what is stacked stays together.
    """

    def __init__(self, ignore: tuple[str, ...], *, float_head: bool) -> None:
        self._ignore = ignore
        self._float_head = float_head
        self._parts: dict[str, tuple[str, ...]] = {}

    def reason(self, name: str, parts: tuple[str, ...], role: Role) -> str:
        """Why a layer stays in float; empty: it doesn't.

        :param parts: its weights' names, when they are known
        """
        known = parts or self._parts.get(name, ())
        names = (name, *(part.removesuffix(".weight") for part in known))
        for pattern in self._ignore:
            if any(fnmatchcase(each, pattern) for each in names):
                return f"matches ignore = {pattern!r}"
        return "head = 'float'" if role == "head" and self._float_head else ""

    def look_at(self, spec: ModelSpec, family: ModelFamily) -> None:
        """Learn a model's layers.

        :raises StackError: a pattern of ``ignore`` matches none of them
        """
        if not self._ignore:
            return
        survey = Survey(spec, family)
        self._parts = survey.parts
        modules = {
            part.removesuffix(".weight") for parts in survey.parts.values() for part in parts
        }
        known = sorted({*survey.parts, *modules})
        for pattern in self._ignore:
            if not any(fnmatchcase(name, pattern) for name in known):
                close = get_close_matches(pattern, known, 1) or known[:1]
                msg = f"quant: ignore has {pattern!r}, which no layer matches; one is {close[0]!r}"
                raise StackError(msg)


class Survey:
    """A builder that only notes which linear layers a decoder asks for."""

    def __init__(self, spec: ModelSpec, family: ModelFamily) -> None:
        self._shapes = {weight.name: weight.shape for weight in family.weights(spec)}
        self.parts: dict[str, tuple[str, ...]] = {}
        family.build(spec, self)

    def tensor(self, name: str) -> torch.Tensor:
        """A shape without bytes."""
        return torch.empty(self._shapes[name], device="meta")

    def keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """There is no ledger here."""
        return tensor

    def linear(self, name: str, parts: tuple[str, ...], role: Role = "linear") -> PackedLinear:
        """Noted."""
        self.parts[name] = parts
        rows = sum(self._shapes[part][0] for part in parts)
        return PackedLinear(name, "float", self._shapes[parts[0]][1], rows)

    def op(self, signature: OpSignature) -> Callable[..., Any]:
        """Never called: nothing is computed."""
        return _nothing

    def program(self, body: Callable[..., None]) -> Callable[..., None]:
        """The layers as they are written."""
        return body


def _nothing(*arguments: Any) -> None:
    msg = "a survey computes nothing"
    raise RuntimeError(msg)
