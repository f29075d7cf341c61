"""Which characters of the text each token added."""

from enginebay.plugins.sinks.alignment import Aligner


def shown(tokens, text, *, offset=0):
    """(bytes, text, offset) of every token against the whole text."""
    aligner = Aligner(offset=offset)
    for data in tokens:
        aligner.add_token(None, data)
    aligner.add_text(text)
    return [(s.data, s.text, s.offset) for s in aligner.take(final=True)]


def test_a_token_the_text_does_not_show_adds_nothing():
    """A skipped special token in the middle, and an end token."""
    assert shown([b"a", b"<s>", b"b", b"</s>"], "ab") == [
        (b"a", "a", 0),
        (b"", "", 1),
        (b"b", "b", 1),
        (b"", "", 2),
    ]


def test_a_stop_string_cuts_a_token():
    """Case 7: the stop lies inside one token; what follows it is not shown."""
    assert shown([b"ab", b"X.Y", b"z"], "abX") == [
        (b"ab", "ab", 0),
        (b"X", "X", 2),
        (b"", "", 3),
    ]


def test_the_dropped_first_space():
    """Case 4: a SentencePiece text begins without the first token's space."""
    assert shown([b" Hello", b" you"], "Hello you") == [
        (b"Hello", "Hello", 0),
        (b" you", " you", 5),
    ]


def test_offsets_start_behind_what_was_echoed():
    """The generated part of an echoed completion."""
    assert [s[2] for s in shown([b"a", b"b"], "ab", offset=10)] == [10, 11]


def test_tokens_wait_for_held_text():
    """Text held back as a possible stop string: its tokens wait with it."""
    aligner = Aligner()
    aligner.add_token("first", b"al")
    aligner.add_token("second", b"pha")
    aligner.add_text("al")
    assert [s.entry for s in aligner.take()] == ["first"]
    aligner.add_text("ph")
    assert aligner.take() == []
    aligner.add_text("a")
    assert [s.entry for s in aligner.take()] == ["second"]


def test_a_waiting_token_is_read_anew():
    """A token that ends one character and adds another waits with both."""
    aligner = Aligner()
    aligner.add_token("first", b"\xf0\x9f")
    aligner.add_token("second", b"\x8c\xb6x")
    aligner.add_text("\U0001f336")
    assert [s.entry for s in aligner.take()] == ["first"]
    aligner.add_text("x")
    (last,) = aligner.take()
    assert (last.entry, last.text) == ("second", "\U0001f336x")
