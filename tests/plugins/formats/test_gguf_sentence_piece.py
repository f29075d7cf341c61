"""SentencePiece tokenizers out of GGUF metadata (case 71)."""

import itertools
import random
import string

import pytest
import transformers

from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.tiny_gguf import write_tiny_gguf
from enginebay.errors import ModelError
from enginebay.plugins.formats.gguf_tokenizer import merges_by_score, read_text_assets

SPACE = "\u2581"
WORDS = ["the", "then", "there", "other", "another", "hello", "yellow", "low", "loaf"]
WORDS += ["banana", "bandana", "aaaa", "abab"]


def vocabulary():
    """Control tokens, 256 bytes, single letters, then pieces of falling score."""
    pieces = dict.fromkeys(
        (SPACE * one + word)[begin:end]
        for word in WORDS
        for one in (0, 1)
        for begin in range(3)
        for end in range(begin + 2, len(word) + 2)
        if end - begin > 1
    )
    pieces |= dict.fromkeys(SPACE * count for count in range(2, 5))
    ordered = random.Random(0).sample(sorted(pieces), len(pieces))
    # Short pieces first, as training makes them, or long ones could never be reached.
    ordered.sort(key=len)
    letters = [SPACE, *string.ascii_letters, *string.digits, *".,'é"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    tokens += [*ordered, *letters, "<tool>"]
    types += [1] * (len(ordered) + len(letters)) + [4]
    scores = [0.0] * 259 + [float(-rank) for rank in range(len(ordered))]
    scores += [float(-len(ordered) - rank) for rank in range(len(letters))] + [-1000.0]
    return tokens, types, scores


TOKENS, TYPES, SCORES = vocabulary()


def entries(**changes):
    table = {
        "model": "llama",
        "pre": None,
        "merges": None,
        "tokens": TOKENS,
        "token_type": TYPES,
        "scores": SCORES,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in table.items()}


def read(**changes):
    table = {key: value for key, value in entries(**changes).items() if value is not None}
    return read_text_assets("m.gguf", table)


def by_hand(text):
    """SentencePiece's BPE by its definition, on one segment without markup."""
    score = {t: s for t, s, kind in zip(TOKENS, SCORES, TYPES, strict=True) if kind == 1}
    units = list(text)
    while True:
        pairs = list(itertools.pairwise(units))
        known = [(-score[a + b], at) for at, (a, b) in enumerate(pairs) if a + b in score]
        if not known:
            break
        at = min(known)[1]
        units[at : at + 2] = ["".join(units[at : at + 2])]
    ids = []
    for unit in units:
        spelled = [unit] if unit in score else [f"<0x{byte:02X}>" for byte in unit.encode()]
        ids += [TOKENS.index(each) for each in spelled]
    return ids


def corpus(count):
    draw = random.Random(1)
    pieces = [
        *WORDS,
        "Hello",
        "a",
        "é",
        "Café",
        "😊",
        "漢字",
        "12",
        "\t",
        "\n",
        " ",
        "  ",
        " " * 50,
    ]
    return ["".join(draw.choices(pieces, k=draw.randint(0, 8))) for _ in range(count)]


@pytest.mark.parametrize("prefix", [True, False])
def test_ids_follow_the_definition(prefix):
    """1000 texts against an encoder written out by hand, with and without the prefix."""
    tokenizer = read(add_space_prefix=prefix, add_bos_token=False).tokenizer
    for text in corpus(1000):
        spelled = (" " if prefix and text else "") + text
        assert tokenizer.encode(text).ids == by_hand(spelled.replace(" ", SPACE)), repr(text)


def test_ids_equal_transformers(tmp_path):
    """Texts that begin with a letter, against transformers reading the same file."""
    folder = write_tiny(tmp_path / "tiny")
    path = write_tiny_gguf(tmp_path / "m.gguf", folder, entries=entries())
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    tokenizer = read().tokenizer
    for text in corpus(300):
        if text and text[0].isalpha():
            assert tokenizer.encode(text).ids == reference(text).input_ids, repr(text)


def test_every_text_round_trips():
    """Byte fallback keeps what no piece spells; the prefix is taken off again."""
    for prefix in (True, False):
        tokenizer = read(add_space_prefix=prefix).tokenizer
        for text in corpus(200):
            assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_prefix_follows_control_tokens():
    """Each segment between control tokens gets its own prefix; markup stays whole."""
    tokenizer = read().tokenizer
    assert tokenizer.encode("</s>the<tool>").tokens == ["<s>", "</s>", SPACE + "the", "<tool>"]
    assert tokenizer.encode("<s").tokens[-2:] == ["<0x3C>", "s"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({}, [1]), ({"add_bos_token": False}, []), ({"add_eos_token": True}, [1, 2])],
)
def test_bos_and_eos(flags, expected):
    """BOS is added unless the file says otherwise, EOS only when it says so."""
    assert read(**flags).tokenizer.encode("").ids == expected


def test_special_ids():
    """Control tokens, and those that have a role."""
    assets = read()
    assert assets.special_ids == {0, 1, 2}
    assert assets.eos_token_ids == (2,)
    assert assets.special_tokens["unk_token"] == "<unk>"


def test_merges_leave_out_markup():
    """Control tokens and bytes are never made by merging letters."""
    merges = merges_by_score(["<", "s", "<s", "<s>", ">", "s>"], [1, 1, 1, 3, 1, 1], [0.0] * 6)
    assert merges == [("<", "s"), ("s", ">")]


def test_scores_are_required():
    """Without scores nothing says what is merged first."""
    with pytest.raises(ModelError, match="scores has 0 entries"):
        read(scores=None)
