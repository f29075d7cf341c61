"""The preparation: a model is found and opened, its kernels are chosen; nothing is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .dispatch import KernelTable
from .hookspecs.executor import ExecutorContext
from .hookspecs.kernel import KernelContext
from .hookspecs.quant import Preparing, QuantContext
from .hookspecs.sampler import SamplerContext
from .sampling import Chain
from .threads import configure_threads

if TYPE_CHECKING:
    from .assembler import Assembler
    from .hookspecs.source import Files


@dataclass(frozen=True)
class Preparation:
    """A model's files, and all that an executor is built with."""

    files: Files
    context: ExecutorContext


def prepare(build: Assembler, *, to_run: bool = True) -> Preparation:
    """Import a stack's plugins, open its model, and choose what will run it.

    :param to_run: let the quantizer look at the whole model, which may take as long as a
        calibration; a plan needs only shapes, which that does not change
    :raises StackError: the stack file is wrong
    :raises PluginError: a chosen plugin can't be used
    :raises ModelError: the model can't be found or read
    """
    options = build.stack.engine
    build.load_all()
    threads = configure_threads(options.threads)
    build.lap("plugins")
    files, checkpoint = build.checkpoint()
    family, spec = build.model(checkpoint)
    build.lap("open")
    quantizer = build.one("quant", QuantContext(dtype=options.dtype, device=options.device))
    if to_run and isinstance(quantizer, Preparing):
        checkpoint = quantizer.prepare(spec, family, checkpoint)
        family, spec = build.model(checkpoint)
        build.lap("quantize")
    kernels = build.chain(
        "kernels", lambda entry: KernelContext(device=options.device, threads=threads)
    )
    sampler = SamplerContext(vocab_size=spec.vocab_size, text=checkpoint.text)
    context = ExecutorContext(
        spec=spec,
        family=family,
        checkpoint=checkpoint,
        table=KernelTable(kernels, require_row_invariant=options.require_row_invariant),
        quantizer=quantizer,
        chain=Chain(build.chain("samplers", lambda entry: sampler), spec.vocab_size),
        limits=build.limits(spec),
        kv_bytes=options.kv_bytes(),
        dtype=options.dtype,
        cache_dtype=options.cache_dtype(),
        device=options.device,
        threads=threads,
        swap_bytes=options.swap_bytes(),
        before_load=build.before_load,
    )
    return Preparation(files, context)
