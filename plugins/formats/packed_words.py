"""Codes packed into 32-bit words, the first in the lowest bits."""

from typing import Final

import torch

_CHUNK: Final = 32_768
"""Words at a time: they stay in the cache from one pass to the next."""
_SPREAD: Final = ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF), (4, 0x0F0F0F0F0F0F0F0F))
"""Shift and mask of each pass that halves the fields of a word, ending at 4 bits a byte."""


def words_for(count: int, bits: int) -> int:
    """Words that ``count`` codes of 4 or 8 bits need."""
    return -(-count * bits // 32)


def unpack_words(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """int32 [rows, words] -> uint8 [rows, count].

    :param words: contiguous; the last of a row may hold less than its fill. Codes of 8
        bits are a view of them where every word is full
    :param bits: 4 or 8
    """
    if bits == 8:
        return words.view(torch.uint8)[:, :count].contiguous()
    spread = torch.empty(words.numel(), dtype=torch.int64)
    parts = torch.split(words.view(-1), _CHUNK)
    for target, part in zip(torch.split(spread, _CHUNK), parts, strict=True):
        target.copy_(part).bitwise_and_(0xFFFFFFFF)
        for shift, mask in _SPREAD:
            target.bitwise_or_(target << shift).bitwise_and_(mask)
    return spread.view(torch.uint8).view(len(words), -1)[:, :count].contiguous()
