"""What a stack chose, as plain data: slots, number formats, kernels, limits and memory.

Of a stack that is only prepared, whose load was rehearsed without reading a tensor, or of
one that was built and loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from .hookspecs.executor import Accounting
from .hookspecs.families import SLOTS
from .identity import served_name, service_version
from .ledger.planning import plan_stack, pool_blocks
from .registry import parse_options

if TYPE_CHECKING:
    from .assembler import Assembler
    from .assembly import Assembly
    from .dispatch import Choice, KernelTable
    from .hookspecs.quant import QuantReport
    from .ledger.lines import Plan
    from .preparation import Preparation
    from .registry import Registry
    from .stack import Stack


def of_prepared(build: Assembler, prepared: Preparation) -> dict[str, Any]:
    """A stack whose plugins are imported and whose model is open; sizes are planned."""
    context, files, options = prepared.context, prepared.files, build.stack.engine
    plan = plan_stack(context)  # resolves every op of the table on the way
    num_blocks = pool_blocks(context.limits, context.kv_bytes, plan.block_bytes)
    num_slots = context.swap_bytes // plan.block_bytes
    limits = msgspec.structs.replace(
        context.limits, num_blocks=num_blocks, num_swap_blocks=num_slots
    )
    return {
        "model": options.served_name or served_name(options.model),
        "origin": files.origin,
        "revision": files.revision,
        "architecture": context.spec.architecture,
        "stack": build.stack.name,
        "service_version": service_version(build.stack, build.registry, files),
        "loaded": False,
        "row_invariant": context.table.row_invariant,
        "limits": msgspec.to_builtins(limits),
        "memory": {line.name: line.planned for line in plan.lines if line.planned},
        "slots": _slots(build.stack, build.registry),
        "quantization": _quantization(plan, plan.quantization),
        "kernels": _kernels(context.table),
    }


def of_loaded(assembly: Assembly) -> dict[str, Any]:
    """A stack that was built, so that what is told is what runs."""
    executor = assembly.executor
    plan = executor.plan if isinstance(executor, Accounting) else None
    return {
        **assembly.engine.info,
        "loaded": True,
        "slots": _slots(assembly.stack, assembly.registry),
        "quantization": _quantization(plan, assembly.quantizer.report()),
        "kernels": _kernels(assembly.table),
    }


def _slots(stack: Stack, registry: Registry) -> dict[str, list[dict[str, Any]]]:
    """Who stands in each slot, with every option; ``set`` names those that the stack sets."""
    slots: dict[str, list[dict[str, Any]]] = {}
    for slot, entries in stack.slots.items():
        slots[slot] = []
        for entry in entries:
            found, module = registry.loaded[SLOTS[slot].name, entry.use]
            slots[slot].append(
                {
                    "name": entry.name,
                    "plugin": entry.use,
                    "from": f"{found.distribution} {found.version}",
                    "options": msgspec.to_builtins(parse_options(entry, module.Options)),
                    "set": sorted(entry.options),
                }
            )
    return slots


def _quantization(plan: Plan | None, report: QuantReport | None) -> dict[str, Any]:
    """Weights, activations and KV; the quantizer's own report, ``None`` when the load could
    not be rehearsed."""
    return {
        "decisions": msgspec.to_builtins(plan.decisions) if plan else [],
        "copies": plan.copies if plan else "",
        "report": msgspec.to_builtins(report) if report else None,
    }


def _kernels(table: KernelTable) -> list[dict[str, Any]]:
    return [_kernel(choice) for choice in table.choices.values()]


def _kernel(choice: Choice) -> dict[str, Any]:
    """``parts``: of a fused op that nobody offers, the ops that it was joined from."""
    signature = choice.signature
    return {
        "op": signature.op,
        "scheme": signature.scheme,
        "sizes": dict(signature.sizes),
        "features": list(signature.features),
        "kernel": choice.kernel,
        "parts": [part.signature.op for part in choice.parts],
        "row_invariant": choice.offer.row_invariant,
        "declined": [f"{name} {reason}" for name, reason in choice.declined],
    }
