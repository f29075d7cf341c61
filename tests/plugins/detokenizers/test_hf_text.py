"""Text from tokens: incomplete characters, spaces, byte runs, prompts, every decoder."""

import random

import pytest

from enginebay.conformance.text_families import TEXT_FAMILIES, byte_fallback, byte_level, metaspace
from enginebay.errors import StackError
from enginebay.hookspecs.detokenizer import DetokenizerContext
from enginebay.plugins.detokenizers import hf

MELTING = "\U0001fae0"
PEPPER = "\U0001f336"


def make(text, **options):
    return hf.enginebay_detokenizer(hf.Options(**options), DetokenizerContext(text=text))


def feed(stream, ids):
    return [stream.feed(each).text for each in ids]


def stream_text(detokenizer, prompt, ids, **kwargs):
    stream = detokenizer.open(tuple(prompt), **kwargs)
    return "".join(feed(stream, ids)) + stream.flush()


def byte_ids(text, data):
    """Ids of single bytes in a byte-fallback tokenizer."""
    return [text.tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in data]


def level_ids(text, data):
    """Ids of single bytes in a byte-level tokenizer."""
    detokenizer = make(text)
    single = {detokenizer.token_bytes(each): each for each in range(3, 259)}
    return [single[bytes([byte])] for byte in data]


def decode(tokenizer, ids):
    return tokenizer.decode(list(ids), skip_special_tokens=False)


@pytest.mark.parametrize("character", [MELTING, PEPPER, "\u65e5", "\u0159"])
def test_characters_of_byte_level_tokens(character):
    """A character split over byte tokens appears when its last byte does (case 1)."""
    text = byte_level()
    data = character.encode()
    pieces = feed(make(text).open(()), [*level_ids(text, data), *level_ids(text, b"ok")])
    assert pieces == [""] * (len(data) - 1) + [character, "o", "k"]


def test_characters_of_byte_fallback():
    """A run of byte tokens appears with the token that ends it, or at the flush."""
    text = byte_fallback()
    word = text.tokenizer.token_to_id("the")
    ids = byte_ids(text, (MELTING + PEPPER).encode())
    stream = make(text).open(())
    assert feed(stream, [*ids, word]) == [""] * 8 + [MELTING + PEPPER + "the"]
    stream = make(text).open(())
    assert (feed(stream, ids), stream.flush()) == ([""] * 8, MELTING + PEPPER)


def test_long_byte_runs_do_not_wait():
    """Past ``max_byte_run`` characters of a run are released, the incomplete one kept."""
    text = byte_fallback()
    ids = byte_ids(text, (MELTING * 3).encode())
    stream = make(text, max_byte_run=5).open(())
    assert feed(stream, ids) == [""] * 5 + [MELTING, "", "", "", MELTING, "", ""]
    assert stream.flush() == MELTING
    stream = make(text, max_byte_run=0).open(())
    assert feed(stream, ids) == ["", "", "", MELTING] * 3


@pytest.mark.parametrize("limit", [0, 3, 64])
def test_malformed_runs_end(limit):
    """Endless malformed bytes are shown as U+FFFD and don't pile up."""
    text = byte_fallback()
    stream = make(text, max_byte_run=limit).open(())
    sent = "".join(feed(stream, byte_ids(text, b"\xff" * 200)))
    assert len(sent) >= 200 - 2 * (limit + 1)
    assert sent + stream.flush() == "\ufffd" * 200


def test_malformed_run_is_as_in_the_library():
    """One malformed byte turns every byte of its run into U+FFFD, as ``decode`` does."""
    text = byte_fallback()
    ids = [*byte_ids(text, MELTING.encode() + b"\xe2"), text.tokenizer.token_to_id("the")]
    got = stream_text(make(text), (), ids)
    assert got == decode(text.tokenizer, ids) == "\ufffd" * 5 + "the"


def test_malformed_bytes_are_as_in_the_library():
    """Random bytes become the same U+FFFDs as in the byte-level decoder."""
    text, noise = byte_level(), random.Random(3)
    detokenizer = make(text)
    single = level_ids(text, bytes(range(256)))
    likely = [0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xAB, 0xA0, 0x80, 0xED, 0xF4, 0x90, 0xC0, 0x41]
    for _ in range(500):
        ids = [single[noise.choice(likely)] for _ in range(noise.randint(1, 8))]
        assert stream_text(detokenizer, (), ids) == decode(text.tokenizer, ids)


@pytest.mark.parametrize("family", ["byte-level", "byte-fallback"])
@pytest.mark.parametrize("split", [1, 2, 3])
def test_prompt_ending_inside_a_character(family, split):
    """The output completes the prompt's incomplete character, which is then its own."""
    text = TEXT_FAMILIES[family]()
    ids = (level_ids if family == "byte-level" else byte_ids)(text, MELTING.encode())
    word = text.tokenizer.encode("in", add_special_tokens=False).ids
    prompt, output = word + ids[:split], ids[split:]
    assert stream_text(make(text), prompt, output) == MELTING
    assert stream_text(make(text), prompt, []) == "\ufffd" * (
        1 if family == "byte-level" else split
    )
    assert stream_text(make(text), word + ids, word).lstrip() == "in"


def test_prompt_ending_with_a_continuation_byte():
    """A malformed byte at the prompt's end stays the prompt's."""
    text = byte_level()
    ids = level_ids(text, b"a\xa0\xa0\xa0\xa0")
    assert stream_text(make(text), ids, level_ids(text, b"b")) == "b"


def test_first_space_of_a_chat_answer():
    """After a prompt of control tokens alone the answer is the beginning of the text."""
    text = byte_fallback()
    start, word = (text.tokenizer.token_to_id(piece) for piece in ("<s>", "\u2581the"))
    assert stream_text(make(text), [start], [word, word]) == "the the"
    kept = stream_text(make(text), [start], [word, word], skip_special_tokens=False)
    assert kept == " the the"


def test_metaspace_first_token_loses_every_mark():
    """The Metaspace decoder drops all marks of the first token and none after it."""
    text = metaspace()
    mark, two, word = (
        text.tokenizer.token_to_id(piece) for piece in ("\u2581", "\u2581\u2581", "\u2581x")
    )
    for chain in ([two, word], [mark, two, mark, word], [word, two]):
        assert stream_text(make(text), (), chain) == decode(text.tokenizer, chain)
        assert stream_text(make(text), [mark], chain) == decode(text.tokenizer, [mark, *chain])


def test_special_tokens():
    """Control tokens vanish with ``skip_special_tokens``, and only they (case 62)."""
    text = byte_level()
    text.tokenizer.add_tokens(["<think>"])
    think = text.tokenizer.token_to_id("<think>")
    ids = [1, *level_ids(text, b"a"), think, 2, *level_ids(text, b"b")]
    assert stream_text(make(text), (), ids) == "a<think>b"
    shown = stream_text(make(text), (), ids, skip_special_tokens=False)
    assert shown == "<|im_start|>a<think><|im_end|>b"


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_unknown_ids(family):
    """Ids that the tokenizer has not, as padded vocabularies do, have no text."""
    text = TEXT_FAMILIES[family]()
    word = text.tokenizer.encode("the in", add_special_tokens=False).ids
    detokenizer = make(text)
    assert detokenizer.token_bytes(10**6) == detokenizer.token_bytes(-1) == b""
    with_gaps = [10**6, *(each for known in word for each in (known, 10**6))]
    assert stream_text(detokenizer, (10**6,), with_gaps) == decode(text.tokenizer, word)


def test_token_bytes_of_parts():
    """A token's bytes may be part of a character; a mark is a space."""
    text = byte_fallback()
    detokenizer = make(text)
    mark = text.tokenizer.token_to_id("\u2581the")
    assert detokenizer.token_bytes(mark) == b" the"
    assert detokenizer.token_bytes(byte_ids(text, b"\xf0")[0]) == b"\xf0"


def test_added_token_with_characters_outside_the_byte_alphabet():
    """An added token is taken as text when its characters stand for no bytes."""
    text = byte_level()
    text.tokenizer.add_tokens(["<a b>", "<\u65e5>"])
    ids = [text.tokenizer.token_to_id(token) for token in ("<a b>", "<\u65e5>")]
    assert stream_text(make(text), (), ids) == decode(text.tokenizer, ids) == "<a b><\u65e5>"


def test_long_prompts_are_not_read_whole():
    """Opening a stream looks at the ends of a prompt only."""

    class Counted(tuple):
        reads = 0

        def __iter__(self):
            for each in super().__iter__():
                Counted.reads += 1
                yield each

    text = byte_fallback()
    word = text.tokenizer.token_to_id("\u2581the")
    make(text).open(Counted([word] * 100_000))
    assert Counted.reads < 10


def test_negative_run_length_is_refused():
    """A negative ``max_byte_run`` stops the start and says what to give."""
    with pytest.raises(StackError, match="max_byte_run is -1; give 0 or more"):
        make(byte_level(), max_byte_run=-1)
