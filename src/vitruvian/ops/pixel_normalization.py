"""Rescale and normalize pixels: (pixels · scale − mean) / std as one multiplication and one addition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.errors import InputError
from vitruvian.tensor_cache import cached_tensors

ChannelValues = float | Sequence[float] | Tensor
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def rescale_and_normalize(
    pixels: Tensor,
    *,
    scale: float | None,
    mean: ChannelValues | None,
    std: ChannelValues | None,
    out: Tensor | None = None,
) -> Tensor:
    """Return (pixels · scale − mean) / std as contiguous float32 [..., C, H, W]. Does not synchronize the device.

    Args:
        pixels: [..., C, H, W], any real dtype and memory order.
        scale: A factor for the raw values, 1/255 for 8-bit pixels; None leaves them.
        mean, std: One number, or one for each channel, in units after scaling; None leaves the values.
        out: A float32 tensor of the same shape to write to; `pixels` itself to work in place.
    """
    if pixels.ndim < 3:
        raise InputError(f"pixels: expected shape [..., C, H, W], got {list(pixels.shape)}. Add the missing axes.")
    constants = pinned_copy(channel_constants(pixels.shape[-3], scale, mean, std), pixels.device)[..., None, None]
    if out is None:
        out = torch.empty(pixels.shape, dtype=torch.float32, device=pixels.device)
    elif out.dtype != torch.float32 or out.shape != pixels.shape or out.device != pixels.device:
        raise InputError(
            f"out: expected float32 {list(pixels.shape)} on {pixels.device}, "
            f"got {out.dtype} {list(out.shape)} on {out.device}. Leave it out to get a new tensor."
        )
    if out is not pixels:
        out.copy_(pixels)
    return out.mul_(constants[0]).add_(constants[1])


def channel_constants(
    channels: int, scale: float | None, mean: ChannelValues | None, std: ChannelValues | None
) -> Tensor:
    """Return factors and offsets, float32 [2, C] on the CPU: (pixels · scale − mean) / std = pixels · factor + offset.

    They are computed in float64, rounded once and cached.
    """
    return _channel_constants(
        1.0 if scale is None else float(scale),
        _per_channel(0.0 if mean is None else mean, channels, "mean"),
        _per_channel(1.0 if std is None else std, channels, "std"),
    )


@cached_tensors
def _channel_constants(scale: float, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    if not all(divisor > 0 for divisor in std):
        raise InputError(f"std: expected positive numbers, got {list(std)}. Use 1 for no scaling.")
    offset = [-value / divisor for value, divisor in zip(mean, std, strict=True)]
    return torch.tensor([[scale / divisor for divisor in std], offset], dtype=torch.float64).float()  # [2, C]


def _per_channel(values: ChannelValues, channels: int, name: str) -> tuple[float, ...]:
    """Return one number or one for each channel as C numbers."""
    array = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else values
    numbers = tuple(np.ravel(array).astype(np.float64).tolist())
    if len(numbers) not in (1, channels):
        raise InputError(
            f"{name}: expected 1 or {channels} numbers for {channels} channels, got {len(numbers)}. "
            "Check the channel order of the image and the processor's config."
        )
    return numbers if len(numbers) == channels else numbers * channels
