"""Crops of people from an 8-bit picture in one kernel: samples, their sum, normalising, the model's data type.

A program makes a few lines of one crop. Samples are those of `images/crop.py`: two taps an axis, four where a crop is
enlarged, columns first and then rows; what lies outside the picture counts as zero.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs

from __future__ import annotations

import threading
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 2, 128, 4
LOCK = threading.Lock()  # threads that all want the kernel compiled would each do it


@triton.jit
def _near(t):
    return ((-0.75 + 2) * t - (-0.75 + 3)) * t * t + 1


@triton.jit
def _far(t):
    return ((t - 5) * t + 8) * t * -0.75 + 4 * 0.75


@triton.jit
def _tap(place, number: tl.constexpr, cubic, side):
    # The line of the picture that tap `number` of four reads, and its weight: zero outside.
    floor = tl.floor(place)
    t = place - floor
    if number == 0:
        weight = tl.where(cubic, _far(1 + t), 0.0)
    elif number == 1:
        weight = tl.where(cubic, _near(t), 1 - t)
    elif number == 2:
        weight = tl.where(cubic, _near(1 - t), t)
    else:
        weight = tl.where(cubic, _far(2 - t), 0.0)
    line = floor + (number - 1)
    weight = tl.where((line >= 0) & (line <= side - 1), weight, 0.0)
    # Held inside before it becomes a whole number: places may be far outside the range of those.
    return tl.minimum(tl.maximum(line, 0.0), side - 1).to(tl.int32), weight


# Pictures come in all sizes: no kernel of its own for those that sixteen divides.
@triton.jit(do_not_specialize=["lines", "across", "channel_step", "line_step", "pixel_step"])
def _crop(
    pixels_ptr, places_ptr, out_ptr, lines, across, channel_step, line_step, pixel_step, height, width,
    f0, f1, f2, s0, s1, s2,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    crop = tl.program_id(2).to(tl.int64)
    u = tl.program_id(0) * columns + tl.arange(0, columns)
    v = tl.program_id(1) * rows + tl.arange(0, rows)
    row = places_ptr + crop * (1 + width + height)
    cubic = tl.load(row) > 0
    x = tl.load(row + 1 + u, mask=u < width, other=0.0)
    y = tl.load(row + 1 + width + v, mask=v < height, other=0.0)
    sum0 = tl.zeros([rows, columns], tl.float32)
    sum1 = tl.zeros([rows, columns], tl.float32)
    sum2 = tl.zeros([rows, columns], tl.float32)
    for i in tl.static_range(4):
        line, down = _tap(y, i, cubic, lines)
        part0 = tl.zeros([rows, columns], tl.float32)
        part1 = tl.zeros([rows, columns], tl.float32)
        part2 = tl.zeros([rows, columns], tl.float32)
        for j in tl.static_range(4):
            column, wide = _tap(x, j, cubic, across)
            at = pixels_ptr + line[:, None] * line_step + column[None, :] * pixel_step
            counts = (down != 0)[:, None] & (wide != 0)[None, :]
            part0 += tl.load(at, mask=counts, other=0).to(tl.float32) * wide[None, :]
            part1 += tl.load(at + channel_step, mask=counts, other=0).to(tl.float32) * wide[None, :]
            part2 += tl.load(at + 2 * channel_step, mask=counts, other=0).to(tl.float32) * wide[None, :]
        sum0 += part0 * down[:, None]
        sum1 += part1 * down[:, None]
        sum2 += part2 * down[:, None]
    plane = height * width
    to = out_ptr + crop * 3 * plane + v[:, None] * width + u[None, :]
    here = (v < height)[:, None] & (u < width)[None, :]
    kind = out_ptr.dtype.element_ty
    tl.store(to, (sum0 * f0 + s0).to(kind), mask=here)
    tl.store(to + plane, (sum1 * f1 + s1).to(kind), mask=here)
    tl.store(to + 2 * plane, (sum2 * f2 + s2).to(kind), mask=here)


def crop(
    pixels: Tensor,
    places: Tensor,
    output_hw: tuple[int, int],
    factors: tuple[float, ...],
    shifts: tuple[float, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Cut crops [N, 3, h, w] out of uint8 [3, H, W] of any strides; `places` [N, 1 + w + h] are `sample_places`."""
    height, width = output_hw
    out = torch.empty((len(places), 3, height, width), dtype=dtype, device=pixels.device)
    if not len(places):
        return out
    launch: Any = _crop[(triton.cdiv(width, COLUMNS), triton.cdiv(height, ROWS), len(places))]
    with LOCK:
        launch(
            pixels, places, out, pixels.shape[1], pixels.shape[2], *pixels.stride(), height, width,
            *factors, *shifts, rows=ROWS, columns=COLUMNS, num_warps=WARPS,
        )  # fmt: skip
    return out
