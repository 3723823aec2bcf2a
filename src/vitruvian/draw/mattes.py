"""Mattes over a checkerboard or any other ground."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitruvian.draw.canvas import Picture, checked_field, checked_map, checked_picture, size_of
from vitruvian.errors import InputError

LIGHT, DARK = 250, 208


def checkerboard(size_hw: tuple[int, int], cell: int | None = None) -> Picture:
    """Return a light checkerboard uint8 [H, W, 3]; `cell` is the side of a square in pixels, None: fits the size."""
    height, width = size_hw
    if height < 1 or width < 1:
        raise InputError(f"size_hw: expected a height and a width over 0, got {size_hw}.")
    if cell is not None and cell < 1:
        raise InputError(f"cell: expected at least one pixel, got {cell}. Leave it out to fit the size.")
    side = cell or max(4, round(max(size_hw) / 60))
    odd = (np.arange(height)[:, None] // side + np.arange(width)[None, :] // side) % 2  # [H, W]
    grey = np.where(odd == 1, DARK, LIGHT).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)  # [H, W, 3]


def lay_over(foreground: Any, alpha: Any, ground: Picture) -> Picture:
    """Composite a premultiplied foreground over a ground: ``foreground + (1 - alpha) x ground``.

    Args:
        foreground: [H, W, 3] floating point 0..1, colour times alpha.
        alpha: [H, W] 0..1.
        ground: uint8 [H, W, 3].
    """
    front = checked_field(foreground, name="foreground")
    cover = checked_map(alpha, name="alpha", size_hw=size_of(front))
    back = checked_picture(ground, name="ground")
    if size_of(back) != size_of(front):
        raise InputError(
            f"ground: expected the foreground's size, {list(size_of(front))}, got {list(size_of(back))}. Resize it."
        )
    out = np.empty(front.shape, dtype=np.uint8)
    for start in range(0, len(front), 64):  # a few rows at a time stay in the cache
        rows = slice(start, start + 64)
        mixed = np.multiply(front[rows], 255, dtype=np.float32)
        mixed += (1 - np.asarray(cover[rows], dtype=np.float32))[..., None] * back[rows]
        mixed += 0.5
        if not np.isfinite(mixed.sum()):
            np.nan_to_num(mixed, copy=False)
        np.copyto(out[rows], np.clip(mixed, 0, 255, out=mixed), casting="unsafe")
    return out


def over_checkerboard(foreground: Any, alpha: Any, *, cell: int | None = None) -> Picture:
    """Composite a premultiplied foreground [H, W, 3] 0..1 with its alpha [H, W] over a checkerboard."""
    front = checked_field(foreground, name="foreground")
    return lay_over(front, alpha, checkerboard(size_of(front), cell))
