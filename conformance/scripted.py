"""A checkpoint that says what a test wants: each token is followed by a chosen one.

It is Llama-shaped. Scripted tokens have embeddings that are axes of the hidden space,
attention and MLP write zeros, and the head sends each axis to the chosen next token,
so logits depend on the last token alone. Never for cache tests: its attention does
nothing.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch

from .tiny import tiny_config, tiny_shapes, write_model
from .tiny_text import CHAT_TEMPLATE, EOS_ID, tiny_tokenizer, write_text


def chain(*token_ids: int) -> dict[int, int]:
    """The script in which each of ``token_ids`` is followed by the next one.

    :raises ValueError: a token would need two followers; give the second occurrence a
        piece of its own (``tiny_tokenizer(pieces)``)
    """
    script: dict[int, int] = {}
    for token_id, follower in itertools.pairwise(token_ids):
        if script.setdefault(token_id, follower) != follower:
            msg = f"token {token_id} is followed by both {script[token_id]} and {follower}"
            raise ValueError(msg)
    return script


def write_scripted(
    folder: str | Path,
    next_token: Mapping[int, int],
    *,
    otherwise: int = EOS_ID,
    margin: float = 20.0,
    tokenizer: tokenizers.Tokenizer | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    generation: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write a model folder whose greedy continuation follows ``next_token``.

    :param next_token: follower of each scripted token
    :param otherwise: follower of every other token
    :param margin: logit of the follower; every other token's logit is 0
    :param tokenizer: the tiny one unless given; it sets the vocabulary's size
    :param generation: ``generation_config.json``; by default the EOS ids of the config
    :param overrides: entries of ``config.json``
    :return: the folder
    """
    chosen = tokenizer or tiny_tokenizer()
    overrides.setdefault("vocab_size", chosen.get_vocab_size())
    _check_ids([*next_token, *next_token.values(), otherwise], overrides["vocab_size"])
    # A multiple of 32, so that blocked quantization schemes take it as well.
    hidden = 32 * math.ceil((len(next_token) + 1) / 32)
    shape = {"hidden_size": hidden, "num_attention_heads": 2, "head_dim": 16}
    config = tiny_config(**{**shape, "num_key_value_heads": 1, "rms_norm_eps": 1e-6, **overrides})
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_model(target, config, _tensors(config, next_token, otherwise, margin), generation)
    write_text(target, chosen, chat_template)
    return target


def _check_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            msg = f"token id {token_id} is outside the vocabulary of {vocab_size}"
            raise ValueError(msg)


def _tensors(
    config: dict[str, Any], next_token: Mapping[int, int], otherwise: int, margin: float
) -> dict[str, torch.Tensor]:
    tensors = {
        name: torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
        for name, shape in tiny_shapes({**config, "tie_word_embeddings": False}).items()
    }
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    hidden = embedding.shape[1]
    embedding[:, hidden - 1] = 1.0
    # The final RMS norm scales an axis vector by the root of the width.
    height = margin / math.sqrt(hidden)
    head[otherwise, hidden - 1] = height
    for axis, (token_id, follower) in enumerate(next_token.items()):
        embedding[token_id] = torch.eye(hidden)[axis]
        head[follower, axis] = height
    return tensors
