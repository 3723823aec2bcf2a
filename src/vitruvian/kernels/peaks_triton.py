"""Keypoints from heatmaps in one kernel: a program finds a map's peak, blurs around it, and takes the Newton step.

It does what `models/sapiens2/decoding.py` says, without asking the device which maps have to be blurred whole: a
program whose map needs it does so. It then goes down the map line by line; each line, blurred across, is added to the
ten sums of the lines that are still to come.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.kernels.peaks import MOST_TAPS

CHUNK = 2048  # pixels at a time while looking for the peak
FLOOR, CEILING = tl.constexpr(1e-3), tl.constexpr(50.0)


@triton.jit
def _weights(far, g0, g1, g2, g3, g4, g5):
    # The Gaussian at whole distances.
    near = tl.where(far == 0, g0, tl.where(far == 1, g1, tl.where(far == 2, g2, 0.0)))
    return tl.where(far == 3, g3, tl.where(far == 4, g4, tl.where(far == 5, g5, near)))


@triton.jit
def _blurred(start, x, y, height, width, g0, g1, g2, g3, g4, g5):
    # The blurred map at a point, which is held inside it; zeros lie outside.
    step = tl.arange(0, 16) - 5
    across = tl.minimum(tl.maximum(x, 0), width - 1) + step
    down = tl.minimum(tl.maximum(y, 0), height - 1) + step
    weight = _weights(tl.abs(step), g0, g1, g2, g3, g4, g5)
    inside = ((down >= 0) & (down < height))[:, None] & ((across >= 0) & (across < width))[None, :]
    tile = tl.load(start + down[:, None] * width + across[None, :], mask=inside, other=0.0).to(tl.float32)
    return tl.sum(tl.sum(tile * weight[None, :], 1) * weight, 0)


@triton.jit
def _pair(line, c, far: tl.constexpr, pixels):
    # The sum of two pixels of a line at a distance to either side; zeros lie outside.
    left = tl.load(line + c - far, mask=(c >= far) & (c - far < pixels), other=0.0).to(tl.float32)
    right = tl.load(line + c + far, mask=c + far < pixels, other=0.0).to(tl.float32)
    return left + right


@triton.jit
def _step(value, scale):
    return tl.log(tl.minimum(tl.maximum(value * scale, FLOOR), CEILING))


@triton.jit(do_not_specialize=["height", "width"])
def _find(
    maps_ptr, out_ptr, height, width, g0, g1, g2, g3, g4, g5, chunk: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    one = tl.program_id(0).to(tl.int64)
    pixels = height * width
    start = maps_ptr + one * pixels
    nothing = float("-inf")

    lane = tl.arange(0, chunk)
    best = tl.full([chunk], nothing, tl.float32)
    place = tl.zeros([chunk], tl.int32)
    for first in tl.range(0, pixels, chunk):
        at = first + lane
        value = tl.load(start + at, mask=at < pixels, other=nothing).to(tl.float32)
        place = tl.where(value > best, at, place)
        best = tl.maximum(best, value)
    peak = tl.max(best, 0)
    index = tl.min(tl.where(best == peak, place, pixels), 0)  # of several, the first
    # A map without any value above 0 has its peak at (-1, -1), as in the reference.
    x = tl.where(peak > 0, index % width, -1)
    y = tl.where(peak > 0, index // width, -1)

    center = _blurred(start, x, y, height, width, g0, g1, g2, g3, g4, g5)
    right = _blurred(start, x + 1, y, height, width, g0, g1, g2, g3, g4, g5)
    left = _blurred(start, x - 1, y, height, width, g0, g1, g2, g3, g4, g5)
    below = _blurred(start, x, y + 1, height, width, g0, g1, g2, g3, g4, g5)
    above = _blurred(start, x, y - 1, height, width, g0, g1, g2, g3, g4, g5)
    far = _blurred(start, x + 1, y + 1, height, width, g0, g1, g2, g3, g4, g5)
    near = _blurred(start, x - 1, y - 1, height, width, g0, g1, g2, g3, g4, g5)

    # The factor that gives the blurred map its old maximum matters only where a value may meet the clamp.
    low = tl.minimum(tl.minimum(tl.minimum(right, left), tl.minimum(below, above)), tl.minimum(far, near))
    high = tl.maximum(tl.maximum(tl.maximum(right, left), tl.maximum(below, above)), tl.maximum(far, near))
    low, high = tl.minimum(low, center), tl.maximum(high, center)
    most = tl.maximum(peak / tl.maximum(center, 1e-12), 1.0)
    scale = tl.full([], 1.0, tl.float32)
    if (low <= FLOOR) | (high * most >= CEILING):
        c = tl.arange(0, columns)
        a0 = tl.zeros([columns], tl.float32)  # the sum of the line that this one completes
        a1 = tl.zeros([columns], tl.float32)
        a2 = tl.zeros([columns], tl.float32)
        a3 = tl.zeros([columns], tl.float32)
        a4 = tl.zeros([columns], tl.float32)
        a5 = tl.zeros([columns], tl.float32)
        a6 = tl.zeros([columns], tl.float32)
        a7 = tl.zeros([columns], tl.float32)
        a8 = tl.zeros([columns], tl.float32)
        a9 = tl.zeros([columns], tl.float32)
        top = tl.full([columns], nothing, tl.float32)
        for row in tl.range(0, height + 5):
            line = start + row * width
            there = tl.where(row < height, width, 0)  # the last lines are below the map
            h = tl.load(line + c, mask=c < there, other=0.0).to(tl.float32) * g0
            h += _pair(line, c, 1, there) * g1
            h += _pair(line, c, 2, there) * g2
            h += _pair(line, c, 3, there) * g3
            h += _pair(line, c, 4, there) * g4
            h += _pair(line, c, 5, there) * g5
            done = a0 + h * g5
            a0 = a1 + h * g4
            a1 = a2 + h * g3
            a2 = a3 + h * g2
            a3 = a4 + h * g1
            a4 = a5 + h * g0
            a5 = a6 + h * g1
            a6 = a7 + h * g2
            a7 = a8 + h * g3
            a8 = a9 + h * g4
            a9 = h * g5
            top = tl.where(row >= 5, tl.maximum(top, done), top)
        highest = tl.max(tl.where(c < width, top, nothing), 0)
        scale = tl.where(highest > 0, peak / tl.maximum(highest, 1e-30), 1.0)

    center, right, left = _step(center, scale), _step(right, scale), _step(left, scale)
    below, above = _step(below, scale), _step(above, scale)
    far, near = _step(far, scale), _step(near, scale)
    eps = 1.1920928955078125e-07
    slope_x, slope_y = (right - left) / 2, (below - above) / 2
    curve_x = right - 2 * center + left + eps
    curve_y = below - 2 * center + above + eps
    twist = (far - right - below + center + center - left - above + near) / 2
    determinant = curve_x * curve_y - twist * twist
    to = out_ptr + one * 3
    tl.store(to, x - (curve_y * slope_x - twist * slope_y) / determinant)
    tl.store(to + 1, y - (curve_x * slope_y - twist * slope_x) / determinant)
    tl.store(to + 2, peak)


def find(heatmaps: Tensor, *, kernel_size: int) -> Tensor:
    """Return x and y in heatmap pixels, and the score, of each of contiguous maps [B, J, H, W]: float32 [B, J, 3]."""
    B, J, H, W = heatmaps.shape
    out = torch.empty((B, J, 3), dtype=torch.float32, device=heatmaps.device)
    if not out.numel():
        return out
    columns = triton.next_power_of_2(W)
    launch: Any = _find[(B * J,)]
    launch(
        heatmaps, out, H, W, *gaussian(kernel_size), chunk=CHUNK, columns=columns, num_warps=8 if columns > 512 else 4
    )  # fmt: skip
    return out


def gaussian(size: int) -> list[float]:
    """Return a Gaussian of `size` taps and sum 1 at the distances 0 to 5, its width following as in OpenCV."""
    sigma = 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    half = [math.exp(-0.5 * (far / sigma) ** 2) for far in range(size // 2 + 1)]
    total = half[0] + 2 * sum(half[1:])
    return [value / total for value in half] + [0.0] * (MOST_TAPS // 2 - size // 2)
