"""Tokenizer and chat templates of a Hugging Face model folder.

Read are ``tokenizer.json`` (required), ``tokenizer_config.json``,
``special_tokens_map.json``, ``chat_template.jinja`` and
``additional_chat_templates/NAME.jinja``. A template file goes before the one in
``tokenizer_config.json``, as in transformers; and as there, what ``tokenizer.json``
says about BOS and EOS goes before ``add_bos_token`` and ``add_eos_token``.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import tokenizers

from enginebay.errors import ModelError
from enginebay.hookspecs.format import TextAssets

from .damage import damaged
from .json_file import read_json
from .text_assets import make_text_assets, token_ids

ROLES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class _AddedToken(msgspec.Struct):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


def read_text_assets(
    folder: Path, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> TextAssets:
    """Read the text side of a model folder.

    The ids that end a sequence are the union of what ``config``, ``generation`` and
    the tokenizer say: each of them is right for some model.

    :raises ModelError: a file is missing or garbled; it names the file
    """
    source = folder / "tokenizer_config.json"
    settings = read_json(source)
    tokenizer = _read_tokenizer(folder)
    try:
        listed = msgspec.convert(
            settings.get("added_tokens_decoder") or {}, dict[int, _AddedToken], str_keys=True
        )
        templates = dict(_templates(folder, settings))
    except msgspec.ValidationError as error:
        raise damaged(source, f"unexpected content ({error})") from error
    _add_missing(source, tokenizer, listed)
    special_tokens = _special_tokens(folder, settings)
    return make_text_assets(
        tokenizer,
        templates=templates,
        special_tokens=special_tokens,
        eos_token_ids=[
            *token_ids(f"{folder}/config.json", "eos_token_id", config.get("eos_token_id")),
            *token_ids(
                f"{folder}/generation_config.json", "eos_token_id", generation.get("eos_token_id")
            ),
        ],
    )


def _read_tokenizer(folder: Path) -> tokenizers.Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        others = [name for name in ("tokenizer.model", "vocab.json") if (folder / name).is_file()]
        hint = (
            f"it has {' and '.join(others)}: save it as a fast tokenizer"
            if others
            else ("is the download complete?")
        )
        msg = f"{folder}: tokenizer.json is missing; {hint}"
        raise ModelError(msg)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise damaged(path, f"the tokenizer can't be read ({error})") from error


def _add_missing(
    source: Path, tokenizer: tokenizers.Tokenizer, listed: dict[int, _AddedToken]
) -> None:
    """Add what only ``tokenizer_config.json`` lists, in the order of the ids."""
    for token_id, entry in sorted(listed.items()):
        if tokenizer.token_to_id(entry.content) is not None:
            continue
        tokenizer.add_tokens([tokenizers.AddedToken(**msgspec.structs.asdict(entry))])
        if (given := tokenizer.token_to_id(entry.content)) != token_id:
            msg = (
                f"{source}: token {entry.content!r} has id {token_id}, but beside "
                f"tokenizer.json it gets id {given}; the two files don't belong together"
            )
            raise ModelError(msg)


def _special_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[str, str]:
    older = read_json(folder / "special_tokens_map.json")
    found: dict[str, str] = {}
    for role in ROLES:
        value = settings.get(role, older.get(role))
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[role] = content
    return found


def _templates(folder: Path, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    stored = settings.get("chat_template")
    if isinstance(stored, str):
        yield "default", stored
    elif isinstance(stored, list):
        for entry in msgspec.convert(stored, list[_NamedTemplate]):
            yield entry.name, entry.template
    if (single := folder / "chat_template.jinja").is_file():
        yield "default", single.read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        yield path.stem, path.read_text(encoding="utf-8")
