"""Stop strings: first match across tokens, held beginnings, chunking, minimum tokens."""

import random

import pytest

from enginebay.conformance.text_families import byte_fallback
from enginebay.conformance.tiny_text import tiny_tokenizer
from enginebay.hookspecs.detokenizer import DetokenizerContext, Piece
from enginebay.hookspecs.format import TextAssets
from enginebay.plugins.detokenizers import hf
from enginebay.plugins.detokenizers.stops import StopGate

MELTING = "\U0001fae0"


def chain(*pieces):
    """A detokenizer over a tokenizer that has ``pieces`` as tokens, and their ids."""
    plain = {piece: tiny_tokenizer().encode(piece).ids for piece in pieces}
    added = [piece for piece, ids in plain.items() if len(ids) != 1]
    known = {piece: 300 + place for place, piece in enumerate(added)}
    text = TextAssets(
        tokenizer=tiny_tokenizer(added), identity="x", special_ids=frozenset({0, 1, 2})
    )
    made = hf.enginebay_detokenizer(hf.Options(), DetokenizerContext(text=text))
    return made, [known.get(piece, plain[piece][0]) for piece in pieces]


def byte_run(data):
    """A byte-fallback detokenizer, and the ids of single bytes."""
    text = byte_fallback()
    made = hf.enginebay_detokenizer(hf.Options(), DetokenizerContext(text=text))
    return made, [text.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]


def run(pieces, *stops, include=False):
    """(texts of the pieces up to the stop, the stop) of a chain of tokens."""
    made, ids = chain(*pieces)
    stream = made.open((), stop=stops, include_stop=include)
    sent = []
    for each in ids:
        piece = stream.feed(each)
        sent.append(piece.text)
        if piece.stop is not None:
            assert stream.flush() == ""
            return sent, piece.stop
    return [*sent, stream.flush()], None


def test_stop_across_tokens():
    """A stop string that spans tokens is found and its beginning never sent (case 7)."""
    pieces = ["alpha", " be", "ta g", "amma"]
    assert run(pieces, "beta gamma") == (["alpha", " ", "", ""], "beta gamma")
    assert run(pieces, "beta gamma", include=True)[0] == ["alpha", " be", "ta g", "amma"]


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stop"),
    [
        (["X.Y"], ["."], "X", "."),
        (["X.Y"], ["Y", "."], "X", "."),
        (["xabc"], ["ab", "abc"], "x", "ab"),
        (["xabc"], ["abc", "ab"], "x", "ab"),
        (["xabc"], ["abc", "bc"], "x", "abc"),
        (["END", " more"], ["END"], "", "END"),
        (["aab", "aab", "aac"], ["aabaac"], "aab", "aabaac"),
        (["no", " stop"], ["stopping"], "no stop", None),
        (["a", "b"], [], "ab", None),
        (["a", "b"], [""], "ab", None),
        (["a", "b"], ["", "b"], "a", "b"),
    ],
)
def test_where_text_is_cut(pieces, stops, text, stop):
    """The match that ends first cuts; of those that end together the longest."""
    sent, found = run(pieces, *stops)
    assert ("".join(sent), found) == (text, stop)
    shown, _ = run(pieces, *stops, include=True)
    assert "".join(shown) == text + (stop or "")


def test_held_text_is_released_at_once():
    """What can't be a stop string's beginning any more leaves with the next token."""
    assert run(["a be", "ta", "x", " be"], "beta gamma") == (["a ", "", "betax", " ", "be"], None)


def test_stop_at_special_token_boundary():
    """A control token between two parts of a stop string does not hide it."""
    made, (first, last) = chain("EN", "D!")
    stream = made.open((), stop=("END",))
    assert [stream.feed(each).stop for each in (first, 2, last)] == [None, None, "END"]


def test_stop_does_not_reach_into_the_prompt():
    """A stop string that begins in the prompt is not one."""
    made, (first, last) = chain("EN", "D")
    assert made.open((first,), stop=("END",)).feed(last) == Piece(text="D")


def test_nothing_after_a_stop():
    """After its stop string a stream gives no text, whatever it is fed."""
    made, (stop, more) = chain("END", "x")
    stream = made.open((), stop=("END",))
    assert stream.feed(stop).stop == "END"
    assert (stream.feed(more), stream.flush()) == (Piece(), "")


def test_minimum_tokens():
    """A match counts if its last token may stop, wherever it began (case 10)."""
    made, ids = chain("a\n", "b\n", "\n", "c")
    for first, expected in ((0, "a"), (1, "a\nb"), (2, "a\nb\n"), (3, "a\nb\n\nc")):
        stream, sent = made.open((), stop=("\n",)), ""
        for place, each in enumerate(ids):
            piece = stream.feed(each, may_stop=place >= first)
            sent += piece.text
            if piece.stop:
                break
        assert sent + stream.flush() == expected
    stream = made.open((), stop=("\n\n",))
    pieces = [stream.feed(each, may_stop=place == 2) for place, each in enumerate(ids[:3])]
    assert [piece.text for piece in pieces] == ["a", "\nb", ""]
    assert pieces[-1].stop == "\n\n"


def test_text_of_early_tokens_is_not_held():
    """A whole stop string in a token that may not stop is text like any other."""
    made, (word, _) = chain("END", "x")
    stream = made.open((), stop=("END", "ENDLESS"))
    assert stream.feed(word, may_stop=False) == Piece()
    assert stream.feed(word, may_stop=False) == Piece(text="END")
    assert stream.flush() == "END"


def test_stop_inside_a_byte_run():
    """A stop string of byte tokens is found with its last byte, before the run ends."""
    made, ids = byte_run((MELTING * 2).encode())
    for first, where in ((0, 0), (4, 1)):
        stream, sent = made.open((), stop=(MELTING,)), ""
        for place, each in enumerate(ids):
            piece = stream.feed(each, may_stop=place >= first)
            sent += piece.text
            if piece.stop:
                break
        assert (place, sent) == (4 * where + 3, MELTING * where)


def test_run_that_may_not_stop():
    """A byte run that may not stop does not stop in the token that ends it."""
    made, ids = byte_run(MELTING.encode())
    word = byte_fallback().tokenizer.token_to_id("the")
    stream = made.open((), stop=(MELTING,))
    assert [stream.feed(each, may_stop=False).text for each in ids] == [""] * 4
    assert stream.feed(word) == Piece(text=MELTING + "the")


def test_run_is_not_matched_twice():
    """Text looked at while its run was open counts once when the run has ended."""
    made, ids = byte_run("\u8a9e".encode())
    word = byte_fallback().tokenizer.token_to_id("the")
    stream = made.open((), stop=("\u8a9e\u8a9ethe",))
    assert "".join(stream.feed(each).text for each in (*ids, word)) == "\u8a9ethe"


def test_stop_in_a_run_past_its_limit():
    """A run too long to wait for its end still stops at the character that ends a stop."""
    text = byte_fallback()
    made = hf.enginebay_detokenizer(hf.Options(max_byte_run=0), DetokenizerContext(text=text))
    stream = made.open((), stop=("\u8a9e",))
    pieces = [
        stream.feed(text.tokenizer.token_to_id(f"<0x{byte:02X}>"))
        for byte in "\u8a00\u8a9e".encode()
    ]
    assert [piece.text for piece in pieces] == ["", "", "\u8a00", "", "", ""]
    assert pieces[-1].stop == "\u8a9e"


def test_every_chunking_gives_the_same():
    """How text is cut into tokens changes neither the text nor the stop."""
    noise = random.Random(7)
    for _ in range(400):
        text = "".join(noise.choices("ab", k=24))
        stops = tuple("".join(noise.choices("ab", k=noise.randint(1, 6))) for _ in range(3))
        ends = [(k, stop) for k in range(25) for stop in stops if text[:k].endswith(stop)]
        first = min((k for k, _ in ends), default=24)
        longest = max((stop for k, stop in ends if k == first), key=len, default=None)
        expected = text[: first - len(longest or "")], longest
        for _ in range(4):
            assert _through_gate(text, stops, noise) == expected


def _through_gate(text, stops, noise):
    gate, sent = StopGate(stops, include_stop=False), ""
    while text:
        size = noise.randint(1, 5)
        piece = gate.push(text[:size], may_stop=True)
        text, sent = text[size:], sent + piece.text
        if piece.stop is not None:
            return sent, piece.stop
    return sent + gate.flush(), None


def test_long_stop_strings_cost_what_they_match():
    """A stop string's failure table grows as far as text has matched, no further."""
    stop = "a" * 1_000_000 + "b"
    gate = StopGate((stop,), include_stop=False)
    for _ in range(200):
        assert gate.push("aaaaa", may_stop=True).text == ""
    assert gate.push("x", may_stop=True).text == "a" * 1_000 + "x"
    (needle,) = gate._scanner._needles
    assert len(needle._borders) <= 1_002
