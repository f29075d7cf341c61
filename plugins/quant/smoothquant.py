"""SmoothQuant (Xiao et al., arXiv 2211.10438): int8 weights and int8 activations.

A weight has a scale a row; activations one a token, or one a layer. Products of int8 with
int8 add up exactly in int32, in any order: a row's result has the same bits whatever
stands beside it. A model in float is calibrated and smoothed at its first use and kept in
the cache; one that was quantized for int8 activations keeps its codes.
"""

from pathlib import Path
from typing import Literal

import msgspec
import structlog
import torch

from enginebay import hookimpl
from enginebay.errors import ModelError, StackError
from enginebay.hookspecs.format import Checkpoint, Quantized, StoredWeight
from enginebay.hookspecs.model import ModelFamily, ModelSpec, Role
from enginebay.hookspecs.quant import PackedLinear, QuantContext, Quantizer, QuantReport
from enginebay.ledger.process import give_back

from .calibration_text import calibration_text, sequences
from .int_quantized import write_folder
from .kept import Kept, key_of
from .prepared import Prepared, open_prepared
from .quantization import Recipe, quantize_model
from .selection import Selection
from .tally import Tally
from .w8a8 import quantized

CONTRACT = (1, 0)
ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

log = structlog.get_logger("enginebay.quant")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is quantized, and how."""

    head: Literal["int8", "float"] = "int8"
    """The last layer: int8 as the others, or in the compute dtype (better, slower)."""
    ignore: tuple[str, ...] = ()
    """Layers left in float: names as ``enginebay explain`` has them or of single
    projections, with ``*`` and ``?`` (``model.layers.0.*``, ``*.down_proj``)."""
    activations: Literal["dynamic", "static"] = "dynamic"
    """A scale for each token, or one for each layer, found by calibration (worse)."""
    smoothing: bool = True
    """Calibrate and smooth a float model at its first use. Without, weights are rounded as
    they are, at each start."""
    alpha: float | Literal["search"] = "search"
    """How much of what is hard moves into weights, 0 to 1; or the best for each layer."""
    calibration: str = ""
    """A UTF-8 text file; empty: English that ships with Python."""
    calibration_tokens: int = 2048
    """At most so many, from all over the text."""


class SmoothQuant:
    """Packs weights for int8 products, and takes int8 codes that a checkpoint has."""

    def __init__(self, options: Options, cache: Path | None = None) -> None:
        """:param cache: in place of the platform's folder

        :raises StackError: an option that can't be honoured
        """
        _check(options)
        self.options = options
        self.tally = Tally()
        self._selection = Selection(options.ignore, float_head=options.head == "float")
        self._cache = cache
        self._calibration = ""
        self._stored = False
        """Whether the checkpoint was quantized for int8 activations."""
        self._foreign: set[str] = set()
        """Layers with codes of another form."""
        self._static = options.activations == "static"

    @property
    def activations(self) -> str:
        """int8, with a scale a token (dynamic) or a layer (static)."""
        return "int8 static" if self._static else "int8 dynamic"

    def prepare(self, spec: ModelSpec, family: ModelFamily, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint in int8, from the cache or made now; one that is made for int8
        activations stays as it is.

        :raises StackError: ``ignore`` or ``calibration`` doesn't fit
        """
        self._selection.look_at(spec, family)
        if _made_for_int8(spec, family, checkpoint):
            self._stored = True
            return checkpoint
        if not self._calibrates:
            return checkpoint
        self._stored = True
        return self._from_cache(spec, family, checkpoint)

    def write(
        self, spec: ModelSpec, family: ModelFamily, checkpoint: Checkpoint, folder: Path
    ) -> str:
        """Calibrate, smooth and write a model folder.

        :param folder: exists, and is empty
        :return: how it was calibrated
        :raises ModelError: the checkpoint is quantized for int8 activations already
        """
        self._selection.look_at(spec, family)
        if _made_for_int8(spec, family, checkpoint):
            msg = f"{checkpoint.location}: is quantized for int8 activations already"
            raise ModelError(f"{msg}; give the unquantized model")
        options = self.options
        called, text = calibration_text(options.calibration)
        windows = sequences(text, checkpoint.text, spec, options.calibration_tokens)
        recipe = Recipe(self._alphas, self._static, self._selection.reason)
        made = quantize_model(spec, family, checkpoint, windows, recipe)
        config = made.config(checkpoint.config, static=self._static)
        write_folder(folder, checkpoint, made.tensors, config)
        return f"{called}, {sum(map(len, windows)):,} tokens; {made.told_alphas()}"

    def pack(
        self, name: str, role: Role, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> PackedLinear:
        """A layer of the scheme ``w8a8``, or ``float`` where it is to be left alone.

        :param weight: [N, K] in the compute dtype; nothing of it is kept but in ``float``
        """
        reason = self._selection.reason(name, (), role)
        if not reason and self._stored and name not in self._foreign:
            reason = "the checkpoint has it in float"
        if reason:
            return self.tally.float_layer(name, weight, bias, reason)
        codes, scales = quantized(weight)
        return self.tally.int8_layer(name, codes, scales, bias)

    def pack_stored(
        self, name: str, role: Role, stored: StoredWeight, bias: torch.Tensor | None
    ) -> PackedLinear | None:
        """The checkpoint's own codes, where they have this scheme's form: int8 without
        offsets, one scale a row, made for int8 activations."""
        form = stored.form
        whole_rows = form.bits == 8 and form.group_size == stored.codes.shape[1]
        if self._selection.reason(name, (), role):
            return None
        if not whole_rows or form.offsets or form.inputs != "int8":
            self._foreign.add(name)
            return None
        self._static = stored.input_scale is not None
        scales = stored.scales.flatten()
        return self.tally.int8_layer(name, stored.codes, scales, bias, stored.input_scale)

    def report(self) -> QuantReport:
        """What it has packed so far."""
        return QuantReport(
            scheme="w8a8",
            activations=self.activations,
            scales="channel",
            weight_bytes=self.tally.weight_bytes,
            metadata_bytes=self.tally.metadata_bytes,
            float_layers=self.tally.float_layers,
            calibration=self._calibration,
        )

    @property
    def _alphas(self) -> tuple[float, ...]:
        if not self.options.smoothing:
            return ()
        return ALPHAS if self.options.alpha == "search" else (self.options.alpha,)

    @property
    def _calibrates(self) -> bool:
        return self.options.smoothing or self.options.activations == "static"

    def _from_cache(self, spec: ModelSpec, family: ModelFamily, checkpoint: Checkpoint) -> Prepared:
        called, text = calibration_text(self.options.calibration)
        key = key_of(checkpoint, [msgspec.to_builtins(self.options), called, text, ALPHAS])
        kept = Kept(self._cache)
        for attempt in range(2):
            folder, record = kept.get(key, lambda to: self.write(spec, family, checkpoint, to))
            self._calibration = record.calibration
            give_back()  # what calibrating took is not the engine's
            try:
                return open_prepared(folder, checkpoint, kept)
            except ModelError:
                if attempt:
                    raise
                kept.forget(key)
        raise AssertionError


def _made_for_int8(spec: ModelSpec, family: ModelFamily, checkpoint: Checkpoint) -> bool:
    """Whether any of a checkpoint's weights was quantized for int8 activations."""
    if not isinstance(checkpoint, Quantized):
        return False
    forms = (checkpoint.form(w.name) for w in family.weights(spec) if w.role in ("linear", "head"))
    return any(form is not None and form.inputs == "int8" for form in forms)


def _check(options: Options) -> None:
    """:raises StackError: a value out of range, or one that would do nothing"""
    alpha, calibrates = options.alpha, options.smoothing or options.activations == "static"
    if alpha != "search" and not 0 <= alpha <= 1:
        raise StackError(f"quant: alpha = {alpha}: must be from 0 to 1, or 'search'")
    if alpha != "search" and not options.smoothing:
        raise StackError(f"quant: alpha = {alpha} does nothing with smoothing = false")
    if options.calibration and not calibrates:
        msg = f"quant: calibration = {options.calibration!r} does nothing with smoothing = false"
        raise StackError(f"{msg} and dynamic activations")
    if options.calibration_tokens < 2:  # a window has two at least
        msg = f"quant: calibration_tokens = {options.calibration_tokens}: must be 2 or more"
        raise StackError(msg)


@hookimpl
def enginebay_quant(options: Options, context: QuantContext) -> Quantizer:
    """Build the scheme."""
    return SmoothQuant(options)
