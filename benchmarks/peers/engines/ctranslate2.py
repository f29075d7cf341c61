"""CTranslate2 with int8 weights: its ``Generator`` over a model converted here.

The conversion is by CTranslate2's own specification of a decoder, from the float32 folder
alone, so neither transformers nor torch is needed beside it.
"""

import json
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerDecoderModelSpec, common_spec

from . import Facts, Mark, Setup

NEVER = 0
"""The token that would end a sequence: a control token. Every request asks for as many
tokens at least as at most, so it can't."""


class Engine:
    """A model with int8 matrices; activations are quantized as it multiplies."""

    def __init__(self, setup: Setup) -> None:
        folder = Path(setup.work) / "ctranslate2"
        if not folder.exists():
            convert(Path(setup.weights), folder)
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type="int8", intra_threads=setup.threads
        )
        self.facts = Facts(
            version=ctranslate2.__version__,
            weights="int8 a channel, activations int8",
            kv="float32",
            bits="8-bit",
            threads=setup.threads,
        )

    def generate(self, prompts: list[list[int]], tokens: int, mark: Mark | None) -> list[list[int]]:
        """Continue all prompts at once."""
        options: dict[str, Any] = {}
        if mark is not None:
            options["callback"] = lambda step: bool(mark(step.step + 1))
        answers = self._generator.generate_batch(
            [[str(token) for token in prompt] for prompt in prompts],
            min_length=tokens,
            max_length=tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[NEVER],
            **options,
        )
        return [list(answer.sequences_ids[0]) for answer in answers]


def convert(source: Path, target: Path) -> None:
    """Write a Llama-like model as CTranslate2 stores it, matrices in int8.

    :param source: a folder with ``config.json`` and float32 ``model.safetensors``
    :raises ValueError: an architecture whose layers are other than Llama's
    """
    config = json.loads((source / "config.json").read_text("utf-8"))
    if config["architectures"] != ["LlamaForCausalLM"] or config.get("rope_scaling"):
        raise ValueError(f"{config['architectures']}: only plain Llama models are converted")
    spec = TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        config["num_attention_heads"],
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=config["rope_theta"],
        num_heads_kv=config["num_key_value_heads"],
    )
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    _fill(spec.decoder, read(source / "model.safetensors"))
    words = [str(token) for token in range(config["vocab_size"])]
    spec.config.bos_token = spec.config.eos_token = spec.config.unk_token = words[NEVER]
    spec.register_vocabulary(words)
    spec.validate()
    spec.optimize(quantization="int8")
    target.mkdir(parents=True)
    spec.save(str(target))


def read(path: Path) -> dict[str, np.ndarray]:
    """The float32 tensors of a safetensors file."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
        data = np.fromfile(stream, "<f4")
    header.pop("__metadata__", None)
    tensors = {}
    for name, each in header.items():
        begin, end = (at // data.itemsize for at in each["data_offsets"])
        tensors[name] = data[begin:end].reshape(each["shape"])
    return tensors


def _fill(decoder: Any, tensors: dict[str, np.ndarray]) -> None:
    decoder.scale_embeddings = False
    decoder.embeddings.weight = tensors["model.embed_tokens.weight"]
    decoder.projection.weight = tensors.get("lm_head.weight", decoder.embeddings.weight)
    decoder.layer_norm.gamma = tensors["model.norm.weight"]
    for number, layer in enumerate(decoder.layer):
        own = {
            name.removeprefix(f"model.layers.{number}.").removesuffix(".weight"): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.layers.{number}.")
        }
        attention, ffn = layer.self_attention, layer.ffn
        attention.layer_norm.gamma = own["input_layernorm"]
        rows = [own[f"self_attn.{part}_proj"] for part in "qkv"]
        attention.linear[0].weight = np.concatenate(rows)
        attention.linear[1].weight = own["self_attn.o_proj"]
        ffn.layer_norm.gamma = own["post_attention_layernorm"]
        ffn.linear_0.weight = own["mlp.gate_proj"]
        ffn.linear_0_noact.weight = own["mlp.up_proj"]
        ffn.linear_1.weight = own["mlp.down_proj"]
