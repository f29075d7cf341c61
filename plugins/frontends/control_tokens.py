"""A tokenizer in which control tokens answer to secret names only.

Text such as ``<|im_end|>`` then encodes like any other text, in its context and in one
call, while the places where the template itself wrote a control token are respelled
with that token's name. A name holds 128 random bits: no request can write one.
"""

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

import tokenizers


class ControlTokenizer:
    """A copy of ``tokenizer`` with its control tokens renamed; every id stays the same."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, special_ids: frozenset[int]) -> None:
        secret = secrets.token_hex(16)
        added = tokenizer.get_added_tokens_decoder()
        self._names = {
            token.content: f"<{secret}:{each}>"
            for each, token in added.items()
            if each in special_ids
        }
        self.tokenizer = tokenizers.Tokenizer.from_str(
            json.dumps(_renamed(json.loads(tokenizer.to_str()), self._names))
        )
        longest_first = sorted(self._names, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def spell(self, text: str, shields: Mapping[str, str]) -> str:
        """``text`` with its control tokens renamed and then its shields lifted."""
        renamed = self._control.sub(lambda match: self._names[match[0]], text)
        return renamed.translate({ord(shield): initial for shield, initial in shields.items()})


def _renamed(description: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A tokenizer's JSON with the tokens in ``names`` renamed wherever it lists them."""
    for token in description["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = description["model"]
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(key, key): each for key, each in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(key, key), score] for key, score in vocabulary]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not _makes(pair, names)]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    # What is added around a text, or cut off it, is none of a chat template's business.
    return description | {"post_processor": None, "truncation": None, "padding": None}


def _makes(pair: Any, names: Mapping[str, str]) -> bool:
    left, right = pair.split(" ") if isinstance(pair, str) else pair
    return left + right in names or left in names or right in names
