"""Smooth lines along the borders of label maps and masks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from vitruvian.draw.canvas import Picture, tint


def borders(labels: NDArray[Any], *, both: bool = True) -> NDArray[np.bool_]:
    """Mark pixels on both sides of each border between labels, or on its left and upper side: [H, W] -> bool [H, W]."""
    edge = np.zeros(labels.shape, dtype=bool)
    across, down = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    edge[:, :-1] |= across
    edge[:-1] |= down
    if both:
        edge[:, 1:] |= across
        edge[1:] |= down
    return edge


def lay_outline(canvas: Picture, labels: NDArray[Any], *, colour: Any, width: float, opacity: float) -> None:
    """Draw smooth lines of about `width` pixels along the borders between labels [H, W] onto `canvas`, in place."""
    edge = borders(labels, both=width >= 2)  # a thin line has no room for two pixels
    rows, columns = np.flatnonzero(edge.any(1)), np.flatnonzero(edge.any(0))
    if not len(rows):
        return
    margin = int(np.ceil(2 * width)) + 1
    window = (
        slice(max(int(rows[0]) - margin, 0), int(rows[-1]) + margin + 1),
        slice(max(int(columns[0]) - margin, 0), int(columns[-1]) + margin + 1),
    )
    weight = _softened(np.ascontiguousarray(edge[window]), width=width, opacity=opacity)
    canvas[window] = tint(np.ascontiguousarray(canvas[window]), colour, weight)


def _softened(edge: NDArray[np.bool_], *, width: float, opacity: float) -> Picture:
    """Turn the band of marked pixels into a smooth line: weight uint8 [h, w], `opacity` in its middle."""
    # Blurring spreads the band, and the gain makes its middle solid again: the steps of the map turn into a line.
    spread = max(0.5, width / 2.6)
    soft = Image.fromarray(edge.view(np.uint8) * np.uint8(255)).filter(ImageFilter.GaussianBlur(spread))
    gain = max(1.0, 1.55 * spread) if width >= 2 else 1.4
    return np.asarray(soft.point([round(min(255, value * gain) * opacity) for value in range(256)]))


def inner_point(mask: NDArray[np.bool_], *, grid: int = 40) -> tuple[float, float]:
    """A point (x, y) deep inside a mask [H, W] that has at least one pixel: where a label belongs."""
    height, width = mask.shape
    step = max(1, -(-max(height, width) // grid))
    high, wide = -(-height // step) * step, -(-width // step) * step
    padded = np.zeros((high, wide), dtype=bool)
    padded[:height, :width] = mask
    share = padded.reshape(high // step, step, wide // step, step).mean((1, 3))  # [h, w]
    inside = share >= min(0.5, float(share.max()))
    depth = _depth(inside)
    y, x = np.nonzero(depth == depth.max())
    nearest = np.argmin((y - y.mean()) ** 2 + (x - x.mean()) ** 2)  # the middle of a plateau
    return (float(x[nearest]) + 0.5) * step - 0.5, (float(y[nearest]) + 0.5) * step - 0.5


def _depth(inside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many times a mask [h, w] can be peeled before each cell is gone."""
    left = np.pad(inside, 1)
    depth = left.astype(np.int64)
    while left.any():
        core = left[1:-1, 1:-1] & left[:-2, 1:-1] & left[2:, 1:-1] & left[1:-1, :-2] & left[1:-1, 2:]
        left = np.pad(core, 1)
        depth += left
    return depth[1:-1, 1:-1]
