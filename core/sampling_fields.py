"""The request fields that a chain's transforms own, and how their values are read."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from .errors import InvalidRequest, StackError
from .flow import SamplingParams
from .hookspecs.sampler import Field, Transform
from .sampling_limits import check_value

_log = structlog.get_logger(__name__)


class OwnedFields:
    """The table of owned fields of one chain.

    :raises StackError: two plugins own one name, or one owns a name of the core's
    """

    def __init__(self, members: Sequence[tuple[str, Transform]], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.fields: dict[str, tuple[str, Field]] = {}
        self._owners: dict[str, Transform] = {}
        self._warned: set[str] = set()
        for plugin, member in members:
            for field in member.fields:
                self._add(plugin, member, field)

    def fitting(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a model's defaults that are owned and fit, as they were written.

        One that does not fit is named in a warning once: it must not fail every request.
        """
        fit = {}
        for name, (_, field) in self.fields.items():
            value = defaults.get(name)
            if value is None:
                continue
            try:
                self._read(field, value)
            except InvalidRequest as error:
                self._warn(name, str(error))
            else:
                fit[name] = value
        return fit

    def parse(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Values of every owned field: the request's, else the default, else neutral.

        A request's ``None`` means "not given".

        :raises InvalidRequest: nobody owns a field, or its value does not fit
        """
        for name, value in given.items():
            if name not in self.fields and value is not None:
                raise InvalidRequest(self._unknown(name), param=name)
        asked = self.fitting(defaults) if defaults else {}
        asked |= {name: value for name, value in given.items() if value is not None}
        return {
            name: self._read(field, asked[name]) if name in asked else field.neutral
            for name, (_, field) in self.fields.items()
        }

    def _add(self, plugin: str, member: Transform, field: Field) -> None:
        if field.name in self.fields:
            other = self.fields[field.name][0]
            msg = (
                f"samplers: {other!r} and {plugin!r} both own the request field "
                f"{field.name!r}; leave one of them out"
            )
            raise StackError(msg)
        if field.name in SamplingParams.__struct_fields__:
            msg = (
                f"samplers: {plugin!r} owns the request field {field.name!r}, which belongs "
                "to the core; the plugin must name it differently"
            )
            raise StackError(msg)
        self.fields[field.name] = (plugin, field)
        self._owners[field.name] = member

    def _read(self, field: Field, value: Any) -> Any:
        checked = check_value(field, value)
        try:
            return self._owners[field.name].parse(field.name, checked, self.vocab_size)
        except ValueError as error:
            raise InvalidRequest(f"{field.name}: {error}", param=field.name) from error

    def _warn(self, name: str, reason: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.warning("a default of the model is dropped", field=name, reason=reason)

    def _unknown(self, name: str) -> str:
        known = [*self.fields, *SamplingParams.__struct_fields__]
        known.remove("transforms")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"{name}: no sampler of this stack takes this field{hint}"
