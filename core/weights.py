"""A checkpoint becomes a decoder: every tensor accounted for, once in memory."""

from collections.abc import Callable
from typing import Any

import structlog
import torch

from .dispatch import KernelTable
from .errors import ModelError
from .hookspecs.executor import Holding
from .hookspecs.format import Checkpoint, Quantized
from .hookspecs.kernel import OpSignature
from .hookspecs.model import Decoder, ModelFamily, ModelSpec, Role, Weight, check_weights
from .hookspecs.quant import KeepsStored, PackedLinear, Quantizer
from .ledger.storages import storage_key
from .program import Program
from .stored import rehearsed, stacked

log = structlog.get_logger("enginebay.weights")

HARMLESS = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Ends of names of buffers that older checkpoints store beside the weights."""


class CheckpointBuilder:
    """What a model family builds its decoder with (``enginebay.hookspecs.model``).

    ``holdings`` is everything that stays in memory, by name, no storage twice: the
    ledger's line ``weights``. Source tensors are copied one at a time and dropped. On
    the device ``meta`` nothing is read and nothing takes memory: a rehearsal.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: tuple[Weight, ...],
        quantizer: Quantizer,
        table: KernelTable,
        dtype: str,
        device: str,
    ) -> None:
        self.checkpoint = checkpoint
        self.shapes = {weight.name: weight.shape for weight in weights}
        self.roles = {weight.name: weight.role for weight in weights}
        self.quantizer = quantizer
        self.table = table
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._dtype_name = dtype
        self.device = torch.device(device)
        self.tensors: dict[str, torch.Tensor] = {}
        self.holdings: dict[str, Holding] = {}
        self.programs: list[Program] = []
        self._known: set[int] = set()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of the checkpoint in the stack's compute dtype, on its device."""
        kept = self.tensors.get(name)
        if kept is None:
            kept = self._stack((name,))
            self._hold(name, kept, self.roles[name])
        return kept

    def keep(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Enter a tensor that the decoder made itself."""
        self._hold(name, tensor, "constant")
        return tensor

    def linear(self, name: str, parts: tuple[str, ...], role: Role = "linear") -> PackedLinear:
        """Weights ``parts`` stacked by rows, packed by the quantization plugin and laid out
        by the kernel that will multiply with them.

        A single part that ``tensor`` gave out before (tied embeddings) is handed to
        the quantizer as it is, so an unquantized head shares its memory. Parts that the
        checkpoint stores as codes of one form are offered to the quantizer as they are.
        """
        biases = [part.removesuffix(".weight") + ".bias" for part in parts]
        bias = self._stack(tuple(biases)) if biases[0] in self.shapes else None
        packed = self._keep_stored(name, parts, role, bias)
        if packed is None:
            shared = self.tensors.get(parts[0]) if len(parts) == 1 else None
            weight = self._stack(parts) if shared is None else shared
            packed = self.quantizer.pack(name, role, weight, bias)
        lay_out = self.table.choose(packed.signature(role, self._dtype_name)).offer.pack
        if lay_out is not None:
            packed = lay_out(packed)
        for key, tensor in packed.tensors.items():
            kind = role if key == "weight" else "metadata"
            self._hold(f"{name}.{key}", tensor, kind, packed.scheme)
        if packed.input_scale is not None:
            self._hold(f"{name}.input_scale", packed.input_scale, "metadata", packed.scheme)
        if packed.bias is not None:
            self._hold(f"{name}.bias", packed.bias, "bias")
        return packed

    def op(self, signature: OpSignature) -> Callable[..., Any]:
        """The chosen kernel for an op."""
        return self.table.resolve(signature)

    def program(self, body: Callable[..., None]) -> Program:
        """The decoder's layers, in the form that the kernels run fastest."""
        self.programs.append(Program(body, self.table))
        return self.programs[-1]

    def _stack(self, names: tuple[str, ...]) -> torch.Tensor:
        """Tensors joined along axis 0, in memory of their own.

        Always a copy: a reader may hand out views of a mapped file, which are not
        aligned for the kernels and belong to nobody's ledger line.
        """
        rows = sum(self.shapes[name][0] for name in names)
        shape = (rows, *self.shapes[names[0]][1:])
        joined = torch.empty(shape, dtype=self.dtype, device=self.device)
        start = 0
        if self.device.type == "meta":
            return joined
        for name in names:
            part = self.checkpoint.load(name).detach()
            joined[start : start + part.shape[0]].copy_(part)
            start += part.shape[0]
        return joined

    def _keep_stored(
        self, name: str, parts: tuple[str, ...], role: Role, bias: torch.Tensor | None
    ) -> PackedLinear | None:
        """The layer with the checkpoint's own codes, when both sides can do that."""
        checkpoint, quantizer = self.checkpoint, self.quantizer
        if not isinstance(checkpoint, Quantized) or not isinstance(quantizer, KeepsStored):
            return None
        form = checkpoint.form(parts[0])
        if form is None or any(checkpoint.form(part) != form for part in parts[1:]):
            return None
        if self.device.type == "meta":
            stored = rehearsed(form, [self.shapes[part] for part in parts])
        else:
            stored = stacked([checkpoint.stored(part) for part in parts])
        return quantizer.pack_stored(name, role, stored, bias)

    def _hold(self, name: str, tensor: torch.Tensor, role: str, scheme: str = "") -> None:
        """Record a tensor, unless it shares a recorded storage."""
        key = storage_key(tensor)
        if key not in self._known:
            self._known.add(key)
            self.tensors[name] = tensor
            self.holdings[name] = Holding("weights", name, tensor, role, scheme)


def open_builder(
    spec: ModelSpec,
    family: ModelFamily,
    checkpoint: Checkpoint,
    quantizer: Quantizer,
    table: KernelTable,
    dtype: str,
    device: str,
) -> CheckpointBuilder:
    """Hold a checkpoint against a model's needs, warn, and make its builder.

    :raises ModelError: a tensor is missing, misshapen or defined in two ways, or the
        checkpoint is quantized in a form that would be read as plain numbers
    """
    _check_taken_over(checkpoint)
    weights = family.weights(spec)
    extras = check_weights(checkpoint, weights)
    if spec.tie_embeddings and "lm_head.weight" in extras:
        _check_tied_head(checkpoint)
        extras = tuple(name for name in extras if name != "lm_head.weight")
    unknown = [name for name in extras if not name.endswith(HARMLESS)]
    if unknown:
        log.warning(
            "the checkpoint has tensors that the model does not use",
            location=checkpoint.location,
            count=len(unknown),
            names=unknown[:8],
        )
    _warn_of_half(spec, checkpoint, dtype)
    return CheckpointBuilder(checkpoint, weights, quantizer, table, dtype, device)


def load_decoder(
    spec: ModelSpec,
    family: ModelFamily,
    checkpoint: Checkpoint,
    quantizer: Quantizer,
    table: KernelTable,
    dtype: str,
    device: str,
) -> tuple[Decoder, dict[str, torch.Tensor]]:
    """Check a checkpoint's tensors and build the decoder.

    :return: the decoder, and every tensor it keeps, by name, no storage twice (the
        ledger's line ``weights``)
    :raises ModelError: a tensor is missing, misshapen or defined in two ways
    """
    builder = open_builder(spec, family, checkpoint, quantizer, table, dtype, device)
    return family.build(spec, builder), builder.tensors


def _check_taken_over(checkpoint: Checkpoint) -> None:
    """Codes without their scales would load, and mean nothing."""
    quantization = checkpoint.config.get("quantization_config")
    if quantization and not isinstance(checkpoint, Quantized):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        msg = (
            f"{checkpoint.location}: config.json has a 'quantization_config' of method "
            f"{method!r}, which the format that opened it can't read; use one that can, the "
            "model's unquantized weights or a GGUF file"
        )
        raise ModelError(msg)


def _check_tied_head(checkpoint: Checkpoint) -> None:
    """A tied model may store its head as well, but not with values of its own."""
    head = checkpoint.load("lm_head.weight")
    embeddings = checkpoint.load("model.embed_tokens.weight")
    if not torch.equal(head.float(), embeddings.float()):
        msg = (
            f"{checkpoint.tensors['lm_head.weight'].file}: 'lm_head.weight' differs from "
            "'model.embed_tokens.weight', but config.json has tie_word_embeddings true; "
            "set it to false to use both, or remove 'lm_head.weight'"
        )
        raise ModelError(msg)


def _warn_of_half(spec: ModelSpec, checkpoint: Checkpoint, dtype: str) -> None:
    """float16 ends at 65504; weights trained in bfloat16 may need more."""
    stored = {info.dtype.lower() for info in checkpoint.tensors.values()}
    if dtype == "float16" and (spec.dtype == "bfloat16" or stored & {"bf16", "bfloat16"}):
        log.warning(
            "the model was trained in bfloat16 and runs in float16: activations past 65504 "
            "overflow; use dtype = 'bfloat16' or 'float32' if its output breaks",
            location=checkpoint.location,
        )
