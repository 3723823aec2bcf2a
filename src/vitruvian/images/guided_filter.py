"""Upsampling along the edges of an image (guided filter), and the foreground colors of a matte.

A map that a model predicts at a low resolution is blurred where it is enlarged bilinearly. The guided filter models it,
in each small window, as a linear function of the image's colors. The slopes of these functions are smooth and can be
enlarged; applied to the detail that the image loses at the low resolution, they give the map the same detail. Where
colors do not explain the map it stays as smooth as before.

The time is linear in the number of pixels, whatever the size of the windows, and beside the result only a few rows of
temporary values are live. Both functions run on the device of their inputs without synchronizing it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.resize import resize
from vitruvian.ops.interpolate import bilinear

_RADIUS = 1  # radius of the windows, in pixels of the map
_EPSILON = 1e-3  # variance of colors, from 0 to 1, below which a window has no edges
_BLOCK_PIXELS = 1 << 18  # pixels of one step
_OPAQUE, _CLEAR = 0.95, 0.05  # alpha of pixels that are all foreground, and all background
_COLOR_SIDE = 512  # long side of the image that colors of foreground and background are estimated in
_COLOR_RADII = (32, 8, 2)  # window radii in that image; the smallest window with pixels counts


@torch.no_grad()
def guided_upsample(values: Tensor, image: Tensor) -> Tensor:
    """Upsample maps along the edges of an image: [C, h, w], [3, H, W] -> float32 [C, H, W].

    Args:
        values: Maps that show the same area as the image. All of their values must be finite.
        image: RGB: uint8, or floating point from 0 to 1.
    """
    if values.ndim != 3 or image.ndim != 3 or len(image) != 3 or 0 in (*values.shape, *image.shape):
        raise InputError(
            f"values, image: expected the shapes [C, h, w] and [3, H, W], got {list(values.shape)} and "
            f"{list(image.shape)}."
        )
    height, width = image.shape[1:]
    small, channels = values.float(), len(values)
    # Not rounded to 8 bits, which slopes would magnify; one color after another needs less memory.
    guide = torch.cat([resize(_as_float(color[None]), (values.shape[1], values.shape[2])) for color in image])
    # The values around a pixel bound its result: where the map is flat, texture of the image leaves it so.
    low, high = (sign * F.max_pool2d(sign * small, 3, stride=1, padding=1) for sign in (-1, 1))  # [C, h, w] each
    coarse = torch.cat((_slopes(small, guide).flatten(0, 1), small, low, high, guide))  # [6·C + 3, h, w]
    sizes = [3 * channels, channels, channels, channels, 3]
    out = torch.empty(channels, height, width, device=values.device)
    for rows in _row_blocks(height, width):
        upsampled = _upsampled_rows(coarse, rows, (height, width))  # [6·C + 3, r, W]
        slopes, smooth, low, high, blurred = torch.split(upsampled, sizes)
        detail = _as_float(image[:, rows]) - blurred  # [3, r, W]
        added = torch.unflatten(slopes, 0, (channels, 3)).mul_(detail).sum(1)  # [C, r, W]
        torch.clamp(smooth.add_(added), low, high, out=out[:, rows])
    return out


@torch.no_grad()
def foreground_colors(image: Tensor, alpha: Tensor) -> Tensor:
    """Return the colors of the foreground alone: [3, H, W], [H, W] -> float32 [3, H, W] from 0 to 1.

    Where alpha is 0.95 or more these are the image's. At the fringe the image mixes foreground and background:
    image = alpha · foreground + (1 − alpha) · background. There the colors of opaque and of clear pixels nearby are
    estimates of both, and the foreground is corrected by what they do not explain.

    Args:
        image: RGB: uint8, or floating point from 0 to 1.
        alpha: From 0 to 1.
    """
    height, width = image.shape[1:]
    factor = min(1.0, _COLOR_SIDE / max(height, width))
    small_hw = max(1, round(height * factor)), max(1, round(width * factor))
    small, small_alpha = _as_float(resize(image, small_hw)), resize(alpha[None], small_hw)
    near = torch.cat((_nearby_mean(small, small_alpha >= _OPAQUE), _nearby_mean(small, small_alpha <= _CLEAR)))
    out = torch.empty(3, height, width, device=image.device)
    for rows in _row_blocks(height, width):
        foreground, background = torch.split(_upsampled_rows(near, rows, (height, width)), 3)  # [3, r, W] each
        colors, share = _as_float(image[:, rows]), alpha[rows]
        unexplained = colors - torch.lerp(background, foreground, share)
        corrected = unexplained.mul_(share).add_(foreground).clamp_(0, 1)
        torch.where(share >= _OPAQUE, colors, corrected, out=out[:, rows])
    return out


def _nearby_mean(colors: Tensor, chosen: Tensor) -> Tensor:
    """Return the mean color of the chosen pixels near each pixel: [3, h, w], [1, h, w] -> [3, h, w].

    Their own colors where none is near.
    """
    weighted = torch.cat((colors * chosen, chosen.to(colors.dtype)))  # [4, h, w]
    found = colors
    for radius in _COLOR_RADII:
        total = _window_mean(weighted, radius)
        found = torch.where(total[3] > 1e-6, total[:3] / total[3].clamp(min=1e-6), found)
    return found


def _slopes(values: Tensor, guide: Tensor) -> Tensor:
    """Fit values ≈ slope · color + offset in the window of each pixel, and average the slopes of all its windows.

    [C, h, w], [3, h, w] -> [C, 3, h, w].
    """
    mean = _window_mean(guide)  # [3, h, w]
    products = torch.stack([_window_mean(channel * guide) for channel in guide])  # [3, 3, h, w]
    covariance = products - mean[:, None] * mean  # [3, 3, h, w]
    covariance = covariance + _EPSILON * torch.eye(3, device=guide.device)[:, :, None, None]
    # The inverse of a symmetric matrix [a, b, c]: (b × c, c × a, a × b) / (a · (b × c)).
    first, second, third = covariance
    rows = [torch.linalg.cross(x, y, dim=0) for x, y in ((second, third), (third, first), (first, second))]
    inverse = torch.stack(rows) / (first * rows[0]).sum(0)  # [3, 3, h, w]
    joint = torch.stack([_window_mean(value * guide) for value in values])  # [C, 3, h, w]
    joint = joint - _window_mean(values)[:, None] * mean
    return _window_mean((inverse * joint[:, None]).sum(2))  # [C, 3, h, w]


def _window_mean(maps: Tensor, radius: int = _RADIUS) -> Tensor:
    """Return the mean of the window around each pixel, of the part inside of the map: [..., h, w]."""
    side = 2 * radius + 1
    down = F.avg_pool2d(maps, (side, 1), stride=1, padding=(radius, 0), count_include_pad=False)
    return F.avg_pool2d(down, (1, side), stride=1, padding=(0, radius), count_include_pad=False)


def _row_blocks(height: int, width: int) -> Iterator[slice]:
    """Yield the rows of an image in blocks that limit temporary memory."""
    step = max(1, _BLOCK_PIXELS // width)
    for top in range(0, height, step):
        yield slice(top, min(top + step, height))


def _upsampled_rows(maps: Tensor, rows: slice, size_hw: tuple[int, int]) -> Tensor:
    """Return some rows of maps [C, h, w] that are enlarged bilinearly to a size: [C, r, W]."""
    last = maps.shape[1] - 1
    centers = torch.arange(rows.start, rows.stop, device=maps.device) + 0.5  # [r]
    position = (centers * (maps.shape[1] / size_hw[0]) - 0.5).clamp(0, last)
    above = position.long()
    share = (position - above)[:, None]  # [r, 1]
    mixed = torch.lerp(maps[:, above], maps[:, (above + 1).clamp(max=last)], share)  # [C, r, w]
    return bilinear(mixed, (len(centers), size_hw[1]))


def _as_float(image: Tensor) -> Tensor:
    """Return colors from 0 to 1, float32."""
    return image.float() / 255 if image.dtype == torch.uint8 else image.float()
