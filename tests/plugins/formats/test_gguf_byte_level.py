"""Byte-level tokenizers out of GGUF metadata give the original tokenizer's ids (case 71)."""

import itertools
import json
import random

import pytest
import regex
import tokenizers
import transformers
from structlog.testing import capture_logs
from tokenizers import models, pre_tokenizers, trainers

from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.errors import ModelError
from enginebay.plugins.formats.gguf_splits import SPLITS
from enginebay.plugins.formats.gguf_tokenizer import read_text_assets

PIECES = [
    *["the", "quick", "brown", "Fox", "jumps", "over", "LAZY", "dogs", "isn't", "I'LL"],
    *["we'Ve", "HTTPServer", "parseJSON", "naïve"],
    *["Café", "déjà", "vu — 123", "😊", "🫠", "漢字かな", "हिन्दी १२३", "ﬁ", "e\u0301", "²³½", "Ⅷ"],
    *["\t", "\n", "\n\n  ", "\r\n", "  ", " " * 50, "\u00a0", "\u2003x", "", "'s", "''", "...!?"],
    *["1234567", "3.14", "a1b2", "x_y=z[0];", "</s> x", "<|im_start|>", "##", "//\n"],
]
TOOL = "[TOOL]"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def corpus(count, seed=0, pieces=(*PIECES, TOOL)):
    """Texts that mix scripts, digits, punctuation, blanks and markup."""
    draw = random.Random(seed)
    return [
        "".join(draw.choice(["", "", " ", "  "]) + draw.choice(pieces) for _ in range(size))
        for size in (draw.randint(1, 9) for _ in range(count))
    ]


@pytest.fixture(scope="module")
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
    tokenizer.train_from_iterator(corpus(1500, seed=1, pieces=PIECES), trainer)
    return tokenizer


def entries(trained, pre, **changes):
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("bytes") / "tiny")


PATTERNS = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-bpe": (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "deepseek-r1-qwen": (
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|"
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
SPELLING = {
    **{chr(b): chr(b) for b in (*range(33, 127), *range(161, 173), *range(174, 256))},
    **{chr(b): chr(256 + i) for i, b in enumerate((*range(33), *range(127, 161), 173))},
}


def by_hand(text, vocabulary, ranks, pattern, digits, whole):
    """Ids by the definition: cut, spell in byte letters, join the best-ranked neighbours."""
    ids = []
    for part in regex.split("(" + "|".join(map(regex.escape, [*SPECIALS, TOOL])) + ")", text):
        if part in (*SPECIALS, TOOL):
            ids.append(vocabulary.get(part, len(vocabulary)))
            continue
        pieces = regex.findall(r"\p{N}|\P{N}+", part) if digits else [part]
        for word in (word for piece in pieces for word in regex.findall(pattern, piece)):
            spelled = "".join(SPELLING[chr(byte)] for byte in word.encode())
            ids += [vocabulary[unit] for unit in join(spelled, ranks, vocabulary, whole)]
    return ids


def join(word, ranks, vocabulary, whole):
    if whole and word in vocabulary:
        return [word]
    units = list(word)
    while len(units) > 1:
        scored = [(ranks.get(pair, 1e9), at) for at, pair in enumerate(itertools.pairwise(units))]
        rank, at = min(scored)
        if rank == 1e9:
            break
        units[at : at + 2] = ["".join(units[at : at + 2])]
    return units


@pytest.mark.parametrize(
    ("pre", "pattern", "digits", "whole"),
    [
        ("gpt-2", "gpt-2", False, False),
        ("smollm", "gpt-2", True, False),
        ("llama-bpe", "llama-bpe", False, True),
        ("smaug-bpe", "llama-bpe", False, False),
        ("deepseek-r1-qwen", "deepseek-r1-qwen", False, False),
    ],
)
def test_ids_follow_the_definition(trained, pre, pattern, digits, whole):
    """Every text of the corpus, against a byte-pair encoder written out by hand."""
    tokenizer = read_text_assets("m.gguf", entries(trained, pre, add_bos_token=False)).tokenizer
    vocabulary = trained.get_vocab()
    ranks = {tuple(pair): rank for rank, pair in enumerate(merges_of(trained.model))}
    for text in corpus(300):
        expected = by_hand(text, vocabulary, ranks, PATTERNS[pattern], digits, whole)
        assert tokenizer.encode(text).ids == expected, text


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_ids_equal_transformers(tmp_path, trained, tiny, pre):
    """1000 texts against the tokenizer that transformers builds from the same file."""
    metadata = entries(trained, pre, add_bos_token=True)
    path = write_tiny_gguf(tmp_path / "m.gguf", tiny, entries=metadata)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    backend = reference.backend_tokenizer
    if pre == "qwen2":
        # Qwen 2's tokenizer composes text first; transformers' conversion leaves it out.
        backend.normalizer = tokenizers.normalizers.NFC()
    tokenizer = read_text_assets(path, metadata).tokenizer
    # The conversion does not take whole words from the vocabulary, as Llama 3's does.
    ignoring = pre in ("llama-bpe", "tekken")
    backend.model.ignore_merges = ignoring
    for text in corpus(1000, seed=2):
        assert tokenizer.encode(text).ids == reference(text).input_ids, text


@pytest.mark.parametrize("pre", SPLITS)
def test_every_text_round_trips(trained, pre):
    """Decoding gives the text back; qwen2's in composed form."""
    tokenizer = read_text_assets("m.gguf", entries(trained, pre, add_bos_token=False)).tokenizer
    for text in corpus(60, seed=3):
        decoded = tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
        expected = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        assert decoded == expected


def test_control_and_user_defined_tokens(trained):
    """Both stay whole in text; only control tokens are dropped when decoding."""
    assets = read_text_assets("m.gguf", entries(trained, "gpt-2"))
    number = len(trained.get_vocab())
    ids = assets.tokenizer.encode("[TOOL]<|im_end|>").ids
    assert ids == [number, 2]
    assert assets.special_ids == {0, 1, 2}
    assert assets.tokenizer.decode(ids) == TOOL


def test_padding_entries_have_no_text(trained):
    """An unused entry is no token that text could reach."""
    tokenizer = read_text_assets("m.gguf", entries(trained, "llama-bpe")).tokenizer
    assert tokenizer.token_to_id("[PAD1]") is None
    assert len(tokenizer.encode("[PAD1]", add_special_tokens=False).ids) > 1


@pytest.mark.parametrize(
    ("pre", "flags", "framed"),
    [
        ("smollm", {}, [7]),
        ("llama-bpe", {}, [1, 7]),
        ("tekken", {}, [1, 7]),
        ("llama-bpe", {"add_bos_token": False}, [7]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [1, 7, 2]),
        ("gpt-2", {"add_bos_token": True, "bos_token_id": None}, [7]),
    ],
)
def test_bos_and_eos(trained, pre, flags, framed):
    """Case 43: the file's flags, else the habit of the kind."""
    tokenizer = read_text_assets("m.gguf", entries(trained, pre, **flags)).tokenizer
    text = tokenizer.decode([7])
    assert tokenizer.encode(text).ids == framed


def test_special_tokens_templates_and_ends(trained):
    """Roles, named templates, and both ids that end a turn."""
    table = entries(trained, "smollm", eot_token_id=0, padding_token_id=2)
    table |= {
        "tokenizer.chat_template": "A",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "B",
    }
    assets = read_text_assets("m.gguf", table)
    assert assets.templates == {"default": "A", "tool_use": "B"}
    assert assets.eos_token_ids == (2, 0)
    assert assets.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
    }


def test_identity_follows_the_split(trained):
    """Another way to cut text is another tokenizer."""
    first, again, other = (
        read_text_assets("m.gguf", entries(trained, pre)).identity
        for pre in ("smollm", "starcoder", "gpt-2")
    )
    assert first == again != other


@pytest.mark.parametrize("pre", ["grok-9", None])
def test_unknown_split_is_refused_with_the_fix(trained, pre):
    """Other words would give other ids without any error, so the start stops."""
    table = {**entries(trained, pre), "general.architecture": "llama"}
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre is .*set `pre_tokenizer`"):
        read_text_assets("m.gguf", table)
    assert read_text_assets("m.gguf", table, "smollm").identity


def test_missing_split_of_qwen_is_known(trained):
    """All Qwen 2 and 3 models cut text alike."""
    table = {**entries(trained, None), "general.architecture": "qwen2"}
    known = read_text_assets("m.gguf", entries(trained, "qwen2"))
    assert read_text_assets("m.gguf", table).identity == known.identity


def test_default_split_warns(trained):
    """'default' says nothing certain: it is taken as GPT-2's, and said so."""
    with capture_logs() as logs:
        assets = read_text_assets("m.gguf", entries(trained, "default"))
    assert assets.identity == read_text_assets("m.gguf", entries(trained, "gpt-2")).identity
    assert "default" in logs[0]["event"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
        ({"tokens": None}, "0 tokens"),
        ({"token_type": [1]}, "1 types"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["abc"]}, "merges is missing or garbled"),
        ({"merges": ["nothere neither"]}, "don't fit together"),
        ({"eos_token_id": 99999}, "eos_token_id is 99999"),
    ],
)
def test_garbled_entries_are_named(trained, changes, message):
    """Each entry that does not fit stops the start with file and key."""
    with pytest.raises(ModelError, match=message) as caught:
        read_text_assets("m.gguf", entries(trained, "smollm", **changes))
    assert "m.gguf" in str(caught.value)
