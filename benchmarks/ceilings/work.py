"""What an op must do, whoever does it, and the least time that a machine needs for it."""

from dataclasses import dataclass

from enginebay.hookspecs.kernel import KVSpec
from enginebay.hookspecs.quant import PackedLinear

from .limits import Limits


@dataclass(frozen=True)
class Work:
    """What something must do, whoever does it. Bytes, and multiply-adds of products."""

    memory: int = 0
    """Bytes of weights, keys and values."""
    resident: int = 0
    """Bytes that come by before the same ones come again: what a cache would have to hold."""
    cached: int = 0
    """Bytes of activations, read and written."""
    float_macs: int = 0
    int_macs: int = 0

    def seconds(self, limits: Limits) -> tuple[float, str]:
        """The least time on a machine with these limits, and which limit it is."""
        products = self.float_macs / limits.float_macs + self.int_macs / limits.int_macs
        times = {
            "memory": self.memory / limits.bandwidth(self.resident),
            "cache": self.cached / limits.bandwidth(self.cached),
            "arithmetic": products,
        }
        worst = max(times, key=lambda name: times[name])
        return times[worst], worst


@dataclass(frozen=True)
class Timed:
    """One op at one number of rows."""

    op: str
    kernel: str
    rows: int
    seconds: float
    """Of the fastest sample, each the mean over layers or calls."""
    work: Work


def held(packed: PackedLinear) -> int:
    """Bytes that a product with the layer reads of it."""
    parts = [*packed.tensors.values(), *([] if packed.bias is None else [packed.bias])]
    return sum(part.numel() * part.element_size() for part in parts)


def linear_work(packed: PackedLinear, rows: int, resident: int) -> Work:
    """Weights once, rows in and out, and a multiply-add for every row and weight."""
    macs = rows * packed.in_features * packed.out_features
    integer = packed.inputs == "int8"
    row_in = packed.in_features + 4 if integer else 4 * packed.in_features
    return Work(
        memory=held(packed),
        resident=resident,
        cached=rows * (row_in + 4 * packed.out_features),
        float_macs=0 if integer else macs,
        int_macs=macs if integer else 0,
    )


def attention_work(
    spec: KVSpec, token_bytes: int, sequences: int, each: int, context: int
) -> tuple[Work, Work]:
    """(write, attend) of one layer: ``each`` rows of so many sequences that end at
    ``context``. Keys and values are read once; a window bounds what is seen."""
    window = spec.sliding_window or context
    rows, wide = sequences * each, spec.num_heads * spec.head_dim
    resident = sequences * context * token_bytes * spec.num_layers
    seen = sum(min(context - back, window) for back in range(each))
    read = min(context, window + each - 1)
    kv = 2 * spec.num_kv_heads * spec.head_dim
    write = Work(rows * token_bytes, resident, cached=4 * rows * (2 * wide + kv))
    return write, Work(
        memory=sequences * read * token_bytes,
        resident=resident,
        cached=8 * rows * wide,
        float_macs=2 * wide * sequences * seen,
    )
