"""The model's weights in the forms that peers read, each made once in a work folder.

All hold the same values: what enginebay reads from the checkpoint, dequantized to float32
(``folder``), and that rounded once more to 8 bits in GGUF's blocks (``q8_0``); ``gguf`` is
the file itself.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import save_file

from enginebay.assembler import Assembler
from enginebay.config import load_stack
from enginebay.hookspecs.format import Checkpoint


@dataclass(frozen=True)
class Source:
    """A model that enginebay found."""

    path: Path
    checkpoint: Checkpoint

    @property
    def ids(self) -> list[int]:
        """Token ids that stand for text: neither control tokens nor unused rows."""
        text = self.checkpoint.text
        size = min(text.tokenizer.get_vocab_size(), int(self.checkpoint.config["vocab_size"]))
        return [each for each in range(size) if each not in text.special_ids]


def find(model: str) -> Source:
    """:raises enginebay.errors.ModelError: there is no such model, or it can't be read"""
    files, checkpoint = Assembler(load_stack("cpu", {"engine.model": model})).checkpoint()
    return Source(Path(checkpoint.location or files.path), checkpoint)


def export(source: Source, form: str, work: Path) -> Path:
    """A form of the weights, made unless it is there.

    :param form: ``folder``, ``q8_0`` or ``gguf``
    :raises ValueError: the model can't be had in this form
    """
    if form == "gguf":
        return _own_file(source)
    target = work / (form if form == "folder" else f"{form}.gguf")
    if not target.exists():
        made = target.with_name(f"unfinished-{target.name}")
        if form == "folder":
            write_folder(source.checkpoint, made)
        else:
            write_gguf(_own_file(source), made, form)
        made.rename(target)
    return target


def prepare(source: Source, work: Path) -> None:
    """Empty the work folder when it was made from another model."""
    stat = source.path.stat()
    print_of = json.dumps([str(source.path.resolve()), stat.st_size, stat.st_mtime_ns])
    note = work / "made-from.json"
    if work.is_dir() and not (note.exists() and note.read_text("utf-8") == print_of):
        if any(work.iterdir()) and not note.exists():
            raise ValueError(f"--work {work}: has files that are not this program's")
        shutil.rmtree(work)
    work.mkdir(parents=True, exist_ok=True)
    note.write_text(print_of, "utf-8")


def write_folder(checkpoint: Checkpoint, folder: Path) -> None:
    """A Hugging Face model folder in float32."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tensors = {name: checkpoint.load(name).float().contiguous() for name in checkpoint.tensors}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**checkpoint.config, "torch_dtype": "float32", "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2), "utf-8")
    checkpoint.text.tokenizer.save(str(folder / "tokenizer.json"))


def write_gguf(source: Path, target: Path, kind: str) -> None:
    """The same GGUF file with its matrices in another block type."""
    reader = gguf.GGUFReader(source)
    to = gguf.GGMLQuantizationType[kind.upper()]
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, entry in reader.fields.items():
        if not name.startswith("GGUF.") and name != gguf.Keys.General.ARCHITECTURE:
            _copy_entry(writer, name, entry)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if _is_matrix(tensor.shape):
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, to), raw_dtype=to)
        else:
            writer.add_tensor(tensor.name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_entry(writer: gguf.GGUFWriter, name: str, entry: gguf.ReaderField) -> None:
    value = entry.contents()
    if name == gguf.Keys.General.FILE_TYPE:
        value = int(gguf.LlamaFileType.MOSTLY_Q8_0)
    inner = entry.types[-1] if entry.types[0] == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, value, entry.types[0], sub_type=inner)


def _is_matrix(shape: Sequence[int]) -> bool:
    return len(shape) > 1


def _own_file(source: Source) -> Path:
    if source.path.suffix != ".gguf":
        raise ValueError(f"{source.path} is no GGUF file, and only such a one is rewritten as one")
    return source.path
