"""Instance norm and SiLU of feature maps, after an optional pixel shuffle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.ops.dispatch import triton_jit, use_triton
from vitruvian.ops.triton_import import tl, triton


def instance_norm_silu(
    x: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5, shuffle: bool = False, inplace: bool = False
) -> Tensor:
    """Add a bias [C] to maps [B, C, H, W], normalize each channel over its pixels and apply SiLU.

    Args:
        x: Maps, for the Triton version in channels-last memory format.
        bias: Bias of the convolution before.
        eps: Epsilon of the norm.
        shuffle: Shuffle pixels after the bias: [B, 4·C, H, W] -> [B, C, 2H, 2W], as `torch.pixel_shuffle`.
        inplace: The memory of `x` may be reused for the result.
    """
    if use_triton("instance_norm", x) and x.is_contiguous(memory_format=torch.channels_last):
        if not shuffle:
            return _instance_norm_triton(x, bias, eps, shuffle=False, inplace=inplace)
        order = torch.arange(x.shape[1], device=x.device).view(-1, 4).t().flatten()  # phase by phase
        phases = x.permute(0, 2, 3, 1)[..., order].permute(0, 3, 1, 2)  # [B, 4·C, H, W], channels last
        return _instance_norm_triton(phases, None if bias is None else bias[order], eps, shuffle=True)
    if bias is not None:
        x = x + bias[:, None, None]
    if shuffle:
        x = F.pixel_shuffle(x, 2)  # [B, C, 2H, 2W]
    return F.silu(F.instance_norm(x, eps=eps))


@dataclass(frozen=True)
class FeatureMaps:
    """Feature maps whose instance norm and SiLU may be deferred to their consumer: SiLU((x - mean) · inv_std).

    Attributes:
        values: Maps [B, C, H, W].
        mean: Mean of each map [B, C] in float32; None for maps that are complete.
        inv_std: Reciprocal of the standard deviation of each map [B, C] in float32.
    """

    values: Tensor
    mean: Tensor | None = None
    inv_std: Tensor | None = None

    def activated(self, dtype: torch.dtype, *, inplace: bool = False) -> Tensor:
        """Return the complete maps, in `dtype` where a norm was deferred.

        With `inplace`, the result may reuse the memory of deferred maps.
        """
        x, mean, inv_std = self.values, self.mean, self.inv_std
        if mean is None or inv_std is None:
            return x
        if use_triton("instance_norm", x):
            reuse = inplace and x.dtype.itemsize == dtype.itemsize
            out = x.view(dtype) if reuse else torch.empty_like(x, dtype=dtype)
            _normalize_triton(x, None, mean, inv_std, out)
            return out
        return F.silu((x.float() - mean[..., None, None]) * inv_std[..., None, None]).to(dtype)

    def activated_rows(self, image: int, rows: slice) -> Tensor:
        """Return rows of the complete map of one image with channels last, in float32: [h, W, C]."""
        x = self.values[image, :, rows].permute(1, 2, 0).float()  # [h, W, C]
        if self.mean is None or self.inv_std is None:
            return x
        mean, inv_std = self.mean[image], self.inv_std[image]
        return F.silu(torch.addcmul(-mean * inv_std, x, inv_std), inplace=True)


class MapStatistics:
    """Collects the mean and the standard deviation of maps from parts of them."""

    def __init__(self) -> None:
        self._parts: dict[int, list[tuple[Tensor, Tensor, Tensor]]] = {}  # of each image

    def add(self, image: int, part: Tensor) -> None:
        """Add pixels [h, W, C] of the map of an image."""
        pixels = part.flatten(0, 1)
        mean = pixels.mean(0)
        count, squares = torch.tensor(float(len(pixels))), (pixels - mean).square_().sum(0)
        self._parts.setdefault(image, []).append((count, mean, squares))

    def merge(self, unit: Tensor | float = 1.0, *, eps: float) -> tuple[Tensor, Tensor]:
        """Return the mean and the inverse standard deviation of each map [B, C]; maps are in units [C]."""
        merged = []
        for parts in self._parts.values():
            counts, means, squares = (torch.stack(values) for values in zip(*parts, strict=True))
            share = (counts / counts.sum())[:, None]  # [parts, 1]
            mean = (means * share).sum(0)
            variance = squares.sum(0) / counts.sum() + ((means - mean).square() * share).sum(0)
            merged.append((mean, unit * torch.rsqrt(variance * unit**2 + eps)))
        mean, inv_std = (torch.stack(values) for values in zip(*merged, strict=True))
        return mean, inv_std


# ---------------------------------------------------------------------------------------------------------- Triton


def _instance_norm_triton(
    x: Tensor, bias: Tensor | None, eps: float, *, shuffle: bool, inplace: bool = False
) -> Tensor:
    """Normalize channels-last maps [B, C, H, W]; with `shuffle`, channels are ordered phase by phase.

    One kernel computes statistics of chunks of pixels, a second one merges them, a third one normalizes.
    """
    B, C, H, W = x.shape
    pixels, channels = H * W, C // 4 if shuffle else C
    chunk = 1024 if B * pixels * C > 2**26 else 256  # small maps need more chunks to fill the device
    chunks = triton.cdiv(pixels, chunk)
    means = torch.empty(B, chunks, C, device=x.device, dtype=torch.float32)
    squares, counts = torch.empty_like(means), means.new_empty(B, chunks)
    width = min(128, triton.next_power_of_2(C))
    _chunk_statistics_kernel[(chunks, triton.cdiv(C, width), B)](
        x, bias, means, squares, counts, pixels, C, chunk,
        rows=4096 // width, width=width, has_bias=bias is not None, num_warps=4,
    )  # fmt: skip
    mean, inv_std = merge_statistics(means.view(B, -1, channels), squares, counts, eps=eps)
    out = x
    if shuffle or not inplace:
        shape = (B, channels, 2 * H, 2 * W) if shuffle else x.shape
        out = torch.empty(shape, device=x.device, dtype=x.dtype, memory_format=torch.channels_last)
    _normalize_triton(x, bias, mean, inv_std, out, shuffle=shuffle)
    return out


def merge_statistics(
    means: Tensor, squares: Tensor, counts: Tensor, unit: Tensor | None = None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """Merge the statistics of P parts of maps: the mean and the inverse standard deviation of each map [B, C].

    Args:
        means: Mean of each part [B, P, C].
        squares: Sum of the squared deviations from it [B, P, C].
        counts: Number of pixels of each part [B, P], or of each s parts that follow each other [B, P / s].
        unit: Unit of the maps [C]; by default 1.
        eps: Epsilon of the norm.
    """
    B, parts, C = means.shape
    mean = torch.empty(B, C, device=means.device, dtype=torch.float32)
    inv_std = torch.empty_like(mean)
    _merge_statistics_kernel[(triton.cdiv(C, 16), B)](
        means, squares, counts, unit, mean, inv_std, parts, C, eps=eps,
        repeats=parts // counts.shape[1], has_unit=unit is not None, rows=128, width=16, num_warps=4,
    )  # fmt: skip
    return mean, inv_std


def _normalize_triton(
    x: Tensor, bias: Tensor | None, mean: Tensor, inv_std: Tensor, out: Tensor, *, shuffle: bool = False
) -> None:
    """Write SiLU((x + bias - mean) · inv_std) of channels-last maps into `out`, which may share memory with x."""
    B, C, H, W = x.shape
    width = min(128, triton.next_power_of_2(C))
    rows = 8192 // width
    _normalize_kernel[(triton.cdiv(H * W, rows), triton.cdiv(C, width), B)](
        x, bias, mean, inv_std, out, H * W, C, W,
        rows=rows, width=width, has_bias=bias is not None, shuffle=shuffle, num_warps=4,
    )  # fmt: skip


@triton_jit
def _chunk_statistics_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, mean_ptr, square_ptr, count_ptr, pixels, channels, chunk,
    rows: tl.constexpr, width: tl.constexpr, has_bias: tl.constexpr,
):  # fmt: skip
    part, image = tl.program_id(0), tl.program_id(2)
    c = tl.program_id(1) * width + tl.arange(0, width)
    first = part * chunk
    last = min(first + chunk, pixels)
    start = x_ptr + image.to(tl.int64) * pixels * channels
    # Sums are relative to the first pixel of the chunk, so that squares do not cancel where the mean is large.
    shift = tl.load(start + first.to(tl.int64) * channels + c, mask=c < channels, other=0.0).to(tl.float32)
    totals = tl.zeros([rows, width], tl.float32)
    squares = tl.zeros([rows, width], tl.float32)
    for p in tl.range(first, last, rows, num_stages=3):
        pixel = p + tl.arange(0, rows)
        inside = (pixel[:, None] < last) & (c[None, :] < channels)
        offset = pixel[:, None].to(tl.int64) * channels + c[None, :]
        x = tl.load(start + offset, mask=inside, other=0.0).to(tl.float32)
        x = tl.where(inside, x - shift[None, :], 0.0)
        totals += x
        squares += x * x
    total, square = tl.sum(totals, 0), tl.sum(squares, 0)
    count = (last - first).to(tl.float32)
    target = (image * tl.num_programs(0) + part) * channels + c
    if has_bias:  # a constant changes the mean only
        shift += tl.load(bias_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    tl.store(mean_ptr + target, shift + total / count, mask=c < channels)
    tl.store(square_ptr + target, square - total * total / count, mask=c < channels)
    tl.store(count_ptr + image * tl.num_programs(0) + part, count)


@triton_jit(do_not_specialize=["parts"])  # type: ignore[untyped-decorator]
def _merge_statistics_kernel(  # type: ignore[no-untyped-def]
    mean_ptr, square_ptr, count_ptr, unit_ptr, out_mean, out_inv_std, parts, channels, eps: tl.constexpr,
    repeats: tl.constexpr, has_unit: tl.constexpr, rows: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    # Relative to the mean of the first part, so that squares do not cancel where means are large.
    image = tl.program_id(1)
    c = tl.program_id(0) * width + tl.arange(0, width)
    shift = tl.load(mean_ptr + image * parts * channels + c, mask=c < channels, other=0.0)
    total = tl.zeros([rows, width], tl.float32)
    square = tl.zeros([rows, width], tl.float32)
    counts = tl.zeros([rows], tl.float32)
    for first in tl.range(0, parts, rows, num_stages=3):
        row = first + tl.arange(0, rows)
        inside = (row < parts)[:, None] & (c < channels)[None, :]
        offset = (image * parts + row)[:, None] * channels + c[None, :]
        count = tl.load(count_ptr + (image * parts + row) // repeats, mask=row < parts, other=0.0)
        gap = tl.load(mean_ptr + offset, mask=inside, other=0.0) - shift[None, :]
        square += tl.load(square_ptr + offset, mask=inside, other=0.0) + gap * gap * count[:, None]
        total += gap * count[:, None]
        counts += count
    pixels = tl.sum(counts, 0)
    gap_mean = tl.sum(total, 0) / pixels
    variance = tl.sum(square, 0) / pixels - gap_mean * gap_mean
    if has_unit:  # epsilon is not in units
        unit = tl.load(unit_ptr + c, mask=c < channels, other=1.0)
        inv_std = tl.rsqrt(variance * unit * unit + eps) * unit
    else:
        inv_std = tl.rsqrt(variance + eps)
    tl.store(out_mean + image * channels + c, shift + gap_mean, mask=c < channels)
    tl.store(out_inv_std + image * channels + c, inv_std, mask=c < channels)


@triton_jit
def _normalize_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, mean_ptr, inv_std_ptr, out_ptr, pixels, channels, across,
    rows: tl.constexpr, width: tl.constexpr, has_bias: tl.constexpr, shuffle: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(2)
    out_channels = channels // 4 if shuffle else channels
    c = tl.program_id(1) * width + tl.arange(0, width)
    pixel = tl.program_id(0) * rows + tl.arange(0, rows)
    inside = (pixel[:, None] < pixels) & (c[None, :] < channels)
    x = tl.load(
        x_ptr + image.to(tl.int64) * pixels * channels + pixel[:, None].to(tl.int64) * channels + c[None, :],
        mask=inside, other=0.0,
    ).to(tl.float32)  # fmt: skip
    # With a shuffle, channels are ordered phase by phase: blocks of out_channels for (0, 0), (0, 1), (1, 0), (1, 1).
    out_channel = c % out_channels
    mean = tl.load(mean_ptr + image * out_channels + out_channel, mask=c < channels, other=0.0)
    inv_std = tl.load(inv_std_ptr + image * out_channels + out_channel, mask=c < channels, other=0.0)
    if has_bias:
        mean -= tl.load(bias_ptr + c, mask=c < channels, other=0.0).to(tl.float32)
    x = (x - mean[None, :]) * inv_std[None, :]
    x = x * tl.sigmoid(x)
    if shuffle:
        phase = c // out_channels
        row = (pixel // across)[:, None] * 2 + (phase // 2)[None, :]
        column = (pixel % across)[:, None] * 2 + (phase % 2)[None, :]
        target = (row * (2 * across) + column).to(tl.int64) * out_channels + out_channel[None, :]
    else:
        target = pixel[:, None].to(tl.int64) * channels + c[None, :]
    tl.store(out_ptr + image.to(tl.int64) * pixels * channels + target, x.to(out_ptr.dtype.element_ty), mask=inside)
