"""Tiny models in float, and what smoothquant makes of them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from enginebay.conformance.parity import load_subject, teacher_forced
from enginebay.conformance.tiny import write_tiny
from enginebay.hookspecs.format import FormatContext
from enginebay.hookspecs.model import ModelContext
from enginebay.hookspecs.source import Files
from enginebay.plugins.formats import safetensors
from enginebay.plugins.models import llama, mistral, qwen2, qwen3
from enginebay.plugins.quant.smoothquant import Options, SmoothQuant

PLUGINS = {
    "LlamaForCausalLM": llama,
    "MistralForCausalLM": mistral,
    "Qwen2ForCausalLM": qwen2,
    "Qwen3ForCausalLM": qwen3,
}
TOKENS = [1, *range(40, 120), 7, 7, 250]


class TinyModel:
    """A model folder, opened."""

    def __init__(self, path):
        self.path = path
        self.checkpoint = open_folder(path)
        plugin = PLUGINS[self.checkpoint.config["architectures"][0]]
        self.family = plugin.enginebay_model(plugin.Options(), ModelContext())
        self.spec = self.family.spec(self.checkpoint.config)

    def change(self, change):
        """Let ``change`` edit the tensors, by name."""
        file = self.path / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        return TinyModel(self.path)

    def configure(self, **entries):
        """Set entries of the configuration."""
        file = self.path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | entries))
        return TinyModel(self.path)

    def logits(self, quantizer=None):
        """As an engine would load it: prepared, then packed."""
        checkpoint = self.checkpoint
        if quantizer is not None:
            checkpoint = quantizer.prepare(self.spec, self.family, checkpoint)
        subject = load_subject(checkpoint, self.family, quantizer=quantizer)
        return teacher_forced(subject, TOKENS)


def open_folder(path):
    reader = safetensors.enginebay_format(safetensors.Options(), FormatContext())
    return reader.open(Files(path=str(path), origin="test", revision="1"))


def cosine(a, b):
    """Of two sets of logits, around their means."""
    a, b = (each - each.mean(dim=-1, keepdim=True) for each in (a, b))
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


@pytest.fixture
def tiny(tmp_path):
    """``tiny(architecture, **config)``: a model folder, opened."""

    def make(architecture="LlamaForCausalLM", name="model", **config):
        return TinyModel(write_tiny(tmp_path / name, architecture, **config))

    return make


@pytest.fixture
def text(tmp_path):
    """A short text to calibrate on."""
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog, and then once more. " * 12)
    return path


@pytest.fixture
def smooth(tmp_path, text):
    """``smooth(**options)``: the scheme, calibrated on little, with a cache of its own."""

    def make(**options):
        if options.get("smoothing", True) or options.get("activations") == "static":
            options = {"calibration": str(text), "calibration_tokens": 256, **options}
        return SmoothQuant(Options(**options), Path(tmp_path / "cache"))

    return make
