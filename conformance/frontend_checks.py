"""What every frontend must do. Each check takes ``make(frontend_context)``.

A frontend is tried with the prompt kinds it names, over a byte-level tokenizer of 300
tokens, a ChatML template and a model of the same vocabulary.
"""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Final

import msgspec

from enginebay.errors import InvalidRequest
from enginebay.flow import ChatPrompt, Prompt, Request, TextPrompt, TokenPrompt
from enginebay.hookspecs.format import TextAssets
from enginebay.hookspecs.frontend import Frontend, FrontendContext, Parsed, Parser
from enginebay.hookspecs.model import ModelSpec

from .check import CheckList, require
from .tiny_text import CHAT_TEMPLATE, NUM_TOKENS, SPECIALS, tiny_tokenizer

MakeFrontend = Callable[[FrontendContext], Frontend]

FRONTEND_CHECKS: Final = CheckList()
MAX_MESSAGE: Final = 2_000
"""Characters of an error message, whatever the prompt holds."""
TEXTS: Final = ("hello", "the \U0001fae0\nin the end", "a" * 3_000, "P\u0159\u00edli\u0161")
BAD: Final[tuple[Prompt, ...]] = (
    TextPrompt(text=""),
    TextPrompt(text="half a pair: \ud800"),
    TokenPrompt(token_ids=()),
    TokenPrompt(token_ids=(1, NUM_TOKENS)),
    TokenPrompt(token_ids=(1, -1)),
    TokenPrompt(token_ids=(1, 2**31)),
    TokenPrompt(token_ids=(1, 2**100_000)),
    TokenPrompt(token_ids=(True,)),
    TokenPrompt(token_ids=(1, "a")),  # type: ignore[arg-type]
    ChatPrompt(messages=()),
    ChatPrompt(messages=(5,)),  # type: ignore[arg-type]
    ChatPrompt(messages=({"role": "user"},)),
    ChatPrompt(messages=({"role": "user", "content": 5},)),
    ChatPrompt(messages=({"role": "user", "content": [{"type": "image_url"}]},)),
    ChatPrompt(messages=({"role": "user", "content": [5] * 100_000},)),
    ChatPrompt(messages=({"role": "bogus" * 10_000, "content": "x"},)),
    ChatPrompt(messages=({"role": "user", "content": "\ud800"},)),
)


def good_prompts() -> tuple[Prompt, ...]:
    """Prompts of every kind, built anew: a frontend under test might change them."""
    return (
        *(TextPrompt(text=text) for text in TEXTS),
        *(ChatPrompt(messages=({"role": "user", "content": text},)) for text in TEXTS),
        TokenPrompt(token_ids=(5, 0, NUM_TOKENS - 1)),
    )


def context() -> FrontendContext:
    """A tokenizer without a BOS of its own, a template, and a model to match."""
    text = TextAssets(
        tokenizer=tiny_tokenizer(),
        identity="tiny",
        templates={"default": CHAT_TEMPLATE},
        special_tokens={"bos_token": SPECIALS[1], "eos_token": SPECIALS[2]},
        special_ids=frozenset(range(len(SPECIALS))),
    )
    spec = ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=NUM_TOKENS,
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        intermediate_size=8,
        max_positions=64,
    )
    return FrontendContext(text=text, spec=spec)


@FRONTEND_CHECKS.add("frontend/kinds")
def kinds_are_prompt_tags(make: MakeFrontend) -> None:
    """``kinds`` names at least one kind of prompt, and only kinds there are."""
    kinds = make(context()).kinds
    known = {"chat", "text", "tokens"}
    require(kinds and set(kinds) <= known, "frontend/kinds", f"kinds are {kinds!r}")


@FRONTEND_CHECKS.add("frontend/ids")
def prompts_become_ids_of_the_model(make: MakeFrontend) -> None:
    """A good prompt becomes ids inside the vocabulary, with the tokenizer's identity."""
    frontend = make(context())
    for prompt in _of_kinds(good_prompts(), frontend):
        encoded = frontend.encode(prompt)
        ids = encoded.token_ids
        inside = ids and all(0 <= each < NUM_TOKENS for each in ids)
        require(inside, "frontend/ids", f"{ids} of a vocabulary of {NUM_TOKENS}")
        require(encoded.tokenizer == "tiny", "frontend/ids", "the tokenizer's identity is missing")
        named = bool(encoded.template) == isinstance(prompt, ChatPrompt)
        require(named, "frontend/ids", f"template is {encoded.template!r} for {type(prompt)}")


@FRONTEND_CHECKS.add("frontend/pure")
def encoding_is_a_function(make: MakeFrontend) -> None:
    """Encoding gives the same again, in any thread, and changes no prompt (case 6)."""
    clause = "frontend/pure"
    frontend = make(context())
    prompts = list(_of_kinds(good_prompts(), frontend))
    before = msgspec.json.encode(prompts)
    first = [frontend.encode(prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as threads:
        again = list(threads.map(frontend.encode, prompts * 8))
    require(again == first * 8, clause, "threads that encode at once get other ids")
    require(msgspec.json.encode(prompts) == before, clause, "a prompt was changed")


@FRONTEND_CHECKS.add("frontend/refusal")
def bad_prompts_are_refused(make: MakeFrontend) -> None:
    """A wrong prompt is an ``InvalidRequest`` that is short and names a field."""
    clause = "frontend/refusal"
    frontend = make(context())
    for number, prompt in enumerate(_of_kinds(BAD, frontend)):
        try:
            frontend.encode(prompt)
        except InvalidRequest as error:
            detail = error.detail
            short = 0 < len(detail.message) <= MAX_MESSAGE
            require(short and detail.param, clause, f"bad prompt {number}: {detail!r:.500}")
        else:
            require(False, clause, f"bad prompt {number} is taken: {prompt!r:.200}")


@FRONTEND_CHECKS.add("frontend/parser")
def parsed_text_does_not_depend_on_its_pieces(make: MakeFrontend) -> None:
    """Deltas joined are the same however the text was cut, and parsers never meet."""
    clause = "frontend/parser"
    frontend, noise = make(context()), random.Random(1)
    prompt = next(_of_kinds(good_prompts(), frontend))
    request = Request(id="r", prompt=prompt)
    for text in (*TEXTS, "<think>so</think>then", '<tool_call>{"name": "f"}</tool_call> {'):
        whole = _joined(frontend.parser(request), [text])
        for _ in range(10):
            pieces = _cut(text, noise)
            other = frontend.parser(request)
            parser = frontend.parser(request)
            parsed = []
            for piece in pieces:
                other.feed("something else < {")
                parsed.append(parser.feed(piece))
            got = _sum([*parsed, parser.flush()])
            require(got == whole, clause, f"{pieces} give {got}, in one piece {whole}")


def _of_kinds(prompts: tuple[Prompt, ...], frontend: Frontend) -> Iterator[Prompt]:
    return (each for each in prompts if each.__struct_config__.tag in frontend.kinds)


def _cut(text: str, noise: random.Random) -> list[str]:
    places = sorted({0, len(text), *(noise.randrange(len(text)) for _ in range(6))})
    return [text[start:end] for start, end in pairwise(places)]


def _joined(parser: Parser, pieces: list[str]) -> tuple[str, str, str]:
    return _sum([*map(parser.feed, pieces), parser.flush()])


def _sum(parsed: list[Parsed]) -> tuple[str, str, str]:
    """Content, reasoning, and tool calls as one text."""
    calls: dict[int, list[str]] = {}
    for delta in (delta for each in parsed for delta in each.tool_calls):
        calls.setdefault(delta.index, []).append((delta.name or "") + delta.arguments)
    return (
        "".join(each.content for each in parsed),
        "".join(each.reasoning for each in parsed),
        repr({index: "".join(pieces) for index, pieces in sorted(calls.items())}),
    )
