"""Winograd convolutions of channels-last maps, with the statistics of the instance norm that follows.

    maps (+ norm + SiLU) -> overlapping tiles -> input transform -> one matrix product for each of its t² points
                                                                 -> output transform -> maps and their statistics

A 3×3 convolution takes 36 products for 4×4 pixels instead of 144. A transposed convolution of kernel 4 and stride 2 is
four 2×2 convolutions with the same tiles: 16 products each for 3×3 pixels instead of 36.

Half precision: sums are in float32; transformed tiles and products are stored as float16, whose three more bits than
bfloat16 outweigh what the transforms amplify (with the points 0, ±√½, ±√2, ∞ the error is 1.7e-3, that of rounding to
bfloat16). float16 has a small range, but maps after a norm are bounded, and each channel of the weight is scaled by a
power of two, which the next norm removes again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.ops.dispatch import triton_jit, use_cpu_version, use_triton
from vitruvian.ops.instance_norm import FeatureMaps, MapStatistics, merge_statistics
from vitruvian.ops.triton_import import tl, triton

_MAX_BYTES = 2**28  # of transformed tiles and products at a time, for four images or more
_BLOCK_ROWS = 128  # of a block of a matrix product
_MIN_TILES = 128  # with fewer, reading the larger weights takes longer than the products they save
_MIN_BATCH_TILES = 1024  # with fewer in the whole batch, the weights take more memory than their time is worth
_MIN_BATCH = 4  # the same for transposed convolutions
_MIN_CPU_CHANNELS = 256  # on the CPU, with fewer channels the transforms cost more than the products they save
_CPU_TILES = 400  # at a time on the CPU: they stay in the cache, and share the time to read the weights
_WEIGHT_NORM = 1 / 16  # of a channel of the weight: products then stay within the range of float16


@dataclass(frozen=True)
class _Transform:
    """Winograd transforms along one axis, with t points for `size` output pixels."""

    size: int
    input: tuple[tuple[float, ...], ...]  # [t, t]: pixels of a tile -> points
    weight: tuple[tuple[float, ...], ...]  # [t, taps]: taps -> points
    output: tuple[tuple[float, ...], ...]  # [size, t]: products -> pixels
    gain: float  # bound of a transformed tile, in both axes, over the largest pixel
    min_intensity: int  # see `suits_winograd`


_A, _B = 0.5**0.5, 2**0.5
_TRANSFORMS = {  # by the number of taps
    2: _Transform(
        size=3,
        input=((-1, 0, 1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
        weight=((-1, 0), (0.5, 0.5), (0.5, -0.5), (0, 1)),
        output=((1, 1, 1, 0), (0, 1, -1, 0), (0, 1, 1, 1)),
        gain=4,
        min_intensity=256,
    ),
    3: _Transform(
        size=4,
        input=(
            (1, 0, -2.5, 0, 1, 0),
            (0, -2 * _A, -2, _A, 1, 0),
            (0, 2 * _A, -2, -_A, 1, 0),
            (0, -0.5 * _B, -0.5, _B, 1, 0),
            (0, 0.5 * _B, -0.5, -_B, 1, 0),
            (0, 1, 0, -2.5, 0, 1),
        ),
        weight=(
            (1, 0, 0),
            (-2 / 3, -2 / 3 * _A, -1 / 3),
            (-2 / 3, 2 / 3 * _A, -1 / 3),
            (1 / 6, 1 / 6 * _B, 1 / 3),
            (1 / 6, -1 / 6 * _B, 1 / 3),
            (0, 0, 1),
        ),
        output=(
            (1, 1, 1, 1, 1, 0),
            (0, _A, -_A, _B, -_B, 0),
            (0, 0.5, 0.5, 2, 2, 0),
            (0, _A / 2, -_A / 2, 2 * _B, -2 * _B, 1),
        ),
        gain=27,
        min_intensity=128,
    ),
}


def suits_winograd(x: Tensor, weight: Tensor, *, batch: int, transposed: bool = False) -> bool:
    """Return whether Winograd is faster than a plain convolution in inference, and worth its memory.

    Products saved grow with C · N, memory traffic with C + N, for N output channels before a shuffle. At 650 TFLOP/s
    and 4.3 TB/s the two balance where C · N / (C + N) is 80 for 3×3 and 170 for transposed convolutions; the limits are
    half as much again. Transformed weights take four times the memory of the weights, whatever the batch: small batches
    of small maps do without.

    Args:
        x: Maps [B, C, H, W] that are convolved together.
        weight: Weight of the convolution.
        batch: Images of the whole batch.
        transposed: Whether it is a transposed convolution.
    """
    taps = 2 if transposed else 3
    before, after = (weight.shape[0], 4 * weight.shape[1]) if transposed else (weight.shape[1], weight.shape[0])
    if tuple(weight.shape[2:]) != ((4, 4) if transposed else (3, 3)) or before % 8 or after % 8:
        return False
    if not use_triton("winograd", x, weight):
        return use_cpu_version("winograd", x, weight) and min(before, after) >= _MIN_CPU_CHANNELS
    rows, columns = _tiles_hw((x.shape[2], x.shape[3]), taps)
    enough = before * after >= _TRANSFORMS[taps].min_intensity * (before + after)
    worth = batch >= _MIN_BATCH if transposed else batch * rows * columns >= _MIN_BATCH_TILES
    return enough and worth and len(x) * rows * columns >= _MIN_TILES


class WinogradConv:
    """A convolution with a transformed weight.

    Either a 3×3 convolution with padding 1, optionally followed by a pixel shuffle, or a transposed convolution with
    kernel 4, stride 2 and padding 1.

    Args:
        weight: [C'·s², C, 3, 3], transposed [C, C', 4, 4].
        bias: [C'·s²]; without a shuffle the norm removes it, and it can be left out.
        transposed: Whether it is a transposed convolution.
        shuffle: Whether a pixel shuffle follows.
    """

    @torch.no_grad()
    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False, shuffle: bool = False
    ) -> None:
        self.taps = 2 if transposed else 3
        self.lead = 1 if transposed else 0  # rows and columns of the first tile that are not part of the result
        self.upsample_factor = 2 if transposed or shuffle else 1
        split = _transposed_phases(weight) if transposed else _shuffle_phases(weight, self.upsample_factor)
        self.dtype = torch.float16 if weight.dtype in (torch.float16, torch.bfloat16) else weight.dtype
        self.weight, self.unit = _transform_weight(split.flatten(0, 1), _TRANSFORMS[self.taps], dtype=self.dtype)
        self.bias: Tensor | None = None
        if bias is not None:
            phases = bias.detach().float().view(-1, self.upsample_factor**2).t()  # [s², C']
            self.bias = (phases / self.unit).flatten()  # [s²·C']

    def __call__(self, maps: FeatureMaps, *, eps: float = 1e-5, batch: int | None = None) -> FeatureMaps:
        """Convolve maps [B, C, H, W] to [B, C', s·H, s·W], with their instance norm and SiLU deferred.

        Args:
            maps: The maps.
            eps: Epsilon of the norm.
            batch: Number of images of the whole batch, which limits temporary memory.
        """
        x, s = maps.values, self.upsample_factor
        B, _, H, W = x.shape
        rows, columns = _tiles_hw((H, W), self.taps)
        out = torch.empty(
            (B, len(self.unit), s * H, s * W), device=x.device, dtype=self.dtype, memory_format=torch.channels_last
        )
        row_bytes = self.weight.element_size() * columns * len(self.weight) * sum(self.weight.shape[1:])
        max_rows = max(1, _bytes_at_a_time(self.weight.nbytes, batch or B) // row_bytes)
        if use_triton("winograd", x):
            return self._convolve_triton(maps, out, _rows_at_a_time(B * rows, columns, max_rows=max_rows), eps)
        statistics = MapStatistics()
        for image in range(B):
            self._convolve_torch(maps, image, out[image].permute(1, 2, 0), statistics, max(1, _CPU_TILES // columns))
        return FeatureMaps(out, *statistics.merge(self.unit, eps=eps))

    def _convolve_torch(self, maps: FeatureMaps, image: int, out: Tensor, statistics: MapStatistics, step: int) -> None:
        """Convolve one image to [s·H, s·W, C'], `step` rows of tiles at a time, which stay in the cache of a CPU."""
        transform, (H, W), s = _TRANSFORMS[self.taps], maps.values.shape[2:], self.upsample_factor
        size, t, (rows, columns) = transform.size, len(transform.input), _tiles_hw((H, W), self.taps)
        for first in range(0, rows, step):
            n = min(step, rows - first)
            top, bottom = first * size - 1, (first + n - 1) * size + t - 1  # rows of pixels that the tiles read
            part = maps.activated_rows(image, slice(max(top, 0), min(bottom, H)))  # [h, W, C]
            if self.dtype == torch.float16:
                limit = torch.finfo(self.dtype).max / transform.gain
                part = part.clamp(-limit, limit)
            padding = (0, 0, 1, columns * size + self.taps - 2 - W, max(-top, 0), max(bottom - H, 0))
            part = F.pad(part, padding)  # [h', W', C]
            lines = [part[i : i + (n - 1) * size + 1 : size] for i in range(t)]  # [n, W', C] each
            pixels = part.new_zeros(n, size, s, columns, size, s, out.shape[-1])
            for y, factors in enumerate(transform.input):
                line = _weighted_sum(lines, factors)
                strips = [line[:, j : j + (columns - 1) * size + 1 : size] for j in range(t)]  # [n, columns, C] each
                points = torch.stack([_weighted_sum(strips, factors).flatten(0, 1) for factors in transform.input])
                weight = self.weight[y * t : (y + 1) * t]
                products = torch.bmm(points.to(self.dtype), weight.mT).float()  # [t, n·columns, s²·C']
                for x, factors in enumerate(transform.output):
                    column = _weighted_sum(products.unbind(), factors).view(n, columns, s, s, -1).transpose(1, 2)
                    for row, factor in enumerate(output[y] for output in transform.output):
                        if factor:
                            pixels[:, row, :, :, x].add_(column, alpha=factor)
            if self.bias is not None:
                pixels += self.bias.view(s, 1, 1, s, -1)
            start = first * size * s - self.lead  # row of the result
            target = out[max(start, 0) : start + n * size * s]
            pixels = pixels.view(n * size * s, columns * size * s, -1)[max(-start, 0) :]
            pixels = pixels[: len(target), self.lead : self.lead + s * W]
            target.copy_(pixels)
            statistics.add(image, pixels)

    def _convolve_triton(self, maps: FeatureMaps, out: Tensor, step: int, eps: float) -> FeatureMaps:
        """Convolve `step` rows of tiles at a time; rows are numbered through all images."""
        B, H, W = len(out), *maps.values.shape[2:]
        tiles_hw = _tiles_hw((H, W), self.taps)
        statistics = _Statistics(out, tiles_hw, phases=self.upsample_factor**2)
        limit = torch.finfo(self.dtype).max / _TRANSFORMS[self.taps].gain if self.dtype == torch.float16 else 0.0
        for first in range(0, B * tiles_hw[0], step):
            rows = min(step, B * tiles_hw[0] - first)
            points = _transform_input_triton(
                maps, taps=self.taps, tiles_hw=tiles_hw, first=first, rows=rows, limit=limit, dtype=self.dtype
            )  # [t², tiles, C]
            products = torch.bmm(points, self.weight.mT)  # [t², tiles, s²·C']
            del points
            self._transform_output_triton(products, out, statistics, tiles_hw=tiles_hw, first=first, rows=rows)
        merged = merge_statistics(statistics.mean, statistics.square, statistics.count, self.unit, eps=eps)
        return FeatureMaps(out, *merged)

    def _transform_output_triton(
        self,
        products: Tensor,
        out: Tensor,
        statistics: _Statistics,
        *,
        tiles_hw: tuple[int, int],
        first: int,
        rows: int,
    ) -> None:
        """Write products [t², tiles, s²·C'] of rows of tiles to maps [B, C', H, W], and their statistics."""
        C, H, W = out.shape[1:]
        block_channels = _block_channels(C)
        _transform_output_kernel[(triton.cdiv(C, block_channels), statistics.parts, rows)](
            products, self.bias, out, statistics.mean, statistics.square, statistics.count, first, *tiles_hw, H, W, C,
            taps=self.taps, upsample_factor=self.upsample_factor, lead=self.lead, has_bias=self.bias is not None,
            span=_SPAN, block_tiles=_ELEMENTS // block_channels, block_channels=block_channels,
            num_warps=_ELEMENTS // 64,
        )  # fmt: skip


def _weighted_sum(parts: Sequence[Tensor], factors: tuple[float, ...]) -> Tensor:
    """Return the sum of tensors times factors."""
    pairs = [(factor, part) for factor, part in zip(factors, parts, strict=True) if factor]
    pairs.sort(key=lambda pair: pair[0] != 1)  # a factor of 1 first, which takes no multiplication
    factor, total = pairs[0]
    total = total if factor == 1 else total * factor
    for factor, part in pairs[1:]:
        total = torch.add(total, part, alpha=factor)
    return total


def _transform_weight(taps: Tensor, transform: _Transform, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Transform the taps [s², C', C, k, k] of a convolution to points [t², s²·C', C], in units [C'] by channel."""
    phases, channels, before = taps.shape[:3]
    matrix = torch.tensor(transform.weight, device=taps.device, dtype=torch.float32)  # [t, k]
    out = torch.empty(len(matrix) ** 2, phases, channels, before, device=taps.device, dtype=dtype)
    unit = torch.ones(channels, device=taps.device, dtype=torch.float32)
    for part in torch.split(torch.arange(channels), 256):  # in float32, so a few at a time
        block = slice(int(part[0]), int(part[-1]) + 1)
        points = torch.einsum("ya,pncab->ypncb", matrix, taps[:, block].float())
        points = torch.einsum("xb,ypncb->yxpnc", matrix, points).flatten(0, 1)  # [t², s², n, C]
        if dtype == torch.float16:
            norm = points.square().sum(-1).amax((0, 1)).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
            unit[block] = torch.exp2(torch.ceil(torch.log2(norm / _WEIGHT_NORM)))
        out[:, :, block] = (points / unit[block, None]).to(dtype)
    return out.flatten(1, 2), unit


def _shuffle_phases(weight: Tensor, factor: int) -> Tensor:
    """Reorder the weight [C'·s², C, 3, 3] of a convolution to [s, s, C', C, 3, 3]."""
    split = weight.detach().reshape(-1, factor, factor, *weight.shape[1:])  # [C', s, s, C, 3, 3]
    return split.permute(1, 2, 0, 3, 4, 5)


def _transposed_phases(weight: Tensor) -> Tensor:
    """Reorder the weight [C, C', 4, 4] of a transposed convolution to its four phases [2, 2, C', C, 2, 2]."""
    order = torch.tensor([[2, 0], [3, 1]])
    taps = weight.detach()[:, :, order][:, :, :, :, order]  # [C, C', 2, 2, 2, 2]: phase, tap, phase, tap
    return taps.permute(2, 4, 1, 0, 3, 5)


def _tiles_hw(size_hw: tuple[int, int], taps: int) -> tuple[int, int]:
    """Return the number of tiles down and across maps; with two taps, the output has one more row than the input."""
    size, more = _TRANSFORMS[taps].size, 3 - taps
    return -(-(size_hw[0] + more) // size), -(-(size_hw[1] + more) // size)


def _bytes_at_a_time(weight_bytes: int, batch: int) -> int:
    """Return how much temporary memory to use: little for few images, but not less than the transformed weight, which
    is read again each time."""
    return min(_MAX_BYTES, max(weight_bytes, batch * _MAX_BYTES // 4))


def _rows_at_a_time(rows: int, columns: int, *, max_rows: int) -> int:
    """Split rows of tiles evenly into about `max_rows` each; if that changes little, into whole blocks of products."""
    even = -(-rows // -(-rows // max_rows))
    block = _BLOCK_ROWS // math.gcd(columns, _BLOCK_ROWS)
    return min(rows, -(-even // block) * block) if 2 * block <= even else even


# ---------------------------------------------------------------------------------------------------------- Triton

_ELEMENTS = 256  # of a program: two for each thread, so that their tiles fit its registers
_SPAN = 16  # tiles in a row whose statistics are computed together
_SIZES = ["first", "down", "across", "height", "width"]  # not specialized: one kernel for all of them


class _Statistics:
    """Means, sums of squared deviations and pixel counts of parts of maps [B, C, H, W], written with the maps."""

    def __init__(self, maps: Tensor, tiles_hw: tuple[int, int], *, phases: int) -> None:
        B, C = maps.shape[:2]
        self.parts = triton.cdiv(tiles_hw[1], _SPAN) * phases  # of a row of tiles
        self.mean = torch.empty(B, tiles_hw[0] * self.parts, C, device=maps.device, dtype=torch.float32)
        self.square = torch.empty_like(self.mean)
        self.count = torch.empty(self.mean.shape[:2], device=maps.device, dtype=torch.float32)


def _block_channels(channels: int) -> int:
    """Return the number of channels of a program."""
    return int(max(16, min(128, triton.next_power_of_2(channels))))


def _transform_input_triton(
    maps: FeatureMaps, *, taps: int, tiles_hw: tuple[int, int], first: int, rows: int, limit: float, dtype: torch.dtype
) -> Tensor:
    """Transform rows of tiles of maps [B, C, H, W], after their norm and SiLU: [t², rows · columns, C]."""
    x = maps.values
    C, H, W = x.shape[1:]
    down, across = tiles_hw
    out = torch.empty(36 if taps == 3 else 16, rows * across, C, device=x.device, dtype=dtype)
    block_channels = _block_channels(C)
    block_tiles = _ELEMENTS // block_channels
    _transform_input_kernel[(triton.cdiv(C, block_channels), triton.cdiv(across, block_tiles), rows)](
        x, maps.mean, maps.inv_std, out, first, down, across, H, W, C,
        taps=taps, has_norm=maps.mean is not None, limit=limit, block_tiles=block_tiles,
        block_channels=block_channels, num_warps=_ELEMENTS // 64,
    )  # fmt: skip
    return out


@triton_jit
def _input_points(d, taps: tl.constexpr):  # type: ignore[no-untyped-def]
    # The pixels of a tile along one axis -> points.
    if taps == 3:
        even, odd = d[4] - 2.0 * d[2], 0.7071067811865476 * (d[3] - 2.0 * d[1])
        far, off = d[4] - 0.5 * d[2], 1.4142135623730951 * (d[3] - 0.5 * d[1])
        out = (d[0] - 2.5 * d[2] + d[4], even + odd, even - odd, far + off, far - off, d[1] - 2.5 * d[3] + d[5])
    else:
        out = (d[2] - d[0], d[2] + d[1], d[2] - d[1], d[3] - d[1])  # type: ignore[assignment]
    return out


@triton_jit
def _output_pixels(m, taps: tl.constexpr):  # type: ignore[no-untyped-def]
    # Products along one axis -> pixels.
    if taps == 3:
        s, d, S, D = m[1] + m[2], m[1] - m[2], m[3] + m[4], m[3] - m[4]
        last = 0.3535533905932738 * d + 2.8284271247461903 * D + m[5]
        out = (m[0] + s + S, 0.7071067811865476 * d + 1.4142135623730951 * D, 0.5 * s + 2.0 * S, last)
    else:
        s = m[1] + m[2]
        out = (m[0] + s, m[1] - m[2], s + m[3])  # type: ignore[assignment]
    return out


@triton_jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _transform_input_kernel(  # type: ignore[no-untyped-def]
    x_ptr, mean_ptr, inv_std_ptr, out_ptr, first, down, across, height, width, channels,
    taps: tl.constexpr, has_norm: tl.constexpr, limit: tl.constexpr,
    block_tiles: tl.constexpr, block_channels: tl.constexpr,
):  # fmt: skip
    # A thread holds whole tiles of two channels: all sums are in registers, in float32.
    size: tl.constexpr = 4 if taps == 3 else 3
    points: tl.constexpr = size + taps - 1
    line = first + tl.program_id(2)  # a row of tiles, numbered through all images
    image, row = line // down, line % down
    c = tl.program_id(0) * block_channels + tl.arange(0, block_channels)
    tile = tl.program_id(1) * block_tiles + tl.arange(0, block_tiles)
    if has_norm:
        scale = tl.load(inv_std_ptr + image * channels + c, mask=c < channels, other=0.0)[None, :]
        offset = tl.load(mean_ptr + image * channels + c, mask=c < channels, other=0.0)[None, :] * -scale
    x_ptr += image.to(tl.int64) * height * width * channels
    columns = ()
    for j in tl.static_range(points):
        x = tile * size + (j - 1)
        valid = (x >= 0)[:, None] & (c < channels)[None, :]
        column = ()
        for i in tl.static_range(points):
            y = row * size + (i - 1)
            inside = valid & (x < tl.where((y >= 0) & (y < height), width, 0))[:, None]
            source = x_ptr + y.to(tl.int64) * (width * channels) + (x[:, None] * channels + c[None, :])
            value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
            if has_norm:
                value = value * scale + offset
                root = tl.rsqrt(1.0 + tl.exp2(value * -1.4426950408889634))  # its square is the sigmoid
                value = tl.where(inside, value * root * root, 0.0)
            elif limit > 0:  # values after a norm are small; others must not leave the range of float16
                value = tl.minimum(tl.maximum(value, -limit), limit)
            column = column + (value,)  # type: ignore[assignment]  # noqa: RUF005 (Triton concatenates with +)
        columns = columns + (_input_points(column, taps),)  # type: ignore[assignment]  # noqa: RUF005
    mask = (tile < across)[:, None] & (c < channels)[None, :]
    plane = tl.num_programs(2).to(tl.int64) * across * channels
    target = out_ptr + (tl.program_id(2) * across + tile)[:, None].to(tl.int64) * channels + c[None, :]
    for i in tl.static_range(points):
        values = ()
        for j in tl.static_range(points):
            values = values + (columns[j][i],)  # type: ignore[assignment]  # noqa: RUF005
        values = _input_points(values, taps)
        for j in tl.static_range(points):
            tl.store(target + (i * points + j) * plane, values[j].to(out_ptr.dtype.element_ty), mask=mask)


@triton_jit(do_not_specialize=_SIZES)  # type: ignore[untyped-decorator]
def _transform_output_kernel(  # type: ignore[no-untyped-def]
    products_ptr, bias_ptr, out_ptr, mean_ptr, square_ptr, count_ptr,
    first, down, across, height, width, channels,
    taps: tl.constexpr, upsample_factor: tl.constexpr, lead: tl.constexpr, has_bias: tl.constexpr,
    span: tl.constexpr, block_tiles: tl.constexpr, block_channels: tl.constexpr,
):  # fmt: skip
    size: tl.constexpr = 4 if taps == 3 else 3
    points: tl.constexpr = size + taps - 1
    line = first + tl.program_id(2)
    image, row = line // down, line % down
    phase = tl.program_id(1) % (upsample_factor * upsample_factor)
    left = tl.program_id(1) // (upsample_factor * upsample_factor) * span
    right = tl.minimum(left + span, across)
    c = tl.program_id(0) * block_channels + tl.arange(0, block_channels)
    if has_bias:
        bias = tl.load(bias_ptr + phase * channels + c, mask=c < channels, other=0.0)[None, :]
    out_ptr += image.to(tl.int64) * height * width * channels
    wide = channels * (upsample_factor * upsample_factor)
    plane = tl.num_programs(2).to(tl.int64) * across * wide
    # Statistics are relative to the first value of each element, so that squares do not cancel where means are large.
    shift = tl.zeros([block_tiles, block_channels], tl.float32)
    total = tl.zeros([block_tiles, block_channels], tl.float32)
    square = tl.zeros([block_tiles, block_channels], tl.float32)
    count = tl.zeros([block_tiles], tl.float32)
    for start in range(left, right, block_tiles):
        tile = start + tl.arange(0, block_tiles)
        valid = (tile < right)[:, None] & (c < channels)[None, :]
        source = products_ptr + (tl.program_id(2) * across + tile)[:, None].to(tl.int64) * wide
        source += (phase * channels + c)[None, :]
        columns = ()
        for j in tl.static_range(points):
            column = ()
            for i in tl.static_range(points):
                value = tl.load(source + (i * points + j) * plane, mask=valid, other=0.0)
                column = column + (value.to(tl.float32),)  # type: ignore[assignment]  # noqa: RUF005
            columns = columns + (_output_pixels(column, taps),)  # type: ignore[assignment]  # noqa: RUF005
        high, along = 0.0, tl.zeros([block_tiles], tl.float32)
        for i in tl.static_range(size):
            values = ()
            for j in tl.static_range(points):
                values = values + (columns[j][i],)  # type: ignore[assignment]  # noqa: RUF005
            values = _output_pixels(values, taps)
            y = (row * size + i) * upsample_factor + phase // upsample_factor - lead
            reach = tl.where((y >= 0) & (y < height), width, 0)
            high += tl.where(reach > 0, 1.0, 0.0)
            target = out_ptr + y.to(tl.int64) * (width * channels)
            for j in tl.static_range(size):
                x = (tile * size + j) * upsample_factor + phase % upsample_factor - lead
                in_row = (tile < right) & (x >= 0)
                inside = (in_row & (x < reach))[:, None] & (c < channels)[None, :]
                value = values[j]
                if has_bias:
                    value += bias
                tl.store(target + (x[:, None] * channels + c[None, :]), value.to(out_ptr.dtype.element_ty), mask=inside)
                if i + j == 0:
                    shift = tl.where(start == left, value, shift)
                if i == 0:
                    along += (in_row & (x < width)).to(tl.float32)
                gap = tl.where(inside, value - shift, 0.0)
                total += gap
                square += gap * gap
        count += high * along
    # Merge the statistics of the elements.
    counts = tl.maximum(count, 1.0)[:, None]
    means = shift + total / counts
    pixels = tl.sum(count, 0)  # may be zero: some rows of transposed convolutions are not part of the result
    mean = tl.sum(means * count[:, None], 0) / tl.maximum(pixels, 1.0)
    gaps = means - mean[None, :]
    squares = tl.sum(square - total * total / counts + gaps * gaps * count[:, None], 0)
    part = line * tl.num_programs(1) + tl.program_id(1)
    tl.store(mean_ptr + part * channels + c, mean, mask=c < channels)
    tl.store(square_ptr + part * channels + c, squares, mask=c < channels)
    tl.store(count_ptr + part, pixels)
