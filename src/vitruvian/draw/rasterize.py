"""Rasterize anti-aliased lines and dots; only the pixels that they cover are computed.

A stroke covers all points within `radius` of a line segment; a dot is a segment of length 0. The coverage of a pixel
follows from the distance of its center to the segment:

    strokes ─rows─▶ (stroke, y) ─spans─▶ (stroke, y, x) ─distance─▶ coverage ─sort by pixel─▶ blend in order

The point (x, y) is the center of pixel (x, y). Strokes thinner than a pixel become transparent.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.canvas import image_hw
from vitruvian.images.connected_components import run_positions
from vitruvian.images.types import Float32Array, IntArray, RgbImage, SizeHW

_Point = Sequence[float] | NDArray[np.float64]  # x, y

_MAX_PIXELS = 2**20  # number of pixels painted together, to limit memory
_LARGE_STROKE_PIXELS = 1500  # pixels: strokes that cover more are painted one by one, without sorting
_ENTRY_BITS = 28
_MAX_DISTANCE = 16.0  # image sides: strokes to farther points are left out, since float32 would be inexact


@dataclass
class Strokes:
    """A list of strokes, painted in order."""

    rows: list[tuple[float, ...]] = field(default_factory=list)  # x0 y0 x1 y1 radius red green blue opacity

    def line(self, start: _Point, end: _Point, *, radius: float, color: Sequence[int], opacity: float = 1.0) -> None:
        """Add a line between two points (x, y) with round ends."""
        red, green, blue = color
        row = (start[0], start[1], end[0], end[1], radius, red, green, blue, opacity)
        self.rows.append(tuple(float(value) for value in row))

    def dot(self, point: _Point, *, radius: float, color: Sequence[int], opacity: float = 1.0) -> None:
        """Add a disc around a point (x, y)."""
        self.line(point, point, radius=radius, color=color, opacity=opacity)

    def paint(self, image: RgbImage) -> None:
        """Paint all strokes onto `image` uint8 [H, W, 3], in place, the first one lowest."""
        size_hw = image_hw(image)
        table = np.asarray(self.rows, dtype=np.float64).reshape(-1, 9)  # [N, 9]
        near = np.abs(table[:, :4]).max(1) <= _MAX_DISTANCE * max(size_hw)  # false for NaN
        drawn: Float32Array = table[near & (table[:, 4] > 0) & (table[:, 8] > 0)].astype(np.float32)
        stroke, y, first, count = _spans(drawn, size_hw)
        area = np.bincount(stroke, weights=count, minlength=len(drawn))  # [N] pixels
        large = area > _LARGE_STROKE_PIXELS
        alone = large | np.concatenate([[False], large[:-1]])  # a large stroke starts a group, and so does the next one
        group = np.cumsum(alone) + area.cumsum() // _MAX_PIXELS  # [N]
        cuts = np.flatnonzero(np.diff(group[stroke])) + 1  # between groups of rows
        for start, end in itertools.pairwise([0, *cuts.tolist(), len(stroke)]):
            if start < end:
                rows = slice(start, end)
                _paint(image, drawn, stroke[rows], y[rows], first[rows], count[rows])


def _spans(table: Float32Array, size_hw: SizeHW) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the rows of pixels that strokes may cover: stroke, y, first x and number of pixels, each [rows]."""
    height, width = size_hw
    x0, y0, x1, y1, radius = table[:, :5].T
    reach = radius + 0.5
    top = np.clip(np.ceil(np.minimum(y0, y1) - reach), 0, height).astype(np.int64)
    bottom = np.clip(np.floor(np.maximum(y0, y1) + reach), -1, height - 1).astype(np.int64)
    count = np.maximum(bottom - top + 1, 0)
    stroke, y = np.repeat(np.arange(len(count)), count), run_positions(top, count)
    x0, y0, x1, y1, reach = x0[stroke], y0[stroke], x1[stroke], y1[stroke], reach[stroke]
    slope = y1 - y0
    flat = np.abs(slope) < 1e-6
    safe = np.where(flat, 1, slope)
    a, b = (y - reach - y0) / safe, (y + reach - y0) / safe  # where the segment is within reach of this row
    enter = np.where(flat, 0, np.clip(np.minimum(a, b), 0, 1))
    leave = np.where(flat, 1, np.clip(np.maximum(a, b), 0, 1))
    xa, xb = x0 + enter * (x1 - x0), x0 + leave * (x1 - x0)
    left = np.clip(np.ceil(np.minimum(xa, xb) - reach), 0, width).astype(np.int64)
    right = np.clip(np.floor(np.maximum(xa, xb) + reach), -1, width - 1).astype(np.int64)
    return stroke, y, left, np.maximum(right - left + 1, 0)


def _paint(
    image: RgbImage, table: Float32Array, stroke: IntArray, y: IntArray, first: IntArray, count: IntArray
) -> None:
    """Paint rows of pixels of strokes."""
    if not count.any():  # outside of the image
        return
    x, y, stroke = run_positions(first, count), np.repeat(y, count), np.repeat(stroke, count)  # [entries]
    cover = _cover(table, stroke, x, y)
    visible = np.flatnonzero(cover > 0.004)  # less is under one level of 255
    if not len(visible):
        return
    flat = image.reshape(-1, 3)
    index, alpha = y[visible] * image.shape[1] + x[visible], cover[visible]
    if stroke[0] == stroke[-1]:  # all of one stroke: no pixel occurs twice
        mixed = flat[index].astype(np.float32)  # [entries, 3]
        mixed += (table[stroke[0], 5:8] - mixed) * alpha[:, None]
        flat[index] = np.rint(mixed).astype(np.uint8)
        return
    # One sort of integers groups entries by pixel and keeps the order of the strokes.
    keys = np.sort((index << _ENTRY_BITS) | np.arange(len(index)))
    entry, pixel = keys & ((1 << _ENTRY_BITS) - 1), keys >> _ENTRY_BITS
    starts = np.flatnonzero(np.diff(pixel, prepend=-1))
    depth = np.diff(starts, append=len(pixel))  # strokes over each pixel
    deepest_first = np.argsort(-depth, kind="stable")
    starts, depth = starts[deepest_first], depth[deepest_first]
    alpha, color = alpha[entry], table[stroke[visible[entry]], 5:8]
    mixed = flat[pixel[starts]].astype(np.float32)  # [pixels, 3]
    for rank in range(int(depth[0])):
        deep = int(np.searchsorted(-depth, -rank, side="left"))  # pixels with more than `rank` strokes
        entries = starts[:deep] + rank
        mixed[:deep] += (color[entries] - mixed[:deep]) * alpha[entries, None]
    flat[pixel[starts]] = np.rint(mixed).astype(np.uint8)


def _cover(table: Float32Array, stroke: IntArray, x: IntArray, y: IntArray) -> Float32Array:
    """Return the share of each pixel that its stroke covers, times the opacity of the stroke: [entries]."""
    x0, y0, x1, y1, radius = table[:, :5].T
    along_x, along_y = x1 - x0, y1 - y0  # [N]
    length2 = np.maximum(along_x**2 + along_y**2, 1e-9)
    which: IntArray | np.int64 = stroke if stroke[0] != stroke[-1] else stroke[0]  # one index is faster
    dx, dy = x - x0[which], y - y0[which]  # [entries]
    t = np.clip(dx * (along_x / length2)[which] + dy * (along_y / length2)[which], 0, 1)
    dx -= t * along_x[which]
    dy -= t * along_y[which]
    distance = np.sqrt(dx * dx + dy * dy)
    cover = np.clip(radius[which] + 0.5 - distance, 0, np.minimum(1, 2 * radius)[which])
    result: Float32Array = (cover * table[which, 8]).astype(np.float32)
    return result
