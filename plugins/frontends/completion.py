"""Frontend for text and token prompts: the completions of old.

A text is encoded as it stands: control-token text in it becomes control tokens, because
a caller who writes a prompt by hand needs them, and the tokenizer adds its own special
tokens unless told not to.
"""

import msgspec

from enginebay import hookimpl
from enginebay.errors import InvalidRequest
from enginebay.flow import EncodedPrompt, Prompt, Request, TextPrompt, TokenPrompt
from enginebay.hookspecs.frontend import Frontend, FrontendContext, Parser

from .complaint import shown
from .content import ContentParser
from .encoder import TextEncoder

CONTRACT = (1, 0)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the frontend ``completion``: none."""


class CompletionFrontend:
    """Takes ``text`` and ``tokens`` prompts."""

    kinds = ("text", "tokens")

    def __init__(self, context: FrontendContext) -> None:
        self._encoder = TextEncoder(context.text, context.spec.vocab_size)
        self._identity = context.text.identity
        self._vocab_size = context.spec.vocab_size

    def encode(self, prompt: Prompt) -> EncodedPrompt:
        """:raises InvalidRequest: empty, not text, or ids that the model does not have"""
        if isinstance(prompt, TextPrompt):
            ids = self._encoder.encode(
                prompt.text, "prompt", add_special_tokens=prompt.add_special_tokens
            )
        elif isinstance(prompt, TokenPrompt):
            ids = self._checked(prompt.token_ids)
        else:
            msg = f"prompt is of type {type(prompt).__name__}; give a text or a list of token ids"
            raise InvalidRequest(msg, "prompt")
        return EncodedPrompt(token_ids=ids, tokenizer=self._identity)

    def parser(self, request: Request) -> Parser:
        return ContentParser()

    def _checked(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        if not token_ids:
            raise InvalidRequest("prompt is empty: give at least one token id", "prompt")
        for place, each in enumerate(token_ids):
            if type(each) is not int or not 0 <= each < self._vocab_size:
                msg = (
                    f"prompt[{place}] is {shown(each)}; token ids of this model are integers "
                    f"from 0 to {self._vocab_size - 1}"
                )
                raise InvalidRequest(msg, "prompt")
        return tuple(token_ids)


@hookimpl
def enginebay_frontend(options: Options, context: FrontendContext) -> Frontend:
    """Build the frontend for text and token prompts."""
    return CompletionFrontend(context)
