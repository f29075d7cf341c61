"""allowed-tokens, bad-words and min-tokens: what must not be drawn is not."""

import pytest

from enginebay.conformance.tiny_text import NUM_TOKENS, tiny_tokenizer
from enginebay.errors import InvalidRequest
from enginebay.flow import SamplingParams
from enginebay.hookspecs.format import TextAssets

FLAT = [0.0] * 8
TOKENIZER = tiny_tokenizer()
TEXT = TextAssets(tokenizer=TOKENIZER, identity="tiny")


def _ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def test_only_allowed_tokens_stay(left):
    """In any order, and named twice."""
    assert set(left(FLAT, allowed_token_ids=[5, 2, 5])) == {2, 5}


@pytest.mark.parametrize("ids", [[], [8], [-1], ["1"], [1.0], [True], "12", {"1": 1}, 3])
def test_wrong_allowed_tokens_are_refused(shipped, ids):
    """Case 20, and an empty list, which would ban everything."""
    with pytest.raises(InvalidRequest) as caught:
        shipped(8).parse(SamplingParams(allowed_token_ids=ids))
    assert caught.value.detail.param == "allowed_token_ids"


def test_min_tokens_bans_every_end(left):
    """All end tokens, those of the request and those of the model (case 10)."""
    ends = {"end_ids": [1, 6], "min_tokens": 3, "max_tokens": 9}
    assert set(left(FLAT, output_ids=[0, 0], **ends)) == {0, 2, 3, 4, 5, 7}
    assert set(left(FLAT, output_ids=[0, 0, 0], **ends)) == set(range(8))
    assert set(left(FLAT, output_ids=[], end_ids=[1])) == set(range(8))


def test_an_end_token_beyond_the_head_needs_no_ban(left):
    """Some checkpoints name one."""
    assert set(left(FLAT, end_ids=[3, 8, 4000], min_tokens=1)) == set(range(8)) - {3}


def test_min_tokens_ends_greedy_batching(shipped, view):
    """Such a request is drawn row by row, or its ban would be lost."""
    chain = shipped(8)
    request = view(chain, temperature=0, min_tokens=1)
    assert not chain.greedy(request.params, request.sampling)


def test_a_bad_word_of_one_token_never_comes(left):
    """With and without a space before it."""
    (bare,), (spaced,) = _ids("the")[-1:], _ids(" the")
    banned = set(range(NUM_TOKENS)) - set(left([0.0] * NUM_TOKENS, TEXT, bad_words=[" the"]))
    assert spaced in banned
    assert len(banned) <= 2
    assert bare != spaced


def test_a_longer_bad_word_is_banned_at_its_last_token(left):
    """Only when its beginning was just generated; the prompt's tokens are not output."""
    beginning, last = _ids("abc")[:-1], _ids("abc")[-1]
    spaced, spaced_last = _ids(" abc")[:-1], _ids(" abc")[-1]
    assert len(beginning) > 0

    def banned(**asked):
        kept = left([0.0] * NUM_TOKENS, TEXT, bad_words=["abc"], **asked)
        return set(range(NUM_TOKENS)) - set(kept)

    assert banned(output_ids=[50, *beginning]) == {last}
    assert spaced_last in banned(output_ids=tuple(spaced))
    assert banned(output_ids=[*beginning, 50]) == set()
    assert banned(output_ids=beginning[:-1]) == set()
    assert banned(prompt_ids=beginning, output_ids=[]) == set()


@pytest.mark.parametrize("words", [[""], [3], ["x" * 257], ["x"] * 257, "word", [None]])
def test_wrong_bad_words_are_refused(shipped, words):
    """By name."""
    with pytest.raises(InvalidRequest) as caught:
        shipped(NUM_TOKENS, TEXT).parse(SamplingParams(bad_words=words))
    assert caught.value.detail.param == "bad_words"


def test_bad_words_without_a_tokenizer_are_refused(shipped):
    """Not silently dropped."""
    with pytest.raises(InvalidRequest, match="no tokenizer"):
        shipped(8).parse(SamplingParams(bad_words=["x"]))


def test_words_of_tokens_that_the_model_lacks_need_no_ban(shipped):
    """A tokenizer may know more ids than the head has rows."""
    assert shipped(8, TEXT).parse(SamplingParams(bad_words=["the"]))["bad_words"] == ()


def test_no_bad_words_are_neutral(shipped, view):
    """An empty list bans nothing."""
    chain = shipped(NUM_TOKENS, TEXT)
    request = view(chain, bad_words=[], temperature=0)
    assert chain.greedy(request.params, request.sampling)
