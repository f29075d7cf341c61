"""The three shapes in which log-probabilities are reported."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from enginebay.flow import Alternative, PromptScored, TokenLogprob

from .alignment import Aligner, Shown
from .wire import ChatAlternative, ChatLogprobs, ChatToken, TextLogprobs

FLOOR: Final = -9999.0
"""JSON has no infinity: a banned token's log-probability is reported as this."""

Token = TokenLogprob | None
"""``None``: the first prompt token, which nothing predicts."""


def token_data(token: Alternative) -> bytes:
    """A token's own UTF-8 bytes, which may be part of a character."""
    return token.data or token.text.encode()


def spelled(data: bytes) -> str:
    r"""Bytes as text; part of a character as ``bytes:\xf0\x9f``, so that keys differ."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprobs(shown: Sequence[Shown[Token]], num_top: int) -> ChatLogprobs:
    """For ``/v1/chat/completions``: ``num_top`` alternatives a token."""
    return ChatLogprobs(
        content=[
            ChatToken(
                token=spelled(token_data(item.entry.token)),
                logprob=_finite(item.entry.token.logprob),
                bytes=list(item.data),
                top_logprobs=[_chat_alternative(other) for other in item.entry.top[:num_top]],
            )
            for item in shown
            if item.entry is not None
        ]
    )


def text_logprobs(shown: Sequence[Shown[Token]], num_top: int) -> TextLogprobs:
    """For ``/v1/completions``. A token that is not shown (an end token) spells ``""``.

    ``top_logprobs`` holds the ``num_top`` best and the token itself.
    """
    return TextLogprobs(
        tokens=[spelled(item.data) for item in shown],
        token_logprobs=[_finite(i.entry.token.logprob) if i.entry else None for i in shown],
        top_logprobs=[_top(i.entry, num_top) if i.entry else None for i in shown],
        text_offset=[item.offset for item in shown],
    )


def prompt_logprobs(scored: PromptScored) -> list[dict[str, Any] | None]:
    """For the extension ``prompt_logprobs``: a mapping of token id to its entry."""
    return [None if entry is None else _by_id(entry) for entry in scored.logprobs]


def prompt_shown(scored: PromptScored, echo: str | None) -> tuple[str, list[Shown[Token]]]:
    """The prompt's text and its tokens beside it.

    :param echo: the text, if the caller sent text; ``None``: it was token ids
    """
    later = [token_data(entry.token) for entry in scored.logprobs if entry is not None]
    first = scored.first
    if echo is None:
        echo = b"".join([first, *later]).decode("utf-8", "replace")
    elif not first:
        rest = b"".join(later).decode("utf-8", "replace")
        first = echo.removesuffix(rest).encode() if echo.endswith(rest) else b""
    aligner: Aligner[Token] = Aligner()
    for entry, data in zip(scored.logprobs, [first, *later], strict=True):
        aligner.add_token(entry, data)
    aligner.add_text(echo)
    return echo, aligner.take(final=True)


def feed(aligner: "Aligner[Token]", entries: Iterable[TokenLogprob]) -> None:
    """Give generated tokens to an aligner."""
    for entry in entries:
        aligner.add_token(entry, token_data(entry.token))


def _top(entry: TokenLogprob, num_top: int) -> dict[str, float]:
    best: dict[str, float] = {}
    for token in (*entry.top[:num_top], entry.token):
        best.setdefault(spelled(token_data(token)), _finite(token.logprob))
    return best


def _by_id(entry: TokenLogprob) -> dict[str, Any]:
    return {
        str(token.token_id): {
            "logprob": _finite(token.logprob),
            "rank": token.rank or None,
            "decoded_token": spelled(token_data(token)),
        }
        for token in (entry.token, *entry.top)
    }


def _chat_alternative(token: Alternative) -> ChatAlternative:
    data = token_data(token)
    return ChatAlternative(token=spelled(data), logprob=_finite(token.logprob), bytes=list(data))


def _finite(logprob: float) -> float:
    return max(logprob, FLOOR)
