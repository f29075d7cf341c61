"""Tiny models, opened and with their family, for the tests of this folder."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from enginebay.conformance.parity import Subject, load_subject, teacher_forced
from enginebay.conformance.tiny import write_tiny
from enginebay.conformance.transformers_logits import load_transformers, transformers_logits
from enginebay.hookspecs.format import Checkpoint, FormatContext
from enginebay.hookspecs.model import ModelContext, ModelFamily
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import safetensors
from enginebay.plugins.models import llama, mistral, qwen2, qwen3

PLUGINS = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}


def family_of(architecture: str) -> ModelFamily:
    plugin = PLUGINS[architecture]
    return plugin.enginebay_model(plugin.Options(), ModelContext())


def open_folder(path: Path) -> Checkpoint:
    reader = safetensors.enginebay_format(safetensors.Options(), FormatContext())
    checkpoint = reader.open(Files(path=str(path), origin="test", revision="1"))
    assert not isinstance(checkpoint, str), checkpoint
    return checkpoint


@dataclass
class TinyModel:
    """A folder, as this engine and as transformers read it."""

    path: Path
    architecture: str

    def subject(self, **options) -> Subject:
        family = family_of(self.architecture)
        return load_subject(open_folder(self.path), family, **options)

    def logits(self, token_ids, *, chunk=None, block_size=16):
        return teacher_forced(self.subject(), token_ids, chunk=chunk, block_size=block_size)

    def reference(self, token_ids, *, chunk=None):
        return transformers_logits(load_transformers(self.path), token_ids, chunk=chunk)


@pytest.fixture
def tiny(tmp_path):
    """Writes a tiny model: ``tiny(architecture, **config overrides)``."""

    def write(architecture="LlamaForCausalLM", name="model", **overrides):
        return TinyModel(write_tiny(tmp_path / name, architecture, **overrides), architecture)

    return write
