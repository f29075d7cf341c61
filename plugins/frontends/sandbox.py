"""The Jinja environment of chat templates: what transformers gives them, and bounds.

A template comes with a model and is run as code, so it runs in Jinja's immutable
sandbox. Helpers, whitespace rules and the ``generation`` tag are those that
``apply_chat_template`` documents.
"""

import json
import re
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from .guards import check_call, check_operation, guarded_filters
from .limits import BUDGET, joined, printable
from .metering import Metering

UNESCAPED: Final[ContextVar[str]] = ContextVar("UNESCAPED", default="")
"""Characters of the running request that ``tojson`` must never write as ``\\uXXXX``."""

_MAX_INDENT: Final = 64
_MAX_DATE_FORMAT: Final = 200


class GenerationTag(Extension):
    """``{% generation %}``: marks the model's own words for training; here it only
    shows its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("show")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def show(self, caller: Callable[[], str]) -> str:
        return caller()


class TemplateNamespace(Namespace):
    """A namespace whose attributes can't pose as Python's own."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace takes no attribute {name!r}")


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles and runs chat templates."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    concat = staticmethod(joined)

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, loopcontrols],
            finalize=printable,
        )
        self._now = now
        self.filters |= guarded_filters(self.filters)
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = self.strftime_now
        self.globals["namespace"] = TemplateNamespace
        del self.globals["lipsum"]

    def strftime_now(self, form: str) -> str:
        """Today, in the machine's own time zone."""
        if len(form) > _MAX_DATE_FORMAT or re.search(r"\d{3,}", form):
            raise SecurityError(f"strftime_now takes no format like {form[:40]!r}")
        return self._now().strftime(form)

    def step(self) -> str:
        """Called in every loop iteration and macro."""
        BUDGET.get().step()
        return ""

    def joined_text(self, *parts: Any) -> str:
        """``a ~ b``."""
        return joined([str(printable(part)) for part in parts])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        check_call(__obj, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        Metering().visit(tree)
        return tree


def raise_exception(message: str) -> None:
    """What a template says when it can't render these messages."""
    raise TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's own filter."""
    if isinstance(indent, int) and indent > _MAX_INDENT:
        raise SecurityError(f"tojson takes no indent of more than {_MAX_INDENT}")
    text = json.dumps(
        printable(value),
        ensure_ascii=False,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    if not ensure_ascii:
        return text
    kept = re.escape(UNESCAPED.get())
    return re.sub(f"[^\\x00-\\x7e{kept}]", lambda match: json.dumps(match[0])[1:-1], text)
