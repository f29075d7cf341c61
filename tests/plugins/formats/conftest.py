"""What the formats' tests share: a byte-level vocabulary trained on the spot for the GGUF
tokenizer tests, and tiny models that a test quantizes itself."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import models, pre_tokenizers, trainers

from enginebay.conformance.parity import load_subject, teacher_forced
from enginebay.conformance.tiny import tiny_config, tiny_tensors, write_model
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import safetensors
from enginebay.plugins.models import llama

PIECES = [
    *["the", "quick", "brown", "Fox", "jumps", "over", "LAZY", "dogs", "isn't", "I'LL"],
    *["we'Ve", "HTTPServer", "parseJSON", "naïve"],
    *["Café", "déjà", "vu — 123", "😊", "🫠", "漢字かな", "हिन्दी १२३", "ﬁ", "e\u0301", "²³½", "Ⅷ"],
    *["\t", "\n", "\n\n  ", "\r\n", "  ", " " * 50, "\u00a0", "\u2003x", "", "'s", "''", "...!?"],
    *["1234567", "3.14", "a1b2", "x_y=z[0];", "</s> x", "<|im_start|>", "##", "//\n"],
]
TOOL = "[TOOL]"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_corpus(count, seed=0, pieces=(*PIECES, TOOL)):
    """Texts that mix scripts, digits, punctuation, blanks and markup."""
    draw = random.Random(seed)
    return [
        "".join(draw.choice(["", "", " ", "  "]) + draw.choice(pieces) for _ in range(size))
        for size in (draw.randint(1, 9) for _ in range(count))
    ]


@pytest.fixture(scope="session")
def trained():
    """Merges learned over words of every split, so that each split shows in the ids."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(r"\S+\s*|\s+"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1200,
        special_tokens=SPECIALS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(make_corpus(1500, seed=1, pieces=PIECES), trainer)
    return tokenizer


def make_entries(trained, pre, **changes):
    vocabulary = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    types = [3 if token in SPECIALS else 1 for token, _ in vocabulary]
    model = trained.model
    merges = [" ".join(pair) for pair in merges_of(model)]
    table = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [*(token for token, _ in vocabulary), TOOL, "[PAD1]"],
        "token_type": [*types, 4, 5],
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in table.items() if value is not None}


def merges_of(model):
    return json.loads(tokenizers.Tokenizer(model).to_str())["model"]["merges"]


@pytest.fixture(scope="session")
def corpus():
    """Texts that mix scripts, digits, punctuation, blanks and markup: ``corpus(count, seed)``."""
    return make_corpus


@pytest.fixture(scope="session")
def entries(trained):
    """GGUF metadata of the vocabulary: ``entries(pre, **changes)``; ``None`` leaves one out."""
    return lambda pre, **changes: make_entries(trained, pre, **changes)


@pytest.fixture(scope="session")
def ranks(trained):
    """The merges, each with its rank."""
    return {tuple(pair): rank for rank, pair in enumerate(merges_of(trained.model))}


@dataclass
class QuantizedModel:
    """A tiny Llama whose folder holds codes, and the values that they stand for."""

    folder: Path
    values: dict
    """Float tensors by name, dequantized by the test's own formula."""

    def open(self, folder=None):
        """The checkpoint as the safetensors reader opens it."""
        reader = safetensors.enginebay_format(safetensors.Options(), FormatContext())
        return reader.open(Files(path=str(folder or self.folder), origin="test", revision="1"))

    def logits(self, quantizer=None):
        """Of the folder, by ``quantizer``, and of a float model with ``values``."""
        plain = self.folder.parent / "plain"
        plain.mkdir()
        config = json.loads((self.folder / "config.json").read_text())
        config.pop("quantization_config", None)
        write_model(plain, config, self.values)
        family = llama.enginebay_model(llama.Options(), ModelContext())
        token_ids = list(range(3, 23))
        return [
            teacher_forced(load_subject(self.open(folder), family, quantizer=each), token_ids)
            for folder, each in ((self.folder, quantizer), (plain, None))
        ]

    def change(self, **entries):
        """Replace entries of ``quantization_config``; ``None`` becomes null."""
        config = json.loads((self.folder / "config.json").read_text())
        config["quantization_config"] |= entries
        (self.folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def quantized(tmp_path):
    """Writes a tiny Llama: ``quantized(entry, convert, **config)``.

    ``entry`` is its ``quantization_config``. ``convert(module, weight)`` is asked for every
    matrix and gives its parts by the ends of their names and its values, or ``None``.
    """

    def write(entry, convert, **overrides):
        config = tiny_config("LlamaForCausalLM", **overrides) | {"quantization_config": entry}
        stored, values = {}, {}
        for name, tensor in tiny_tensors(config).items():
            module, _, _ = name.rpartition(".")
            made = convert(module, tensor) if tensor.ndim == 2 else None
            parts, value = made or ({"weight": tensor}, tensor)
            stored |= {f"{module}.{end}": part.contiguous() for end, part in parts.items()}
            values[name] = value
        folder = tmp_path / "model"
        folder.mkdir()
        write_model(folder, config, {})
        save_file(stored, folder / "model.safetensors")
        return QuantizedModel(folder, values)

    return write


@pytest.fixture
def pack():
    """Packs codes as a reader of words expects them: ``pack(codes, bits)``.

    Unsigned integers [rows, codes] become int32 [rows, words], the first code lowest.
    """

    def words(codes, bits):
        each = 32 // bits
        padded = torch.nn.functional.pad(codes.long(), (0, -codes.shape[1] % each))
        digits = padded.reshape(len(codes), -1, each) << (bits * torch.arange(each))
        values = digits.sum(-1)
        return torch.where(values >= 2**31, values - 2**32, values).int()

    return words


@pytest.fixture
def rewrite():
    """Changes the stored tensors of a folder: ``rewrite(folder, {name: tensor or None})``."""

    def change(folder, changes):
        stored = load_file(folder / "model.safetensors") | changes
        kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
        save_file(kept, folder / "model.safetensors")

    return change
