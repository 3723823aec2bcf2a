"""Bilinear interpolation of maps, with the pixel grid of torch, PIL and OpenCV (`align_corners=False`)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F


def bilinear(maps: Tensor, size_hw: Sequence[int], *, antialias: bool = False) -> Tensor:
    """Resize maps [h, w], [C, h, w] or [B, C, h, w] to [..., H, W]; maps of that size are returned themselves.

    Args:
        maps: Floating-point maps.
        size_hw: Height and width of the result.
        antialias: Average over more pixels where maps are reduced.
    """
    height, width = size_hw
    if maps.shape[-2] == height and maps.shape[-1] == width:
        return maps
    added = 4 - maps.ndim
    batch = maps[(None,) * added]  # [B, C, h, w]
    resized = F.interpolate(batch, size=(height, width), mode="bilinear", align_corners=False, antialias=antialias)
    return resized[(0,) * added]  # [..., H, W]
