"""Text under decoders of every kind: known step by step, or followed by a window."""

import json
import random

import pytest
import tokenizers
from tokenizers import decoders, models

from enginebay.conformance.text_families import byte_fallback, byte_level
from enginebay.hookspecs.detokenizer import DetokenizerContext
from enginebay.hookspecs.format import TextAssets
from enginebay.plugins.detokenizers import hf

MELTING = "\U0001fae0"


def make(text, **options):
    return hf.enginebay_detokenizer(hf.Options(**options), DetokenizerContext(text=text))


def feed(stream, ids):
    return [stream.feed(each).text for each in ids]


def stream_text(detokenizer, prompt, ids, **kwargs):
    stream = detokenizer.open(tuple(prompt), **kwargs)
    return "".join(feed(stream, ids)) + stream.flush()


def level_ids(text, data):
    """Ids of single bytes in a byte-level tokenizer."""
    detokenizer = make(text)
    single = {detokenizer.token_bytes(each): each for each in range(3, 259)}
    return [single[bytes([byte])] for byte in data]


def decode(tokenizer, ids):
    return tokenizer.decode(list(ids), skip_special_tokens=False)


def assets(tokenizer):
    return TextAssets(tokenizer=tokenizer, identity="x")


def with_decoder(decoder):
    tokenizer = byte_fallback().tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
        return tokenizer
    return tokenizers.Tokenizer.from_str(
        json.dumps({**json.loads(tokenizer.to_str()), "decoder": None})
    )


DECODERS = {
    "none": None,
    "metaspace-bytes": decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()]),
    "metaspace-never": decoders.Metaspace(prepend_scheme="never"),
    "fuse": decoders.Fuse(),
    "replace": decoders.Replace("\u2581", "_"),
    "two-replaces": decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Replace("a", "o"), decoders.ByteFallback()]
    ),
    "strip-two": decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 2, 0)]
    ),
    "strip-each": decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)]),
    "wordpiece": decoders.WordPiece(),
}


@pytest.mark.parametrize("name", DECODERS)
def test_other_decoders(name):
    """Text equals the library's decode under decoders of every kind, known or not."""
    tokenizer, noise = with_decoder(DECODERS[name]), random.Random(5)
    detokenizer = make(assets(tokenizer))
    readable = range(257, tokenizer.get_vocab_size())
    for _ in range(200):
        prompt = noise.choices(readable, k=noise.randrange(9))
        output = noise.choices(readable, k=noise.randrange(30))
        whole, before = decode(tokenizer, prompt + output), decode(tokenizer, prompt)
        if whole.startswith(before):
            assert stream_text(detokenizer, prompt, output) == whole[len(before) :]


def test_first_token_may_be_a_byte():
    """Behind a byte token no mark is at the beginning any more."""
    tokenizer = with_decoder(DECODERS["metaspace-bytes"])
    word = tokenizer.token_to_id("\u2581the")
    byte = tokenizer.token_to_id("<0x41>")
    assert stream_text(make(assets(tokenizer)), (), [byte, word]) == "A the"
    assert stream_text(make(assets(tokenizer)), [byte], [word]) == " the"


def test_stripping_goes_on_over_tokens():
    """Two spaces to strip may come in two tokens; a third one stays."""
    tokenizer = with_decoder(DECODERS["strip-two"])
    mark, word = (tokenizer.token_to_id(piece) for piece in ("\u2581", "the"))
    for count, expected in ((1, "the"), (2, "the"), (3, " the")):
        assert stream_text(make(assets(tokenizer)), (), [mark] * count + [word]) == expected
        assert stream_text(make(assets(tokenizer)), [mark], [mark] * count + [word]) == (
            " " * (count - 1) + "the"
        )


def test_decoder_that_fails_on_nothing():
    """No decoder is asked for the text of no tokens: one that strips the end panics."""
    tokenizer = with_decoder(decoders.Sequence([decoders.Fuse(), decoders.Strip(".", 0, 1)]))
    ids = [tokenizer.token_to_id(piece) for piece in ("the", "in")]
    assert stream_text(make(assets(tokenizer)), (), ids) == "thein"


def test_suffix_decoder():
    """A decoder that shows a word's end as a space does so once the next word is there."""
    pieces = ("the</w>", "st", "op</w>", "in</w>")
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="in</w>"))
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    ids = [0, 1, 2, 3, 0, 1, 2] * 4
    for start in range(8):
        whole, before = decode(tokenizer, ids), decode(tokenizer, ids[:start]) if start else ""
        got = stream_text(make(assets(tokenizer)), ids[:start], ids[start:])
        assert got == whole[len(before) :]


def test_window_waits_for_characters():
    """Under an unknown decoder, too, an incomplete character waits, then appears."""
    text = byte_level()
    text.tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("#", "+")])
    ids = level_ids(byte_level(), b"ok" + MELTING.encode() + b"!")
    detokenizer = make(text)
    assert feed(detokenizer.open(()), ids) == ["o", "k", "", "", "", MELTING, "!"]
    stream = detokenizer.open(tuple(ids[:4]))
    assert feed(stream, ids[4:]) == ["", MELTING, "!"]
    stream = detokenizer.open(())
    assert (feed(stream, ids[:4]), stream.flush()) == (["o", "k", "", ""], "\ufffd")
    assert [detokenizer.token_bytes(each) for each in (ids[0], -1, 10**6)] == [b"o", b"", b""]
