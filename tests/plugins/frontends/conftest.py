"""Frontends over the tiny byte-level tokenizer, with templates of a test's own."""

import pytest

from enginebay.conformance.frontend_checks import context
from enginebay.conformance.tiny_text import CHAT_TEMPLATE, SPECIALS, tiny_tokenizer
from enginebay.hookspecs.format import TextAssets
from enginebay.hookspecs.frontend import FrontendContext
from enginebay.plugins.frontends import completion, hf_chat

SPECIAL_TOKENS = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2], "pad_token": SPECIALS[0]}


def _context(templates, tokenizer, vocab_size):
    """``templates``: a source, sources by name, or ``None``."""
    spec = context().spec
    made = tokenizer or tiny_tokenizer()
    named = {"default": templates} if isinstance(templates, str) else templates or {}
    added = made.get_added_tokens_decoder()
    text = TextAssets(
        tokenizer=made,
        identity="tokenizer's hash",
        templates=named,
        special_tokens=SPECIAL_TOKENS,
        special_ids=frozenset(each for each, token in added.items() if token.special),
    )
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    size = vocab_size or made.get_vocab_size()
    return FrontendContext(text=text, spec=type(spec)(**fields | {"vocab_size": size}))


@pytest.fixture
def make_chat():
    """Builds the frontend ``hf-chat``; keywords are its options."""

    def make(templates=CHAT_TEMPLATE, tokenizer=None, vocab_size=None, **options):
        made = _context(templates, tokenizer, vocab_size)
        return hf_chat.enginebay_frontend(hf_chat.Options(**options), made)

    return make


@pytest.fixture
def make_completion():
    """Builds the frontend ``completion``."""

    def make(tokenizer=None, vocab_size=None):
        made = _context(None, tokenizer, vocab_size)
        return completion.enginebay_frontend(completion.Options(), made)

    return make
