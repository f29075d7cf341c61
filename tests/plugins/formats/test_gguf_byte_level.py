"""Byte-level tokenizers out of GGUF metadata give the original tokenizer's ids (case 71)."""

import itertools

import pytest
import regex
import tokenizers
import transformers

from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.plugins.formats.gguf_splits import SPLITS
from enginebay.plugins.formats.gguf_tokenizer import read_text_assets

TOOL = "[TOOL]"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


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
def test_ids_follow_the_definition(trained, pre, pattern, digits, whole, entries, corpus, ranks):
    """Every text of the corpus, against a byte-pair encoder written out by hand."""
    tokenizer = read_text_assets("m.gguf", entries(pre, add_bos_token=False)).tokenizer
    vocabulary = trained.get_vocab()
    for text in corpus(300):
        expected = by_hand(text, vocabulary, ranks, PATTERNS[pattern], digits, whole)
        assert tokenizer.encode(text).ids == expected, text


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_ids_equal_transformers(tmp_path, tiny, pre, entries, corpus):
    """1000 texts against the tokenizer that transformers builds from the same file."""
    metadata = entries(pre, add_bos_token=True)
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
def test_every_text_round_trips(pre, entries, corpus):
    """Decoding gives the text back; qwen2's in composed form."""
    tokenizer = read_text_assets("m.gguf", entries(pre, add_bos_token=False)).tokenizer
    for text in corpus(60, seed=3):
        decoded = tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False)
        expected = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        assert decoded == expected
