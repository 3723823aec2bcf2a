"""Pixel values → what a model expects: (pixels · scale − mean) / std as one multiplication and one addition."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vitruvian.errors import InputError

ChannelValues = float | Sequence[float] | Tensor


def rescale_and_normalize(
    pixels: Tensor,
    *,
    scale: float | None,
    mean: ChannelValues | None,
    std: ChannelValues | None,
    out: Tensor | None = None,
) -> Tensor:
    """Return (pixels · scale − mean) / std as float32 [..., C, H, W], in planes whatever the memory order of `pixels`.

    Args:
        pixels: [..., C, H, W], any real dtype.
        scale: a factor for the raw values, 1/255 for 8-bit pixels; None leaves them.
        mean, std: one number, or one a channel, in units after scaling; None leaves values where they are.
        out: a float32 tensor of the same shape to write to; `pixels` itself to work in place.

    The result is the only memory taken.
    """
    if pixels.ndim < 3:
        raise InputError(f"pixels: expected shape [..., C, H, W], got {list(pixels.shape)}. Add the missing axes.")
    channels = pixels.shape[-3]
    divisor = _per_channel(1.0 if std is None else std, channels, "std")  # [C]
    if not bool((divisor > 0).all()):
        raise InputError(f"std: expected positive numbers, got {divisor.tolist()}. Use 1 for no scaling.")
    factor = (1.0 if scale is None else scale) / divisor  # [C]
    shift = -_per_channel(0.0 if mean is None else mean, channels, "mean") / divisor  # [C]
    result = _destination(pixels, out)
    result.mul_(_spread(factor, pixels.device))
    return result.add_(_spread(shift, pixels.device))


def _destination(pixels: Tensor, out: Tensor | None) -> Tensor:
    """Return float32 memory that holds the values of `pixels`."""
    if out is None:
        return torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device).copy_(pixels)
    if out.dtype != torch.float32 or out.shape != pixels.shape or out.device != pixels.device:
        raise InputError(
            f"out: expected float32 {list(pixels.shape)} on {pixels.device}, "
            f"got {out.dtype} {list(out.shape)} on {out.device}. Leave it out to get a new tensor."
        )
    return out if out is pixels else out.copy_(pixels)


def _per_channel(values: ChannelValues, channels: int, name: str) -> Tensor:
    """Return `values` as float64 [C] or [1]: rounding happens once, in the final constants."""
    numbers = torch.as_tensor(values, dtype=torch.float64, device="cpu").reshape(-1)  # [C] or [1]
    if numbers.numel() not in (1, channels):
        raise InputError(
            f"{name}: expected 1 or {channels} numbers for {channels} channels, got {numbers.numel()}. "
            "Check the channel order of the picture and the processor's config."
        )
    return numbers


def _spread(values: Tensor, device: torch.device) -> Tensor:
    return values.to(torch.float32).to(device).view(-1, 1, 1)  # [C, 1, 1]
