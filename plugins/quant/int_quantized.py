"""A model folder with int8 weights: compressed-tensors, format ``int-quantized``.

Each projection has ``X.weight`` (int8 [N, K]) and ``X.weight_scale`` [N, 1]; with static
activations ``X.input_scale`` [1]. Other engines read it as well.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from enginebay.hookspecs.format import Checkpoint, TextAssets

TEXT_FILES: Final = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"),
)
WEIGHTS: Final = "model.safetensors"


def write_folder(
    folder: Path, checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor], config: Any
) -> None:
    """Write a whole model folder, on disk when this returns.

    :param folder: exists, and is empty
    :param checkpoint: the model's own; its tokenizer goes with it
    :param tensors: every tensor, by its stored name
    :param config: of ``config.json``
    """
    generation = dict(checkpoint.generation)
    generation.setdefault("eos_token_id", list(checkpoint.text.eos_token_ids))
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", generation)
    _write_text(folder, checkpoint)
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / WEIGHTS, metadata={"format": "pt"})
    # The library makes it readable by its owner alone.
    (folder / WEIGHTS).chmod((folder / "config.json").stat().st_mode)
    for path in folder.rglob("*"):
        if path.is_file():
            _to_disk(path)


def quantization_config(left: Sequence[str], *, static: bool) -> dict[str, Any]:
    """The entry ``quantization_config``.

    :param left: modules that stay in float
    :param static: whether activations have one scale a layer, not one a token
    """
    inputs = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "tensor" if static else "token",
        "dynamic": not static,
    }
    weights = {**inputs, "strategy": "channel", "dynamic": False}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(left),
    }


def _write_text(folder: Path, checkpoint: Checkpoint) -> None:
    """The tokenizer's own files where it has any, else what is known of it."""
    source = Path(checkpoint.location)
    if (source / "tokenizer.json").is_file():
        for name in TEXT_FILES:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        if (more := source / "additional_chat_templates").is_dir():
            shutil.copytree(more, folder / more.name)
        return
    checkpoint.text.tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(checkpoint.text))


def _tokenizer_config(text: TextAssets) -> dict[str, Any]:
    templates: Any = text.templates.get("default")
    if set(text.templates) - {"default"}:
        templates = [{"name": name, "template": each} for name, each in text.templates.items()]
    given = {"chat_template": templates} if templates else {}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **text.special_tokens,
        **given,
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _to_disk(path: Path) -> None:
    """A rename must not reach the disk before what it renames."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
