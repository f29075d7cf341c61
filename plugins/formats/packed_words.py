"""Codes packed into 32-bit words, the first in the lowest bits."""

import torch


def words_for(count: int, bits: int) -> int:
    """Words that ``count`` codes of 4 or 8 bits need."""
    return -(-count * bits // 32)


def unpack_words(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """int32 [rows, words] -> uint8 [rows, count], memory of its own for 4 bits.

    :param words: contiguous; the last one of a row may hold fewer than its codes
    :param bits: 4 or 8
    """
    octets = words.view(torch.uint8)
    if bits == 8:
        return octets[:, :count].contiguous()
    codes = torch.empty(len(octets), octets.shape[1], 2, dtype=torch.uint8)
    torch.bitwise_and(octets, 15, out=codes[:, :, 0])
    torch.bitwise_right_shift(octets, 4, out=codes[:, :, 1])
    return codes.view(len(octets), -1)[:, :count].contiguous()
