"""What every format does once it has a tokenizer: freeze it and describe it."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from enginebay.errors import ModelError
from enginebay.hookspecs.format import TextAssets


def make_text_assets(
    tokenizer: tokenizers.Tokenizer,
    *,
    templates: Mapping[str, str],
    special_tokens: Mapping[str, str],
    eos_token_ids: Iterable[int],
) -> TextAssets:
    """Describe ``tokenizer`` and switch off its truncation and padding.

    ``special_tokens``: by role (``bos_token``); each becomes a control token, as in
    transformers, and the id of ``eos_token`` joins ``eos_token_ids``.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _mark_special(tokenizer, special_tokens)
    ends = list(eos_token_ids)
    if "eos_token" in special_tokens:
        end = tokenizer.token_to_id(special_tokens["eos_token"])
        ends += [] if end is None else [end]
    return TextAssets(
        tokenizer=tokenizer,
        identity=hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
        templates=dict(templates),
        special_tokens=dict(special_tokens),
        special_ids=frozenset(_control_ids(tokenizer)),
        eos_token_ids=tuple(dict.fromkeys(ends)),
    )


def _control_ids(tokenizer: tokenizers.Tokenizer) -> list[int]:
    added = tokenizer.get_added_tokens_decoder()
    return [token_id for token_id, token in added.items() if token.special]


def _mark_special(tokenizer: tokenizers.Tokenizer, special_tokens: Mapping[str, str]) -> None:
    control = set(_control_ids(tokenizer))
    ordinary = {
        token: None  # an ordered set
        for token in special_tokens.values()
        if tokenizer.token_to_id(token) not in (None, *control)
    }
    if ordinary:
        tokenizer.add_special_tokens(
            [tokenizers.AddedToken(token, special=True, normalized=False) for token in ordinary]
        )


def token_ids(where: str, key: str, value: Any) -> tuple[int, ...]:
    """Read an id entry of a configuration: ``None``, an id, or a list of ids.

    :raises ModelError: it is something else; names the file, the key and the value
    """
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
        msg = f"{where}: {key} is {value!r}; it must be a token id or a list of them"
        raise ModelError(msg)
    return tuple(values)
