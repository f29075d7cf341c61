"""A byte-level vocabulary trained on the spot, for the GGUF tokenizer tests."""

import json
import random

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

PIECES = [
    *["the", "quick", "brown", "Fox", "jumps", "over", "LAZY", "dogs", "isn't", "I'LL"],
    *["we'Ve", "HTTPServer", "parseJSON", "naïve"],
    *["Café", "déjà", "vu — 123", "😊", "🫠", "漢字かな", "हिन्दी १२३", "ﬁ", "e\u0301", "²³½", "Ⅷ"],
    *["\t", "\n", "\n\n  ", "\r\n", "  ", " " * 50, "\u00a0", "\u2003x", "", "'s", "''", "...!?"],
    *["1234567", "3.14", "a1b2", "x_y=z[0];", "</s> x", "<|im_start|>", "##", "//\n"],
]
TOOL = "[TOOL]"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_corpus(count, seed=0, pieces=(*PIECES, TOOL)):
    """Texts that mix scripts, digits, punctuation, blanks and markup."""
    draw = random.Random(seed)
    return [
        "".join(draw.choice(["", "", " ", "  "]) + draw.choice(pieces) for _ in range(size))
        for size in (draw.randint(1, 9) for _ in range(count))
    ]


@pytest.fixture(scope="session")
def trained():
    """Merges learned over words of every split, so that each split shows in the ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(r"\S+\s*|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(make_corpus(1500, seed=1, pieces=PIECES), trainer)
    return tokenizer


def make_entries(trained, pre, **changes):
    vocabulary = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    types = [3 if token in SPECIALS else 1 for token, _ in vocabulary]
    model = trained.model
    merges = [" ".join(pair) for pair in merges_of(model)]
    table = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*(token for token, _ in vocabulary), TOOL, "[PAD1]"],
        "token_type": [*types, 4, 5],
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in table.items() if value is not None}


def merges_of(model):
    return json.loads(tokenizers.Tokenizer(model).to_str())["model"]["merges"]


@pytest.fixture(scope="session")
def corpus():
    """Texts that mix scripts, digits, punctuation, blanks and markup: ``corpus(count, seed)``."""
    return make_corpus


@pytest.fixture(scope="session")
def entries(trained):
    """GGUF metadata of the vocabulary: ``entries(pre, **changes)``; ``None`` leaves one out."""
    return lambda pre, **changes: make_entries(trained, pre, **changes)


@pytest.fixture(scope="session")
def ranks(trained):
    """The merges, each with its rank."""
    return {tuple(pair): rank for rank, pair in enumerate(merges_of(trained.model))}
