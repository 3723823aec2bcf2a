"""Instance norm + SiLU (+ pixel shuffle) on channels-last maps: one pass for the statistics, one that writes."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _partial(
    x_ptr, bias_ptr, mean_ptr, square_ptr, pixels, channels, chunk,
    rows: tl.constexpr, width: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    part, picture = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * width + tl.arange(0, width)
    first = part * chunk
    last = min(first + chunk, pixels)
    start = x_ptr + picture.to(tl.int64) * pixels * channels
    # Shifted by the chunk's first pixel, sums of squares do not cancel where the mean is large.
    shift = tl.load(start + first.to(tl.int64) * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    totals = tl.zeros([rows, width], tl.float32)
    squares = tl.zeros([rows, width], tl.float32)
    for p in tl.range(first, last, rows, num_stages=3):
        at = p + tl.arange(0, rows)
        inside = (at[:, None] < last) & (c[None, :] < channels)
        x = tl.load(start + at[:, None].to(tl.int64) * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x - shift[None, :], 0.0)
        totals += x
        squares += x * x
    total, square = tl.sum(totals, 0), tl.sum(squares, 0)
    count = (last - first).to(tl.float32)
    place = (picture * tl.num_programs(0) + part) * channels + c
    if has_bias:  # a constant moves the mean and nothing else
        shift += tl.load(bias_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    tl.store(mean_ptr + place, shift + total / count, mask=c < channels)
    tl.store(square_ptr + place, square - total * total / count, mask=c < channels)


@triton.jit
def _merge(
    mean_ptr, square_ptr, out_mean, out_spread, parts, chunk, pixels, kept,
    eps: tl.constexpr, phases: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    # Join the statistics of chunks, and of the four phases of a channel: the mean first, then deviations from it.
    picture = tl.program_id(1)
    c = tl.program_id(0) * width + tl.arange(0, width)
    start = picture * parts * phases
    total = tl.zeros([rows, width], tl.float32)
    for first in tl.range(0, parts * phases, rows, num_stages=3):
        row = first + tl.arange(0, rows)
        inside = (row[:, None] < parts * phases) & (c[None, :] < kept)
        size = tl.minimum(chunk, pixels - row // phases * chunk).to(tl.float32)
        total += tl.load(mean_ptr + (start + row[:, None]) * kept + c[None, :], mask=inside, other=0.0) * size[:, None]
    count = (pixels * phases).to(tl.float32)
    mean = tl.sum(total, 0) / count
    square = tl.zeros([rows, width], tl.float32)
    for first in tl.range(0, parts * phases, rows, num_stages=3):
        row = first + tl.arange(0, rows)
        inside = (row[:, None] < parts * phases) & (c[None, :] < kept)
        size = tl.minimum(chunk, pixels - row // phases * chunk).to(tl.float32)
        place = (start + row[:, None]) * kept + c[None, :]
        gap = tl.load(mean_ptr + place, mask=inside, other=0.0) - mean[None, :]
        own = tl.load(square_ptr + place, mask=inside, other=0.0)
        square += tl.where(inside, own + gap * gap * size[:, None], 0.0)
    tl.store(out_mean + picture * kept + c, mean, mask=c < kept)
    tl.store(out_spread + picture * kept + c, tl.rsqrt(tl.sum(square, 0) / count + eps), mask=c < kept)


@triton.jit
def _apply(
    x_ptr, bias_ptr, mean_ptr, spread_ptr, out_ptr, pixels, channels, across,
    rows: tl.constexpr, width: tl.constexpr, has_bias: tl.constexpr, shuffles: tl.constexpr,
):  # fmt: skip
    picture = tl.program_id(2)
    out_channels = channels // 4 if shuffles else channels
    c = tl.program_id(1) * width + tl.arange(0, width)
    at = tl.program_id(0) * rows + tl.arange(0, rows)
    inside = (at[:, None] < pixels) & (c[None, :] < channels)
    x = tl.load(
        x_ptr + picture.to(tl.int64) * pixels * channels + at[:, None].to(tl.int64) * channels + c[None, :],
        mask=inside, other=0.0,
    ).to(tl.float32)  # fmt: skip
    # With a shuffle, channels come phase by phase: four blocks of out_channels, (0, 0), (0, 1), (1, 0), (1, 1).
    own = c % out_channels
    mean = tl.load(mean_ptr + picture * out_channels + own, mask=c < channels, other=0.0)
    spread = tl.load(spread_ptr + picture * out_channels + own, mask=c < channels, other=0.0)
    if has_bias:
        mean -= tl.load(bias_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    x = (x - mean[None, :]) * spread[None, :]
    x = x * tl.sigmoid(x)
    if shuffles:
        phase = c // out_channels
        row = (at // across)[:, None] * 2 + (phase // 2)[None, :]
        column = (at % across)[:, None] * 2 + (phase % 2)[None, :]
        target = (row * (2 * across) + column).to(tl.int64) * out_channels + own[None, :]
    else:
        target = at[:, None].to(tl.int64) * channels + c[None, :]
    tl.store(out_ptr + picture.to(tl.int64) * pixels * channels + target, x.to(out_ptr.dtype.element_ty), mask=inside)


def norm_silu(x: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5, shuffles: bool = False) -> Tensor:
    """Add a bias [C] to channels-last maps [B, C, H, W], normalise over each picture's pixels and apply SiLU.

    With `shuffles`, the 4·C' channels come phase by phase and become [B, C', 2H, 2W], normalised over the new pixels;
    without, the maps are overwritten: at the end of a head there is no room for them twice.
    """
    B, C, H, W = x.shape
    pixels, kept = H * W, C // 4 if shuffles else C
    chunk = 1024 if B * pixels * C > 2**26 else 256  # small maps need more chunks to fill the device
    parts = triton.cdiv(pixels, chunk)
    means = torch.empty(B, parts, C, device=x.device, dtype=torch.float32)
    squares = torch.empty_like(means)
    width = min(128, triton.next_power_of_2(C))
    launch: Any = _partial[(parts, triton.cdiv(C, width), B)]
    launch(
        x, bias, means, squares, pixels, C, chunk,
        rows=4096 // width, width=width, has_bias=bias is not None, num_warps=4,
    )  # fmt: skip
    mean = torch.empty(B, kept, device=x.device, dtype=torch.float32)
    spread = torch.empty_like(mean)
    launch = _merge[(triton.cdiv(kept, 16), B)]
    launch(
        means, squares, mean, spread, parts, chunk, pixels, kept,
        eps=eps, phases=4 if shuffles else 1, rows=64, width=16, num_warps=4,
    )  # fmt: skip
    out = x
    if shuffles:
        shape = (B, kept, 2 * H, 2 * W)
        out = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    rows = 8192 // width
    launch = _apply[(triton.cdiv(pixels, rows), triton.cdiv(C, width), B)]
    launch(
        x, bias, mean, spread, out, pixels, C, W,
        rows=rows, width=width, has_bias=bias is not None, shuffles=shuffles, num_warps=4,
    )  # fmt: skip
    return out
