"""Arrays [H, W, C] and tensors [C, H, W]: which of them an image is, and conversion between them."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.types import RgbImage, SizeHW


def size_of(pixels: Tensor) -> SizeHW:
    """Return (height, width) of [..., H, W]."""
    return int(pixels.shape[-2]), int(pixels.shape[-1])


def as_tensor(array: NDArray[np.generic]) -> Tensor:
    """Convert an array to a tensor, without a copy where torch can share its memory."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:  # such as bgr[..., ::-1]
        array = array.copy()
    try:
        return torch.as_tensor(array)
    except TypeError as error:
        raise InputError(f"images: expected arrays of numbers, got {array.dtype}.") from error


def pixels_of(image: RgbImage) -> Tensor:
    """Return an image [H, W, 3] as a tensor [3, H, W], without a copy where torch can share its memory."""
    return as_tensor(image).permute(2, 0, 1)  # [3, H, W]


def channels_first(pixels: Tensor, input_data_format: str | None = None, channels: int = 3) -> Tensor:
    """Convert [H, W], [H, W, C] or [C, H, W] to [C, H, W] of 3 or `channels` channels; gray is repeated."""
    if pixels.ndim == 2:
        pixels = pixels[None]  # [1, H, W]
    elif pixels.ndim != 3:
        raise InputError(f"images: expected arrays of 2 or 3 dimensions, got the shape {list(pixels.shape)}.")
    elif is_channels_last(pixels, input_data_format, channels):
        pixels = pixels.permute(2, 0, 1)  # [C, H, W]
    if pixels.shape[0] == 1:
        pixels = pixels.expand(channels, -1, -1)  # [C, H, W]
    if pixels.shape[0] not in (3, channels):
        known = "1 or 3" if channels in (1, 3) else f"1, 3 or {channels}"
        raise InputError(
            f"images: expected {known} channels, got the shape {list(pixels.shape)}. Convert to RGB, pass "
            "input_data_format='channels_last', or pass image_mean and image_std with a number for each channel."
        )
    return pixels


def is_channels_last(pixels: Tensor, input_data_format: str | None, channels: int = 3) -> bool:
    """Return whether the channels of [C, H, W] or [H, W, C] come last, by the argument or else by the shape."""
    if input_data_format is not None:
        return _checked_format("input_data_format", input_data_format) == "channels_last"
    known = (1, 3, channels)
    return pixels.ndim == 3 and pixels.shape[0] not in known and pixels.shape[-1] in known


def in_data_format(values: Any, data_format: str | None) -> Any:
    """Return [..., C, H, W], an array, a tensor or a list of them, as [..., H, W, C] for "channels_last"."""
    if data_format is None or _checked_format("data_format", data_format) == "channels_first":
        return values
    if isinstance(values, (list, tuple)):
        return [in_data_format(value, data_format) for value in values]
    return values.movedim(-3, -1) if isinstance(values, Tensor) else np.moveaxis(values, -3, -1)


def _checked_format(name: str, data_format: str) -> str:
    """Return "channels_first" or "channels_last"; the enumeration of transformers is accepted too."""
    value = data_format.value if isinstance(data_format, enum.Enum) else data_format
    if value not in ("channels_first", "channels_last"):
        raise InputError(f"{name}: expected 'channels_first' or 'channels_last', got {value!r}.")
    return str(value)
