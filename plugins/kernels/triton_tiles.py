"""Triton kernels of paged attention: write the cache, attend in tiles, join splits.

The tile loop is the online softmax of FlashAttention-2 (Dao, arXiv 2307.08691); a long
context is shared out over splits whose partial results are joined (Flash-Decoding). One
kernel serves prompts, decodes and mixed steps: a tile is a few query rows of one sequence
times the query heads of one KV head.
"""

# ruff: noqa: ANN001, ANN201, N803, SIM108 (Triton's own dialect: pointers, constants, branches)
import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def rotate_and_write(
    q_ptr, k_ptr, v_ptr, cos_sin_ptr, slots_ptr, keys_ptr, values_ptr, num_rows,
    q_row, k_row, v_row, cache_slot, cache_head,
    HEADS: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    HALF: tl.constexpr, HALF_PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (r, h): ROWS rows of one head. Query heads are rotated in place; the key
    heads behind them are rotated into the cache, and their values copied beside."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1)
    live = rows < num_rows
    pairs = tl.arange(0, HALF_PAD)
    paired = live[:, None] & (pairs < HALF)[None, :]
    angles = cos_sin_ptr + rows[:, None] * (2 * HALF) + pairs[None, :]
    cos = tl.load(angles, mask=paired, other=1.0)
    sin = tl.load(angles + HALF, mask=paired, other=0.0)
    if head < HEADS:
        at = q_ptr + rows[:, None] * q_row + head * D + pairs[None, :]
        left = tl.load(at, mask=paired, other=0.0).to(tl.float32)
        right = tl.load(at + HALF, mask=paired, other=0.0).to(tl.float32)
        tl.store(at, (left * cos - right * sin).to(q_ptr.dtype.element_ty), mask=paired)
        tl.store(at + HALF, (right * cos + left * sin).to(q_ptr.dtype.element_ty), mask=paired)
    else:
        kv_head = head - HEADS
        slots = tl.load(slots_ptr + rows, mask=live, other=0)
        place = slots * cache_slot + kv_head * cache_head
        source = k_ptr + rows[:, None] * k_row + kv_head * D
        first = tl.load(source + pairs[None, :], mask=paired, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + pairs[None, :], mask=paired, other=0.0).to(tl.float32)
        keys = keys_ptr + place[:, None]
        turned = (first * cos - second * sin).to(keys_ptr.dtype.element_ty)
        tl.store(keys + pairs[None, :], turned, mask=paired)
        turned = (second * cos + first * sin).to(keys_ptr.dtype.element_ty)
        tl.store(keys + HALF + pairs[None, :], turned, mask=paired)
        dims = tl.arange(0, D_PAD)
        inside = live[:, None] & (dims < D)[None, :]
        if 2 * HALF < D:
            rest = inside & (dims >= 2 * HALF)[None, :]
            kept = tl.load(source + dims[None, :], mask=rest, other=0.0)
            tl.store(keys + dims[None, :], kept.to(keys_ptr.dtype.element_ty), mask=rest)
        source = v_ptr + rows[:, None] * v_row + kv_head * D + dims[None, :]
        value = tl.load(source, mask=inside, other=0.0).to(values_ptr.dtype.element_ty)
        tl.store(values_ptr + place[:, None] + dims[None, :], value, mask=inside)


@triton.jit
def attend_tiles(
    q_ptr, keys_ptr, values_ptr, tables_ptr, owners_ptr, firsts_ptr, starts_ptr, contexts_ptr,
    out_ptr, parts_ptr, tops_ptr, sums_ptr, scale, num_sequences,
    q_row, cache_slot, cache_head, table_row,
    HEADS: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, QUERIES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Program (t, h, s): tile t, KV head h, split s of its context.

    A tile's BLOCK_M lines are QUERIES rows times GROUP heads; lines past them are idle.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    owner = tl.load(owners_ptr + tile)
    if owner >= num_sequences:
        return  # the grid is an upper bound
    end = tl.load(starts_ptr + owner + 1)
    context = tl.load(contexts_ptr + owner)
    first = tl.load(firsts_ptr + tile)

    lines = tl.arange(0, BLOCK_M)
    rows = first + lines // GROUP
    heads = kv_head * GROUP + lines % GROUP
    live = (lines < QUERIES * GROUP) & (rows < end)
    position = context - end + rows
    last = tl.minimum(context - end + first + QUERIES, context)  # positions the tile sees

    dims = tl.arange(0, D_PAD)
    line_at = rows.to(tl.int64)[:, None] * q_row + heads[:, None] * D + dims[None, :]
    if D == D_PAD:
        line_mask = live[:, None]
    else:
        line_mask = live[:, None] & (dims < D)[None, :]
    q = tl.load(q_ptr + line_at, mask=line_mask, other=0.0)

    low = 0
    if WINDOW > 0:
        low = tl.maximum(context - end + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    share = tl.cdiv(tl.cdiv(last - low, SPLITS), BLOCK_N) * BLOCK_N
    low += split * share
    high = tl.minimum(low + share, last)

    top = tl.full([BLOCK_M], NEVER, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, D_PAD], tl.float32)
    for start in range(low, high, BLOCK_N):
        seen = start + tl.arange(0, BLOCK_N)
        there = seen < last
        page = tl.load(tables_ptr + owner * table_row + seen // PAGE, mask=there, other=0)
        slot = page.to(tl.int64) * PAGE + seen % PAGE
        at = slot[:, None] * cache_slot + kv_head * cache_head + dims[None, :]
        if D == D_PAD:
            mask = there[:, None]
        else:
            mask = there[:, None] & (dims < D)[None, :]
        k = tl.load(keys_ptr + at, mask=mask, other=0.0)
        v = tl.load(values_ptr + at, mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        visible = there[None, :] & (seen[None, :] <= position[:, None])
        if WINDOW > 0:
            visible = visible & (seen[None, :] > position[:, None] - WINDOW)
        scores = tl.where(visible, scores, NEVER)
        higher = tl.maximum(top, tl.max(scores, 1))
        base = tl.where(higher == NEVER, 0.0, higher)  # a line that has seen nothing yet
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(weights, 1)
        mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        top = higher

    if SPLITS == 1:
        result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out_ptr + line_at, result.to(out_ptr.dtype.element_ty), mask=line_mask)
    else:
        line = (rows.to(tl.int64) * HEADS + heads) * SPLITS + split
        tl.store(tops_ptr + line, top, mask=live)
        tl.store(sums_ptr + line, total, mask=live)
        tl.store(parts_ptr + line[:, None] * D + dims[None, :], mixed, mask=line_mask)


@triton.jit
def join_splits(
    parts_ptr, tops_ptr, sums_ptr, out_ptr,
    D: tl.constexpr, D_PAD: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Program i: one row and head; partial softmaxes become one. Splits is a power of 2."""
    line = tl.program_id(0).to(tl.int64)
    splits = line * SPLITS + tl.arange(0, SPLITS)
    dims = tl.arange(0, D_PAD)
    inside = dims < D
    top = tl.load(tops_ptr + splits)
    total = tl.load(sums_ptr + splits)
    mixed = tl.load(
        parts_ptr + splits[:, None] * D + dims[None, :], mask=inside[None, :], other=0.0
    )
    highest = tl.max(top, 0)
    weight = tl.where(total > 0.0, tl.exp2(top - highest), 0.0)  # an empty split counts nothing
    result = tl.sum(mixed * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(out_ptr + line * D + dims, result.to(out_ptr.dtype.element_ty), mask=inside)
