"""Frontend for chat: messages go through the model's template and its tokenizer.

The rendered text is tokenized without adding special tokens: a template writes its own
beginning-of-sequence token. Control-token text in what a caller sent stays plain text
unless ``control_text`` says otherwise. Content given as parts reaches a template that
takes only strings as their texts joined by ``joiner``. Continuing the final message
implies that no header for a new one is added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from enginebay import hookimpl
from enginebay.flow import ChatPrompt, EncodedPrompt, Prompt, Request
from enginebay.hookspecs.format import TextAssets
from enginebay.hookspecs.frontend import Frontend, FrontendContext, Parser

from .chat_settings import clock, sources
from .complaint import refuse
from .content import ContentParser
from .content_format import fit_content
from .continuation import cut_at_mark, with_mark
from .encoder import TextEncoder
from .messages import ROLES, copied, read_messages, read_tools
from .shield import Shield, private_characters, strings
from .templates import ChatTemplate, Templates

CONTRACT = (1, 0)

_OWN_NAMES: Final = ("messages", "tools", "add_generation_prompt", "chat_template")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the frontend ``hf-chat``."""

    chat_template: str | None = None
    """A file's path, or the Jinja text itself; replaces the model's own templates."""
    default_template: str = "default"
    """Which of a model's named templates is used; ``tool_use`` is, when there are tools
    and the model has it."""
    joiner: str = "\n"
    """Stands between text parts when a template takes content only as a string."""
    control_text: Literal["text", "tokens"] = "text"
    """What control-token text inside messages becomes. ``tokens``, as in transformers,
    lets every caller write turns of any role."""
    roles: tuple[str, ...] = ROLES
    """Roles that a message may have."""
    date: str | None = None
    """ISO date and time that ``strftime_now`` sees instead of the clock's."""
    render_seconds: float = 1.0
    """Processor time a template may take for one prompt."""


@dataclass(frozen=True)
class Rendered:
    """A prompt as text; ``shields`` stand in it for characters of control text."""

    text: str
    template: ChatTemplate
    shields: dict[str, str] = field(default_factory=dict)


class ChatFrontend:
    """Takes ``chat`` prompts."""

    kinds = ("chat",)

    def __init__(self, options: Options, text: TextAssets, vocab_size: int) -> None:
        self._options = options
        self._identity = text.identity
        self._encoder = TextEncoder(text, vocab_size)
        added = text.tokenizer.get_added_tokens_decoder()
        control = [token.content for each, token in added.items() if each in text.special_ids]
        self._shield = Shield(control if options.control_text == "text" else ())
        self._templates = Templates(
            sources(options.chat_template, options.default_template, text.templates),
            text.special_tokens,
            default=options.default_template,
            roles=options.roles,
            seconds=options.render_seconds,
            now=clock(options.date),
        )

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """:raises InvalidRequest: wrong messages, or ones the template refuses"""
        if not isinstance(prompt, ChatPrompt):
            refuse("messages", "are missing; this frontend takes chat messages")
        try:
            rendered = self.render(prompt)
            if prompt.tools and rendered.text == self.render(_without_tools(prompt)).text:
                refuse("tools", "are not shown to the model by its chat template; leave them out")
        except RecursionError:
            refuse("messages", "are nested too deeply")
        if rendered.shields:
            ids = self._encoder.encode_shielded(rendered.text, rendered.shields, "messages")
        else:
            ids = self._encoder.encode(rendered.text, "messages")
        return EncodedPrompt(
            token_ids=ids, tokenizer=self._identity, template=rendered.template.identity
        )

    def parser(self, request: Request) -> Parser:
        return ContentParser()

    def render(self, prompt: ChatPrompt) -> Rendered:
        """:raises InvalidRequest: wrong messages, or ones the template refuses"""
        messages = read_messages(prompt.messages, self._options.roles)
        tools = read_tools(prompt.tools)
        template = self._templates.choose(tools=tools is not None)
        given: dict[str, Any] = {
            "documents": None,
            **_extra(prompt.template_kwargs),
            "messages": [
                fit_content(each, template.formats[each["role"]], self._options.joiner)
                for each in messages
            ],
            "tools": tools,
            "add_generation_prompt": (
                prompt.add_generation_prompt and not prompt.continue_final_message
            ),
        }
        covers, mark = self._private(given, template, marked=prompt.continue_final_message)
        if covers:
            given = {name: self._shield.cover(value, covers) for name, value in given.items()}
        if mark:
            given["messages"] = with_mark(given["messages"], mark)
        text = template.render(given, unescaped="".join([*covers.values(), mark]))
        text = cut_at_mark(text, mark) if mark else text
        return Rendered(text, template, {cover: initial for initial, cover in covers.items()})

    def _private(
        self, given: Mapping[str, Any], template: ChatTemplate, *, marked: bool
    ) -> tuple[dict[str, str], str]:
        """Characters of this prompt's own: a cover for each initial of control tokens,
        if any string needs one, and the mark behind the final message."""
        initials = ""
        if any(self._shield.finds(text) for text in strings(given)):
            initials = self._shield.initials
        if not initials and not marked:
            return {}, ""
        present = "".join([*strings(given), template.source])
        *covers, mark = private_characters(present, len(initials) + 1)
        return dict(zip(initials, covers, strict=True)), mark if marked else ""


def _extra(template_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    for name in template_kwargs:
        if name in _OWN_NAMES:
            refuse(f"chat_template_kwargs.{name}", "can't be set: it is a field of its own")
    extra: dict[str, Any] = copied(template_kwargs)
    return extra


def _without_tools(prompt: ChatPrompt) -> ChatPrompt:
    return msgspec.structs.replace(prompt, tools=None)


@hookimpl
def enginebay_frontend(options: Options, context: FrontendContext) -> Frontend:
    """Build the chat frontend: compile the templates and see what they take."""
    return ChatFrontend(options, context.text, context.spec.vocab_size)
