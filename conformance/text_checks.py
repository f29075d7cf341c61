"""What every detokenizer must do (promise P3). Each check takes ``make(text_assets)``.

The outside reference is the tokenizers library's own ``decode`` of the whole sequence.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from enginebay.hookspecs.detokenizer import Detokenizer, TextStream
from enginebay.hookspecs.format import TextAssets

from .check import CheckList, require
from .text_families import TEXT_FAMILIES

MakeDetokenizer = Callable[[TextAssets], Detokenizer]

DETOKENIZER_CHECKS: Final = CheckList()
NUM_SEQUENCES: Final = 200
"""Random id sequences a tokenizer family."""
TEXTS: Final = (
    "the \U0001fae0 melts",
    "a pepper \U0001f336 in\nthe END",
    "P\u0159\u00edli\u0161 \u017elu\u0165ou\u010dk\u00fd k\u016f\u0148",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8",
    "alpha  beta   gamma",
)
"""Characters without a token of their own, Czech, Japanese, runs of spaces."""
STOPS: Final = (
    ("beta gamma",),
    ("gamma", "beta", "zeta"),
    ("ph",),
    ("alpha",),
    ("eta", "zzz"),
    ("END", "betamax"),
    ("!",),
)


def families() -> Iterator[tuple[str, TextAssets]]:
    """Every tokenizer family, built anew."""
    for name, build in TEXT_FAMILIES.items():
        yield name, build()


def decode(text: TextAssets, token_ids: Iterable[int], *, skip: bool) -> str:
    """The reference: one decode of everything."""
    kept = [each for each in token_ids if not (skip and each in text.special_ids)]
    return text.tokenizer.decode(kept, skip_special_tokens=False)


def read(stream: TextStream, token_ids: Iterable[int]) -> list[str]:
    """A stream's pieces, one a token until a stop string, and the flushed rest last."""
    pieces: list[str] = []
    for token_id in token_ids:
        piece = stream.feed(token_id)
        pieces.append(piece.text)
        if piece.stop is not None:
            return [*pieces, ""]
    return [*pieces, stream.flush()]


@DETOKENIZER_CHECKS.add("detokenizer/joined")
def pieces_join_to_the_decoded_text(make: MakeDetokenizer) -> None:
    """All pieces joined equal decode(prompt + output) minus decode(prompt), for any ids."""
    clause = "detokenizer/joined"
    for name, text in families():
        noise, detokenizer = random.Random(1), make(text)
        for number in range(NUM_SEQUENCES):
            skip = number % 2 == 0
            prompt, output = _random_ids(text, noise)
            whole, before = (decode(text, ids, skip=skip) for ids in (prompt + output, prompt))
            if not whole.startswith(before) or before.endswith("\ufffd"):
                continue
            stream = detokenizer.open(tuple(prompt), skip_special_tokens=skip)
            got = "".join(read(stream, output))
            expected = whole[len(before) :]
            message = f"{name}: {prompt} + {output} streams {got!r}, decodes to {expected!r}"
            require(got == expected, clause, message)


@DETOKENIZER_CHECKS.add("detokenizer/characters")
def incomplete_characters_wait(make: MakeDetokenizer) -> None:
    """No piece of a well-formed text holds U+FFFD, however its characters are split."""
    clause = "detokenizer/characters"
    for name, text in families():
        detokenizer = make(text)
        for sample in TEXTS:
            ids = text.tokenizer.encode(sample, add_special_tokens=False).ids
            expected = decode(text, ids, skip=True)
            pieces = read(detokenizer.open(()), ids)
            require("\ufffd" not in "".join(pieces), clause, f"{name}: {pieces} of {sample!r}")
            require("".join(pieces) == expected, clause, f"{name}: {pieces}, not {expected!r}")


@DETOKENIZER_CHECKS.add("detokenizer/flush")
def flushing_ends_an_incomplete_character(make: MakeDetokenizer) -> None:
    """A character cut off by the end becomes U+FFFD in ``flush``, not before."""
    clause = "detokenizer/flush"
    for name, text in families():
        ids = text.tokenizer.encode("in \U0001fae0", add_special_tokens=False).ids[:-1]
        expected = decode(text, ids, skip=True)
        if not expected.endswith("\ufffd"):
            continue
        *pieces, rest = read(make(text).open(()), ids)
        require("\ufffd" not in "".join(pieces), clause, f"{name}: {pieces} before the end")
        require("".join(pieces) + rest == expected, clause, f"{name}: {rest!r} at the end")


@DETOKENIZER_CHECKS.add("detokenizer/spaces")
def a_space_is_dropped_once_at_most(make: MakeDetokenizer) -> None:
    """The space in front of a sequence goes once, and none in its middle ever (case 4)."""
    clause = "detokenizer/spaces"
    for name, text in families():
        known = text.tokenizer.get_vocab()
        chains = [
            [known[piece] for piece in chain if piece in known]
            for chain in (
                ("\u2581", "\u2581leading", "\u2581x"),
                ("\u2581the", "\u2581alpha", "\u2581in"),
                ("\u2581\u2581", "\u2581the"),
                ("\u0120", "\u0120leading", "\u0120the"),
            )
        ]
        for ids in chains:
            for start in range(len(ids)):
                prompt, output = tuple(ids[:start]), ids[start:]
                whole, before = decode(text, ids, skip=True), decode(text, prompt, skip=True)
                got = "".join(read(make(text).open(prompt), output))
                message = f"{name}: {output} after {prompt} gives {got!r} of {whole!r}"
                require(got == whole[len(before) :], clause, message)


@DETOKENIZER_CHECKS.add("detokenizer/stop-cut")
def text_ends_at_the_first_stop(make: MakeDetokenizer) -> None:
    """The text is cut at the first stop string; nothing of it is ever sent (case 7)."""
    for name, text, ids, whole in _stop_texts():
        for stops in STOPS:
            for include in (False, True):
                cut, stop = _expected_cut(whole, stops, include=include)
                stream = make(text).open((), stop=stops, include_stop=include)
                _require_cut(f"{name}, stop {stops}", stream, ids, cut, stop)


@DETOKENIZER_CHECKS.add("detokenizer/released")
def nothing_waits_without_need(make: MakeDetokenizer) -> None:
    """What is held back is the beginning of a stop string, or nothing."""
    clause = "detokenizer/released"
    for name, text, ids, whole in _stop_texts():
        for stops in STOPS:
            stream, sent = make(text).open((), stop=stops), ""
            for place, token_id in enumerate(ids, start=1):
                piece = stream.feed(token_id)
                sent += piece.text
                if piece.stop is not None:
                    break
                held = decode(text, ids[:place], skip=True)[len(sent) :]
                message = f"{name}, stop {stops}: {held!r} waits in {whole!r}"
                fits = not held or any(stop.startswith(held) for stop in stops)
                require(fits, clause, message)


@DETOKENIZER_CHECKS.add("detokenizer/may-stop")
def early_tokens_do_not_stop(make: MakeDetokenizer) -> None:
    """A stop string counts only if it ends in a token that may stop (case 10)."""
    clause = "detokenizer/may-stop"
    for name, text, ids, whole in _stop_texts():
        end = next(k for k in range(len(ids)) if "beta" in decode(text, ids[: k + 1], skip=True))
        for first in (end, end + 1):
            stream, sent = make(text).open((), stop=("beta",)), ""
            for place, token_id in enumerate(ids):
                piece = stream.feed(token_id, may_stop=place >= first)
                sent += piece.text
                if piece.stop is not None:
                    break
            else:
                sent += stream.flush()
            cut = whole.find("beta", whole.index("beta") + (first > end))
            expected = whole if cut < 0 else whole[:cut]
            require(sent == expected, clause, f"{name}: {sent!r} from token {first} of {ids}")


@DETOKENIZER_CHECKS.add("detokenizer/streams")
def streams_do_not_meet(make: MakeDetokenizer) -> None:
    """Streams of one detokenizer give the same text alone and interleaved."""
    clause = "detokenizer/streams"
    for name, text in families():
        detokenizer = make(text)
        encoded = [text.tokenizer.encode(each, add_special_tokens=False).ids for each in TEXTS]
        alone = ["".join(read(detokenizer.open((), stop=("END",)), ids)) for ids in encoded]
        streams = [detokenizer.open((), stop=("END",)) for _ in encoded]
        together = [""] * len(streams)
        for step in range(max(map(len, encoded))):
            for number, (stream, ids) in enumerate(zip(streams, encoded, strict=True)):
                if step < len(ids):
                    together[number] += stream.feed(ids[step]).text
        together = [sent + stream.flush() for sent, stream in zip(together, streams, strict=True)]
        require(together == alone, clause, f"{name}: {together}, alone {alone}")


@DETOKENIZER_CHECKS.add("detokenizer/token-bytes")
def token_bytes_join_to_the_text(make: MakeDetokenizer) -> None:
    """The tokens' own bytes joined are the text's, but for the space in front of it."""
    clause = "detokenizer/token-bytes"
    for name, text in families():
        detokenizer = make(text)
        for sample in TEXTS:
            ids = text.tokenizer.encode(sample, add_special_tokens=False).ids
            data = b"".join(map(detokenizer.token_bytes, ids)).decode()
            expected = decode(text, ids, skip=True)
            require(data.removeprefix(" ") == expected.removeprefix(" "), clause, f"{name}: {data}")


def _random_ids(text: TextAssets, noise: random.Random) -> tuple[list[int], list[int]]:
    """A prompt that ends with a whole word, and any ids at all after it."""
    size = text.tokenizer.get_vocab_size()
    word = text.tokenizer.encode("the", add_special_tokens=False).ids
    prompt = [noise.randrange(size) for _ in range(noise.randrange(4))] + word
    return prompt * noise.randrange(2), [noise.randrange(size) for _ in range(noise.randrange(14))]


def _stop_texts() -> Iterator[tuple[str, TextAssets, Sequence[int], str]]:
    """(family, assets, ids, their text) of text in which stop strings are looked for."""
    for name, text in families():
        for sample in ("alpha beta gamma END", "gam! alphabet a beta gamm beta gamma"):
            ids = text.tokenizer.encode(sample, add_special_tokens=False).ids
            yield name, text, ids, decode(text, ids, skip=True)


def _expected_cut(text: str, stops: Sequence[str], *, include: bool) -> tuple[str, str | None]:
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    place, stop = min(found)
    return text[: place + len(stop) * include], stop


def _require_cut(
    where: str, stream: TextStream, ids: Sequence[int], cut: str, stop: str | None
) -> None:
    clause, sent, found = "detokenizer/stop-cut", "", None
    for token_id in ids:
        piece = stream.feed(token_id)
        sent, found = sent + piece.text, piece.stop
        require(cut.startswith(sent), clause, f"{where}: {sent!r} was sent of {cut!r}")
        if found is not None:
            break
    sent += "" if found is not None else stream.flush()
    require((sent, found) == (cut, stop), clause, f"{where}: {sent!r} and {found!r}, not {cut!r}")
