"""Stage ``attention``: the paged kernel against torch's attention over contiguous tensors.

torch's has an easier task: its keys and values lie in order, without block tables. Values
are compared in float32 over the same inputs. Bytes are the keys and values that a decode
must read; multiply-adds are those of the visible scores, twice.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from enginebay.conformance.batches import Stretch, make_batch
from enginebay.hookspecs.kernel import KernelContext, KVSpec
from enginebay.plugins.kernels.triton_attention import Options, TritonAttention, TritonKernels

from .clock import seconds
from .stage import Report

BLOCK = 16
CLOSE = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 2e-5}


@dataclass(frozen=True)
class Load:
    """Sequences whose last ``rows`` rows end at ``context``."""

    heads: int
    kv_heads: int
    dim: int
    sequences: int
    context: int
    rows: int
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        kind = "decode" if self.rows == 1 else "prompt"
        shape = f"{self.heads}/{self.kv_heads}x{self.dim} {self.dtype}"
        return f"{kind} {self.sequences} at {self.context:,}, {shape}"


SMALL, LARGE = (9, 3, 64), (32, 8, 128)
LOADS = (
    *(Load(*SMALL, sequences, 512, 1) for sequences in (1, 16, 64)),
    *(Load(*LARGE, sequences, 4096, 1) for sequences in (1, 16, 64)),
    Load(*LARGE, 16, 4096, 1, "float16"),
    Load(*SMALL, 16, 512, 1, "float32"),
    Load(*SMALL, 1, 2048, 2048),
    Load(*LARGE, 1, 2048, 2048),
    Load(*LARGE, 4, 4096, 512),
)
DRY = (Load(4, 2, 16, 2, 40, 1, "float32"), Load(4, 2, 16, 1, 40, 40, "float16"))


def run(report: Report, *, dry: bool, model: str) -> None:
    """Each load by itself."""
    for load in DRY if dry else LOADS:
        report.part(str(load), lambda load=load: compare(load, "cpu" if dry else "cuda"))


def compare(load: Load, device: str) -> tuple[dict[str, Any], str]:
    """Check, then time.

    :raises ValueError: the results differ by more than the dtype explains
    """
    attention = built(load, device)
    kind = getattr(torch, load.dtype)
    noise = torch.Generator(device).manual_seed(load.context)
    shape = (load.sequences, load.context)
    q, k, v = (
        torch.randn((*shape, heads, load.dim), generator=noise, device=device, dtype=kind)
        for heads in (load.heads, load.kv_heads, load.kv_heads)
    )
    fill(attention, load, k, v, device)
    queries = q[:, -load.rows :].flatten(0, 1).contiguous()
    given = attention.attend(0, queries)
    theirs = contiguous(load, q, k, v)
    wanted = contiguous(load, q.float(), k.float(), v.float())()
    wanted = wanted.transpose(1, 2).reshape(given.shape)
    difference = (given.float() - wanted).abs().max().item()
    if not difference <= CLOSE[load.dtype]:  # NaN is not
        raise ValueError(f"differs by {difference:.2e}, {CLOSE[load.dtype]:.0e} is right")
    ours, torchs = seconds(lambda: attention.attend(0, queries)), seconds(theirs)
    facts = {"seconds": ours, "torch_seconds": torchs, "difference": difference}
    facts |= rates(load, ours)
    rate = " ".join(f"{value / 1e9:,.0f} {unit}" for unit, value in rates(load, ours).items())
    return facts, f"{1e6 * ours:,.1f} us, torch {1e6 * torchs:,.1f} us; {rate}; {difference:.0e}"


def built(load: Load, device: str) -> TritonAttention:
    """One layer with room for the load, as its kernel table would build it."""
    spec = KVSpec(
        num_layers=1,
        num_heads=load.heads,
        num_kv_heads=load.kv_heads,
        head_dim=load.dim,
        block_size=BLOCK,
        max_model_len=load.context,
        dtype=load.dtype,
        scale=load.dim**-0.5,
    )
    kernels = TritonKernels(Options(), KernelContext(device=device, threads=1))
    attention = kernels.attention(spec)
    attention.allocate(load.sequences * -(-load.context // BLOCK))
    return attention


def fill(
    attention: TritonAttention, load: Load, k: torch.Tensor, v: torch.Tensor, device: str
) -> None:
    """Write all keys and values (not rotated) into scattered blocks, then plan the rows."""
    blocks = -(-load.context // BLOCK)
    order = torch.randperm(load.sequences * blocks, generator=torch.Generator().manual_seed(1))
    tables = order.view(load.sequences, blocks).tolist()
    angles = torch.zeros(load.sequences * load.context, load.dim // 2, device=device)
    cos_sin = torch.cat((angles + 1, angles), dim=1)
    q = k.new_zeros((k.shape[0] * k.shape[1], load.heads, load.dim))
    attention.prepare(_batch(load, tables, load.context, device))
    attention.write(0, q, k.flatten(0, 1), v.flatten(0, 1), cos_sin)
    attention.prepare(_batch(load, tables, load.rows, device))


def _batch(load: Load, tables: list[list[int]], rows: int, device: str) -> Any:
    ids, start = [0] * load.context, load.context - rows
    return make_batch([Stretch(ids, start, table) for table in tables], BLOCK, device)


def contiguous(load: Load, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
    """torch's attention over [sequences, heads, positions, dim], the last rows' queries."""
    group = load.heads // load.kv_heads
    keys, values = (
        each.transpose(1, 2).repeat_interleave(group, 1).contiguous() for each in (k, v)
    )
    queries = q[:, -load.rows :].transpose(1, 2).contiguous()
    mask = None
    whole = load.rows == load.context
    if not whole and load.rows > 1:
        ends = torch.arange(load.context - load.rows, load.context, device=q.device)
        mask = torch.arange(load.context, device=q.device) <= ends[:, None]
    return lambda: F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=whole
    )


def rates(load: Load, seconds: float) -> dict[str, float]:
    """Bytes a second of a decode, multiply-adds a second of a prompt."""
    if load.rows == 1:
        size = getattr(torch, load.dtype).itemsize
        read = load.sequences * load.context * 2 * load.kv_heads * load.dim * size
        return {"GB/s": read / seconds}
    seen = sum(load.context - back for back in range(load.rows))
    return {"G multiply-adds/s": 2 * load.sequences * seen * load.heads * load.dim / seconds}
