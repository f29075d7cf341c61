"""Keys and values in int8: a head's vector of one token stands for codes times a scale."""

import torch


def to_codes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Round to the nearest of 255 steps, half to even.

    The greatest magnitude becomes 127 or -127. A vector with an infinity or NaN gets a
    scale that is neither finite, so that all of it comes back as NaN.

    :param x: [..., D]
    :return: codes int8 [..., D], each in -127 .. 127; scales float32 [...], 1 for zeros
    """
    wide = x.float()
    top = wide.abs().amax(-1)
    scales = torch.where(top == 0, 1.0, top / 127)
    codes = (wide / scales[..., None]).nan_to_num(0.0).round().clamp(-127, 127)
    return codes.to(torch.int8), scales


def from_codes(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """codes [..., D] times scales [...], in ``dtype``."""
    return (codes.float() * scales[..., None]).to(dtype)
