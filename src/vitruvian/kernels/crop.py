"""People cut out of a picture and normalised for a model, all at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.at_once import crop_at_once, normalize_at_once, sent
from vitruvian.images.normalize import ChannelValues
from vitruvian.images.windows import Floats, sample_places
from vitruvian.kernels.available import OFF, has_triton


def crop_and_normalize(
    pixels: Tensor,
    boxes_xywh: Tensor | Floats,
    output_hw: tuple[int, int],
    *,
    scale: float | None,
    mean: ChannelValues | None,
    std: ChannelValues | None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return what `rescale_and_normalize` makes of `crop_boxes`, without asking the device anything.

    The kernel is one launch, and takes about half a dozen calls of torch where its twin takes two hundred.

    Args:
        pixels: A picture [C, H, W] on any device.
        boxes_xywh: Boxes [N, 4] on the CPU.
        output_hw: Size of the crops.
        scale: A factor for the raw values; None leaves them.
        mean: One number, or one a channel, after scaling; None takes nothing away.
        std: Likewise; None leaves the scale.
        dtype: Data type of the result.

    Returns:
        [N, C, h, w].
    """
    if takes_kernel(pixels):
        from vitruvian.kernels import crop_triton

        boxes = boxes_xywh.cpu().numpy() if isinstance(boxes_xywh, Tensor) else boxes_xywh
        places = sample_places(boxes, output_hw)  # [N, 1 + w + h]
        factors, shifts = constants(scale, mean, std)
        return crop_triton.crop(pixels, sent(places, pixels.device), output_hw, factors, shifts, dtype)
    crops = crop_at_once(pixels, torch.as_tensor(boxes_xywh), output_hw)
    return normalize_at_once(crops, scale=scale, mean=mean, std=std, in_place=True).to(dtype)


def takes_kernel(pixels: Tensor) -> bool:
    """Tell whether the kernel takes a picture [C, H, W]: 8-bit RGB on a CUDA device."""
    fits = pixels.is_cuda and pixels.dtype == torch.uint8 and pixels.ndim == 3 and pixels.shape[0] == 3
    return fits and 0 not in pixels.shape and has_triton() and "crop" not in OFF


def constants(
    scale: float | None, mean: ChannelValues | None, std: ChannelValues | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the factor and the shift of each of three channels: (pixels · scale − mean) / std = pixels · f + s."""
    divisors = per_channel(1.0 if std is None else std, "std")
    middles = per_channel(0.0 if mean is None else mean, "mean")
    if min(divisors) <= 0:
        raise InputError(f"std: expected positive numbers, got {list(divisors)}. Use 1 for no scaling.")
    factor = 1.0 if scale is None else scale
    shifts = tuple(-middle / divisor for middle, divisor in zip(middles, divisors, strict=True))
    return tuple(factor / divisor for divisor in divisors), shifts


def per_channel(values: ChannelValues, name: str) -> tuple[float, ...]:
    """Return three numbers from one or three."""
    found = np.asarray(values, np.float64).reshape(-1).tolist()
    if len(found) not in (1, 3):
        raise InputError(f"{name}: expected 1 or 3 numbers for 3 channels, got {len(found)}.")
    return tuple(found * 3)[:3]
