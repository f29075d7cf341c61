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
SCALE: Final = 6
"""A float32 in the word's first half."""

# the step
CONTEXTS: Final = 8
"""int32 [S]"""
ROW_STARTS: Final = 9
"""int32 [S + 1]"""
TABLES: Final = 10
"""int32 [S, ...]"""
TABLE_STEP: Final = 11
SLOTS: Final = 12
"""int64 [T]"""
ROWS: Final = 13
"""T."""
PIECES: Final = 14
"""int64 [pieces, 3]: sequence, first row, rows."""

# the call
QUERIES: Final = 16
QUERY_STEP: Final = 17
OUTPUT: Final = 18
KEYS: Final = 19
"""The layer's keys [blocks, KV heads, dims, block size]."""
VALUES: Final = 20
"""The layer's values [blocks, KV heads, block size, dims]."""
NEW_KEYS: Final = 21
NEW_KEY_STEP: Final = 22
NEW_VALUES: Final = 23
NEW_VALUE_STEP: Final = 24
ANGLES: Final = 25
"""cosines, then sines: [T, ROTARY]."""
ANGLE_STEP: Final = 26
ROTARY: Final = 27

# scratch memory, one part a slot of the pool; addresses of slot 0, distance in bytes
SCRATCH: Final = 28
SCRATCH_STEP: Final = 29
PIECE_ROWS: Final = 30
"""Query rows of a piece and KV head at most."""

NUM_WORDS: Final = 32
