"""The argument block of attention: one row of 64-bit words that every task reads.

Addresses point at float32 unless said; ``*_STEP`` are distances in elements of what
they step over. ``prepare`` and ``allocate`` fill most words once; a call sets its own.
"""

from typing import Final

# sizes
GROUP: Final = 0
"""Query heads of a KV head."""
KV_HEADS: Final = 1
DIMS: Final = 2
"""head_dim."""
PADDED: Final = 3
"""head_dim, rounded up to a multiple of 16: the row length of scratch."""
BLOCK_SIZE: Final = 4
WINDOW: Final = 5
"""Positions a query sees at most; 0: no bound."""
ELEMENT: Final = 6
"""Bytes of a key's or value's element: 4 for float32, 1 for int8."""
PANEL: Final = 7
"""Positions of a key panel: 16, or the block's when that is no multiple of 16."""
SCALE: Final = 8
"""A float32 in the word's first half, the soft cap in the other; a cap of 0 is none, and
with one the scale is divided by it."""

# the step
CONTEXTS: Final = 9
"""int32 [S]"""
ROW_STARTS: Final = 10
"""int32 [S + 1]"""
TABLES: Final = 11
"""int32 [S, ...]"""
TABLE_STEP: Final = 12
SLOTS: Final = 13
"""int64 [T]"""
ROWS: Final = 14
"""T."""
PIECES: Final = 15
"""int64 [pieces, PIECE_WORDS]."""
PARTIALS: Final = 16
"""What parts of a context have come to: [parts, KV heads, PIECE_ROWS * (2 + PADDED)]."""
COUNTERS: Final = 17
"""int64 [parts, KV heads]: parts done, at a piece's first part; else 0."""

# the call
QUERIES: Final = 18
QUERY_STEP: Final = 19
OUTPUT: Final = 20
KEYS: Final = 21
"""The layer's keys [blocks, KV heads, panels, dims, panel]."""
VALUES: Final = 22
"""The layer's values [blocks, KV heads, block size, dims]."""
KEY_SCALES: Final = 23
"""With int8: the layer's [blocks, KV heads, block size]; else 0."""
VALUE_SCALES: Final = 24
NEW_KEYS: Final = 25
NEW_KEY_STEP: Final = 26
NEW_VALUES: Final = 27
NEW_VALUE_STEP: Final = 28
ANGLES: Final = 29
"""cosines, then sines: [T, ROTARY]."""
ANGLE_STEP: Final = 30
ROTARY: Final = 31

# scratch memory, one part a slot of the pool; addresses of slot 0, distance in bytes
SCRATCH: Final = 32
SCRATCH_STEP: Final = 33
PIECE_ROWS: Final = 34
"""Query rows of a piece and KV head at most."""

STATES: Final = 35
"""Where a thread's scratch for rows begins, in bytes after that for a tile."""

ITEMS: Final = 36
"""Items of ``attend`` in this step, then their work in nanoseconds."""

NUM_WORDS: Final = 40

# a piece: rows of one sequence, with all of their context or a part of it
SEQUENCE: Final = 0
FIRST_ROW: Final = 1
NUM_ROWS: Final = 2
PARTS: Final = 3
"""Into how many its context is shared out; 0: it is not."""
PART: Final = 4
FIRST_PART: Final = 5
"""The number of its first part among those of the step."""
PIECE_WORDS: Final = 8

RANGE: Final = 512
"""Positions whose softmax is summed by itself: what a part is, for any number of threads."""
