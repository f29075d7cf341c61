"""Chat templates: chosen by name, compiled once, rendered within bounds."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import jinja2
from jinja2.exceptions import TemplateError, TemplateRuntimeError, TemplateSyntaxError

from enginebay.errors import InvalidRequest, ModelError

from .content_format import ContentFormat, content_format
from .limits import BUDGET, Budget
from .sandbox import UNESCAPED, TemplateEnvironment

_MAX_MESSAGE: Final = 500
_PROBE_SECONDS: Final = 0.5
"""Of processor time, for all probes of a template together."""
_SETTING: Final = "under [options.frontends.hf-chat] in the stack file"


class ChatTemplate:
    """One template, compiled, and what it takes as content of each role."""

    def __init__(
        self,
        source: str,
        compiled: jinja2.Template,
        special_tokens: Mapping[str, str],
        roles: Sequence[str],
        seconds: float,
    ) -> None:
        self.source = source
        self.identity = hashlib.sha256(source.encode()).hexdigest()
        self._compiled = compiled
        self._special_tokens = dict(special_tokens)
        self._seconds = seconds
        probe = partial(self._probe, Budget(min(seconds, _PROBE_SECONDS)))
        self.formats: dict[str, ContentFormat] = {
            role: content_format(probe, role) for role in roles
        }

    def render(
        self, variables: Mapping[str, Any], unescaped: str = "", budget: Budget | None = None
    ) -> str:
        """Render within bounds.

        :param unescaped: characters that ``tojson`` leaves alone
        :param budget: a new one unless given
        :raises InvalidRequest: the template refuses, or can't render, these messages
        """
        spent = BUDGET.set(budget or Budget(self._seconds))
        kept = UNESCAPED.set(unescaped)
        try:
            return self._compiled.render({**self._special_tokens, **variables})
        except TemplateRuntimeError as error:
            raise _invalid(f"the chat template can't render these messages: {error}") from error
        except TemplateError as error:
            raise _invalid(f"the chat template refuses these messages: {error}") from error
        except RecursionError as error:
            raise _invalid("the chat template nests too deeply on these messages") from error
        except Exception as error:
            raise _invalid(f"the chat template can't render these messages: {error}") from error
        finally:
            UNESCAPED.reset(kept)
            BUDGET.reset(spent)

    def _probe(self, budget: Budget, messages: list[dict[str, Any]]) -> str:
        if budget.exhausted:
            raise _invalid("the chat template is too costly to be asked what it takes")
        variables = {"messages": messages, "tools": None, "add_generation_prompt": False}
        return self.render(variables, budget=budget)


class Templates:
    """A model's templates by name."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        default: str,
        roles: Sequence[str],
        seconds: float,
        now: Callable[[], datetime],
    ) -> None:
        environment = TemplateEnvironment(now)
        self._default = default
        self._templates: dict[str, ChatTemplate] = {}
        for name, source in sources.items():
            compiled = _compiled(environment, name, source)
            self._templates[name] = ChatTemplate(source, compiled, special_tokens, roles, seconds)

    def choose(self, *, tools: bool) -> ChatTemplate:
        """The default template, or ``tool_use`` when there are tools and it exists.

        :raises InvalidRequest: there is none; tells how to give one
        """
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if self._default in self._templates:
            return self._templates[self._default]
        if not self._templates:
            raise _invalid(
                f"this model has no chat template; give one with chat_template {_SETTING}, "
                "or send the finished prompt to the completions endpoint"
            )
        names = ", ".join(sorted(self._templates))
        raise _invalid(
            f"this model has no chat template named {self._default!r}, only {names}; "
            f"choose one with default_template {_SETTING}"
        )


def _compiled(environment: TemplateEnvironment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        msg = (
            f"chat template {name!r} is not valid Jinja, line {error.lineno}: {error.message}; "
            f"correct it, or give another with chat_template {_SETTING}"
        )
        raise ModelError(msg) from error


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message[:_MAX_MESSAGE], "messages", "chat_template")
