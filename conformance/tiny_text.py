"""The tiny models' text side: a byte-level BPE of 300 tokens and a ChatML template.

Every text round-trips, because each of the 256 bytes is a token. Ids 0, 1 and 2 are
the control tokens; the bytes follow, then the merges.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
BOS_ID: Final = 1
EOS_ID: Final = 2
NUM_TOKENS: Final = 300

_MERGES: Final = (
    "Ġ t|h e|Ġ a|i n|r e|o n|Ġ s|e r|a t|Ġ w|o r|Ġt he|e n|Ġ o|Ġ c|i s|i t|e s|o u|Ġ b|"
    "Ġ f|in g|a n|e d|Ġ p|Ġo f|a l|Ġ m|Ġa n|Ġt o|a r|Ġ h|Ġ in|Ġan d|Ġ d|l e|i c|l o|l l|"
    "he l|hel lo"
)

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_tokenizer(pieces: Sequence[str] = (), *, add_bos: bool = False) -> tokenizers.Tokenizer:
    """Build the tokenizer; ``pieces`` get the ids from 300 on, one each.

    A piece is reached by its id only: no text encodes to it. With ``add_bos`` the
    tokenizer itself puts ``<|im_start|>`` in front of a text.
    """
    merges = [(left, right) for left, right in (pair.split() for pair in _MERGES.split("|"))]
    words = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [left + right for left, right in merges]
    words += [_byte_level(piece) for piece in pieces]
    if len(set(words)) != len(words):
        msg = f"pieces {list(pieces)!r}: each must differ from the others and from every token"
        raise ValueError(msg)
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(list(SPECIALS))
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{SPECIALS[BOS_ID]} $A", special_tokens=[(SPECIALS[BOS_ID], BOS_ID)]
        )
    return tokenizer


def _byte_level(text: str) -> str:
    pairs = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(word for word, _ in pairs)


def write_text(
    folder: Path,
    tokenizer: tokenizers.Tokenizer | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    **tokenizer_config: Any,
) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    ``None`` as ``chat_template`` writes none, as in a base model; further keywords are
    further entries of ``tokenizer_config.json``.
    """
    chosen = tokenizer or tiny_tokenizer()
    chosen.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS_ID],
        "eos_token": SPECIALS[EOS_ID],
        "pad_token": SPECIALS[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    config |= tokenizer_config
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
