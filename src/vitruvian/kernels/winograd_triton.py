"""Tiles of channels-last maps to the factors of minimal filters, and their products back to maps with statistics.

    map (+ norm + SiLU) ─▶ factors [t², tiles, C] ─▶ a matrix product each ─▶ [t², tiles, s²·C'] ─▶ map and its moments

A thread holds whole tiles of two channels: all sums are made in registers, in float32. Filters of three taps give 4×4
pixels from 6×6 factors (the points 0, ±√½, ±√2, ∞), those of two taps 3×3 from 4×4 (the points 0, ±1, ∞).
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls, no-check-untyped-defs
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005 (Triton joins tuples with +)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitruvian.kernels.instance_norm_triton import _apply

ELEMENTS = 256  # of a program: two for each thread, so that their tiles fit its registers
SIZES = ["first", "down", "across", "height", "width"]  # one kernel for all of them
SPAN = 16  # tiles in a row whose moments are taken together


@triton.jit
def _factors(d, taps: tl.constexpr):
    # Pixels in a row -> factors.
    if taps == 3:
        even, odd = d[4] - 2.0 * d[2], 0.7071067811865476 * (d[3] - 2.0 * d[1])
        far, off = d[4] - 0.5 * d[2], 1.4142135623730951 * (d[3] - 0.5 * d[1])
        out = (d[0] - 2.5 * d[2] + d[4], even + odd, even - odd, far + off, far - off, d[1] - 2.5 * d[3] + d[5])
    else:
        out = (d[2] - d[0], d[2] + d[1], d[2] - d[1], d[3] - d[1])
    return out


@triton.jit
def _pixels(m, taps: tl.constexpr):
    # Products in a row -> pixels.
    if taps == 3:
        s, d, S, D = m[1] + m[2], m[1] - m[2], m[3] + m[4], m[3] - m[4]
        last = 0.3535533905932738 * d + 2.8284271247461903 * D + m[5]
        out = (m[0] + s + S, 0.7071067811865476 * d + 1.4142135623730951 * D, 0.5 * s + 2.0 * S, last)
    else:
        s = m[1] + m[2]
        out = (m[0] + s, m[1] - m[2], s + m[3])
    return out


@triton.jit(do_not_specialize=SIZES)
def _spread(
    x_ptr, mean_ptr, spread_ptr, out_ptr, first, down, across, height, width, channels,
    taps: tl.constexpr, has_norm: tl.constexpr, largest: tl.constexpr, tiles: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    # A line is a row of tiles; lines are numbered through all pictures.
    size: tl.constexpr = 4 if taps == 3 else 3
    points: tl.constexpr = size + taps - 1
    line = first + tl.program_id(2)
    picture, row = line // down, line % down
    c = tl.program_id(0) * lanes + tl.arange(0, lanes)
    tile = tl.program_id(1) * tiles + tl.arange(0, tiles)
    if has_norm:
        scale = tl.load(spread_ptr + picture * channels + c, mask=c < channels, other=0.0)[None, :]
        offset = tl.load(mean_ptr + picture * channels + c, mask=c < channels, other=0.0)[None, :] * -scale
    x_ptr += picture.to(tl.int64) * height * width * channels
    columns = ()
    for j in tl.static_range(points):
        x = tile * size + (j - 1)
        known = (x >= 0)[:, None] & (c < channels)[None, :]
        column = ()
        for i in tl.static_range(points):
            y = row * size + (i - 1)
            inside = known & (x < tl.where((y >= 0) & (y < height), width, 0))[:, None]
            place = x_ptr + y.to(tl.int64) * (width * channels) + (x[:, None] * channels + c[None, :])
            value = tl.load(place, mask=inside, other=0.0).to(tl.float32)
            if has_norm:
                value = value * scale + offset
                root = tl.rsqrt(1.0 + tl.exp2(value * -1.4426950408889634))  # its square is the sigmoid, for less
                value = tl.where(inside, value * root * root, 0.0)
            elif largest > 0:  # what a norm gives is small; other maps must not leave the range of halves
                value = tl.minimum(tl.maximum(value, -largest), largest)
            column = column + (value,)
        columns = columns + (_factors(column, taps),)
    mask = (tile < across)[:, None] & (c < channels)[None, :]
    plane = tl.num_programs(2).to(tl.int64) * across * channels
    place = out_ptr + (tl.program_id(2) * across + tile)[:, None].to(tl.int64) * channels + c[None, :]
    for i in tl.static_range(points):
        values = ()
        for j in tl.static_range(points):
            values = values + (columns[j][i],)
        values = _factors(values, taps)
        for j in tl.static_range(points):
            tl.store(place + (i * points + j) * plane, values[j].to(out_ptr.dtype.element_ty), mask=mask)


def spread_tiles(
    x: Tensor, mean: Tensor | None, spread: Tensor | None, *, taps: int, tiles_hw: tuple[int, int], first: int,
    lines: int, largest: float, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """Return the factors [t², lines · across, C] of rows of tiles of maps [B, C, H, W], after norm and SiLU if any."""
    C, H, W = x.shape[1:]
    down, across = tiles_hw
    out = torch.empty(36 if taps == 3 else 16, lines * across, C, device=x.device, dtype=dtype)
    lanes = lanes_for(C)
    tiles = ELEMENTS // lanes
    launch: Any = _spread[(triton.cdiv(C, lanes), triton.cdiv(across, tiles), lines)]
    launch(
        x, mean, spread, out, first, down, across, H, W, C,
        taps=taps, has_norm=mean is not None, largest=largest, tiles=tiles, lanes=lanes, num_warps=ELEMENTS // 64,
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=SIZES)
def _gather(
    m_ptr, bias_ptr, out_ptr, mean_ptr, square_ptr, count_ptr, first, down, across, height, width, channels,
    taps: tl.constexpr, spread: tl.constexpr, lead: tl.constexpr, has_bias: tl.constexpr, span: tl.constexpr,
    tiles: tl.constexpr, lanes: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = 4 if taps == 3 else 3
    points: tl.constexpr = size + taps - 1
    line = first + tl.program_id(2)
    picture, row = line // down, line % down
    phase = tl.program_id(1) % (spread * spread)
    left = tl.program_id(1) // (spread * spread) * span
    right = tl.minimum(left + span, across)
    c = tl.program_id(0) * lanes + tl.arange(0, lanes)
    if has_bias:
        bias = tl.load(bias_ptr + phase * channels + c, mask=c < channels, other=0.0)[None, :]
    out_ptr += picture.to(tl.int64) * height * width * channels
    wide = channels * (spread * spread)
    plane = tl.num_programs(2).to(tl.int64) * across * wide
    # Each lane's moments are about its own first value, so that squares do not cancel where means are large.
    shift = tl.zeros([tiles, lanes], tl.float32)
    total = tl.zeros([tiles, lanes], tl.float32)
    square = tl.zeros([tiles, lanes], tl.float32)
    count = tl.zeros([tiles], tl.float32)
    for start in range(left, right, tiles):
        tile = start + tl.arange(0, tiles)
        known = (tile < right)[:, None] & (c < channels)[None, :]
        place = m_ptr + (tl.program_id(2) * across + tile)[:, None].to(tl.int64) * wide
        place += (phase * channels + c)[None, :]
        columns = ()
        for j in tl.static_range(points):
            column = ()
            for i in tl.static_range(points):
                value = tl.load(place + (i * points + j) * plane, mask=known, other=0.0)
                column = column + (value.to(tl.float32),)
            columns = columns + (_pixels(column, taps),)
        high, along = 0.0, tl.zeros([tiles], tl.float32)
        for i in tl.static_range(size):
            values = ()
            for j in tl.static_range(points):
                values = values + (columns[j][i],)
            values = _pixels(values, taps)
            y = (row * size + i) * spread + phase // spread - lead
            reach = tl.where((y >= 0) & (y < height), width, 0)
            high += tl.where(reach > 0, 1.0, 0.0)
            target = out_ptr + y.to(tl.int64) * (width * channels)
            for j in tl.static_range(size):
                x = (tile * size + j) * spread + phase % spread - lead
                there = (tile < right) & (x >= 0)
                inside = (there & (x < reach))[:, None] & (c < channels)[None, :]
                value = values[j]
                if has_bias:
                    value += bias
                tl.store(target + (x[:, None] * channels + c[None, :]), value.to(out_ptr.dtype.element_ty), mask=inside)
                if i + j == 0:
                    shift = tl.where(start == left, value, shift)
                if i == 0:
                    along += (there & (x < width)).to(tl.float32)
                gap = tl.where(inside, value - shift, 0.0)
                total += gap
                square += gap * gap
        count += high * along
    # Join the moments of the lanes.
    own = tl.maximum(count, 1.0)[:, None]
    means = shift + total / own
    pixels = tl.sum(count, 0)  # there may be none: transposed convolutions have rows of which only some are wanted
    mean = tl.sum(means * count[:, None], 0) / tl.maximum(pixels, 1.0)
    gaps = means - mean[None, :]
    squares = tl.sum(square - total * total / own + gaps * gaps * count[:, None], 0)
    part = line * tl.num_programs(1) + tl.program_id(1)
    tl.store(mean_ptr + part * channels + c, mean, mask=c < channels)
    tl.store(square_ptr + part * channels + c, squares, mask=c < channels)
    tl.store(count_ptr + part, pixels)


@triton.jit(do_not_specialize=["parts"])
def _join(
    mean_ptr, square_ptr, count_ptr, unit_ptr, out_mean, out_spread, parts, channels,
    eps: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    # Join the moments of a picture's parts, about the mean of the first one.
    picture = tl.program_id(1)
    c = tl.program_id(0) * width + tl.arange(0, width)
    shift = tl.load(mean_ptr + picture * parts * channels + c, mask=c < channels, other=0.0)
    total = tl.zeros([rows, width], tl.float32)
    square = tl.zeros([rows, width], tl.float32)
    counts = tl.zeros([rows], tl.float32)
    for first in tl.range(0, parts, rows, num_stages=3):
        row = first + tl.arange(0, rows)
        inside = (row < parts)[:, None] & (c < channels)[None, :]
        place = (picture * parts + row)[:, None] * channels + c[None, :]
        count = tl.load(count_ptr + picture * parts + row, mask=row < parts, other=0.0)
        gap = tl.load(mean_ptr + place, mask=inside, other=0.0) - shift[None, :]
        square += tl.load(square_ptr + place, mask=inside, other=0.0) + gap * gap * count[:, None]
        total += gap * count[:, None]
        counts += count
    pixels = tl.sum(counts, 0)
    moved = tl.sum(total, 0) / pixels
    mean = shift + moved
    # The map holds multiples of a unit, in which epsilon is not counted.
    unit = tl.load(unit_ptr + c, mask=c < channels, other=1.0)
    variance = (tl.sum(square, 0) / pixels - moved * moved) * unit * unit
    tl.store(out_mean + picture * channels + c, mean, mask=c < channels)
    tl.store(out_spread + picture * channels + c, tl.rsqrt(variance + eps) * unit, mask=c < channels)


class Moments:
    """Means, squared deviations and pixel counts of the parts of maps [B, C, H, W], as they are written."""

    def __init__(self, maps: Tensor, tiles_hw: tuple[int, int], *, phases: int) -> None:
        B, C = maps.shape[:2]
        down, across = tiles_hw
        self.parts = triton.cdiv(across, SPAN) * phases  # of a row of tiles
        self.mean = torch.empty(B, down * self.parts, C, device=maps.device, dtype=torch.float32)
        self.square = torch.empty_like(self.mean)
        self.count = torch.empty(B, down * self.parts, device=maps.device, dtype=torch.float32)

    def join(self, unit: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
        """Return the mean of each map, and the factor that norms it [B, C]; maps are in units [C]."""
        B, parts, C = self.mean.shape
        mean = torch.empty(B, C, device=unit.device, dtype=torch.float32)
        spread = torch.empty_like(mean)
        launch: Any = _join[(triton.cdiv(C, 16), B)]
        launch(
            self.mean, self.square, self.count, unit, mean, spread, parts, C, eps=eps, rows=128, width=16, num_warps=4
        )
        return mean, spread


def gather_tiles(
    products: Tensor, bias: Tensor | None, out: Tensor, moments: Moments, *, taps: int, spread: int, lead: int,
    tiles_hw: tuple[int, int], first: int, lines: int,
) -> None:  # fmt: skip
    """Write the products [t², lines · across, s²·C'] of rows of tiles into maps [B, C', H, W], and their moments."""
    C, H, W = out.shape[1:]
    down, across = tiles_hw
    lanes = lanes_for(C)
    launch: Any = _gather[(triton.cdiv(C, lanes), moments.parts, lines)]
    launch(
        products, bias, out, moments.mean, moments.square, moments.count, first, down, across, H, W, C,
        taps=taps, spread=spread, lead=lead, has_bias=bias is not None, span=SPAN,
        tiles=ELEMENTS // lanes, lanes=lanes, num_warps=ELEMENTS // 64,
    )  # fmt: skip


def norm_silu(x: Tensor, mean: Tensor, spread: Tensor, dtype: torch.dtype, *, out: Tensor | None = None) -> Tensor:
    """Return SiLU((x − mean) · spread) of channels-last maps [B, C, H, W], in `out` where given: it may be x itself."""
    B, C, H, W = x.shape
    if out is None:
        out = torch.empty(x.shape, device=x.device, dtype=dtype, memory_format=torch.channels_last)
    width = min(128, triton.next_power_of_2(C))
    rows = 8192 // width
    launch: Any = _apply[(triton.cdiv(H * W, rows), triton.cdiv(C, width), B)]
    launch(
        x, None, mean, spread, out, H * W, C, W,
        rows=rows, width=width, has_bias=False, shuffles=False, num_warps=4,
    )  # fmt: skip
    return out


def lanes_for(channels: int) -> int:
    """Channels of a program."""
    return int(max(16, min(128, triton.next_power_of_2(channels))))
