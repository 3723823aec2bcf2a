"""Convolutions over channels-last maps on a GPU as fewer products (Winograd's minimal filters), in half precision.

    map (+ norm + SiLU) ─▶ tiles that overlap ─▶ factors ─▶ one matrix product each ─▶ sums ─▶ map and its statistics

A 3×3 convolution takes 36 products for 4×4 pixels in place of 144. A transposed one of kernel 4 and stride 2 is four
2×2 convolutions whose tiles coincide: 16 products each for 3×3 pixels in place of 36. Sums are made in float32; factors
and products lie in memory as float16, whose three bits more than bfloat16's make up for what the sums magnify (with
the points 0, ±√½, ±√2, ∞: an error of 1.7e-3, that of rounding the result to bfloat16). Float16 has a small range, but
maps that come out of a norm are bounded, and each channel of the weights is scaled by a power of two; so is what comes
out, until the next norm takes that away again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.kernels.available import takes_kernel
from vitruvian.kernels.linear_cpu import even_chunks
from vitruvian.kernels.winograd import taps_of, taps_of_transposed

BYTES = 2**28  # of factors and products at a time, for four pictures or more
ROWS = 128  # of a block of a matrix product
FEWEST_TILES = 128  # with fewer, the larger weights take longer to read than the products they save
WORTH_TILES = 1024  # with fewer in all pictures, they take more memory than their time is worth
WORTH_PICTURES = 4  # the same for transposed convolutions
ROOM = 1 / 16  # norm of a channel's weights: products then stay within the range of float16
EPS = 1e-5


@dataclass(frozen=True)
class Filters:
    """A minimal filter along one axis: t factors for `size` pixels."""

    size: int
    data: tuple[tuple[float, ...], ...]  # [t, t]: pixels of a tile -> factors
    kernel: tuple[tuple[float, ...], ...]  # [t, taps]: taps -> factors
    out: tuple[tuple[float, ...], ...]  # [size, t]: products -> pixels
    gain: float  # the most by which a factor of both axes exceeds the largest pixel
    least: int  # where it pays: see `pays`


A, B = 0.5**0.5, 2**0.5
FILTERS = {
    2: Filters(
        size=3,
        data=((-1, 0, 1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
        kernel=((-1, 0), (0.5, 0.5), (0.5, -0.5), (0, 1)),
        out=((1, 1, 1, 0), (0, 1, -1, 0), (0, 1, 1, 1)),
        gain=4,
        least=256,
    ),
    3: Filters(
        size=4,
        data=(
            (1, 0, -2.5, 0, 1, 0),
            (0, -2 * A, -2, A, 1, 0),
            (0, 2 * A, -2, -A, 1, 0),
            (0, -0.5 * B, -0.5, B, 1, 0),
            (0, 0.5 * B, -0.5, -B, 1, 0),
            (0, 1, 0, -2.5, 0, 1),
        ),
        kernel=(
            (1, 0, 0),
            (-2 / 3, -2 / 3 * A, -1 / 3),
            (-2 / 3, 2 / 3 * A, -1 / 3),
            (1 / 6, 1 / 6 * B, 1 / 3),
            (1 / 6, -1 / 6 * B, 1 / 3),
            (0, 0, 1),
        ),
        out=((1, 1, 1, 1, 1, 0), (0, A, -A, B, -B, 0), (0, 0.5, 0.5, 2, 2, 0), (0, A / 2, -A / 2, 2 * B, -2 * B, 1)),
        gain=27,
        least=128,
    ),
}


@dataclass(frozen=True)
class Maps:
    """Channels-last maps, and what is still to be done to them: SiLU((x − mean) · spread)."""

    values: Tensor  # [B, C, H, W]
    mean: Tensor | None = None  # [B, C] in float32; None: nothing
    spread: Tensor | None = None

    def activated(self, dtype: torch.dtype) -> Tensor:
        """Return the maps after all that."""
        if self.mean is None or self.spread is None:
            return self.values.to(dtype)
        if takes_kernel(self.values, name="winograd"):
            from vitruvian.kernels import winograd_triton

            return winograd_triton.norm_silu(self.values, self.mean, self.spread, dtype)
        return F.silu((self.values.float() - self.mean[..., None, None]) * self.spread[..., None, None]).to(dtype)

    def activate_(self, dtype: torch.dtype) -> Tensor:
        """Return the maps after all that, in the memory of `values` where the kernel runs: they are then gone."""
        if self.mean is None or self.spread is None or not takes_kernel(self.values, name="winograd"):
            return self.activated(dtype)
        from vitruvian.kernels import winograd_triton

        place = self.values.view(dtype) if self.values.dtype.itemsize == dtype.itemsize else None
        return winograd_triton.norm_silu(self.values, self.mean, self.spread, dtype, out=place)


class TiledConv:
    """A 3×3 convolution with padding 1, which may end in a pixel shuffle, or a transposed one (kernel 4, stride 2,
    padding 1), each with the statistics of the instance norm that follows."""

    @torch.no_grad()
    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False, shuffles: bool = False
    ) -> None:
        self.taps = 2 if transposed else 3
        self.lead = 1 if transposed else 0  # rows that come out before the first one wanted
        self.spread = 2 if transposed or shuffles else 1  # pixels out for each pixel in, along an axis
        split = taps_of_transposed(weight) if transposed else taps_of(weight, self.spread)  # [s, s, C', C, k, k]
        half = weight.dtype in (torch.float16, torch.bfloat16)
        self.dtype = torch.float16 if half else weight.dtype
        self.factors, self.unit = factors_of(split.flatten(0, 1), FILTERS[self.taps], dtype=self.dtype)
        self.channels = len(self.unit)
        self.bias: Tensor | None = None
        if bias is not None:
            phases = bias.detach().float().view(-1, self.spread**2).t()  # [s², C']
            self.bias = (phases / self.unit).flatten()  # [s²·C']

    def __call__(self, maps: Maps, *, batch: int | None = None) -> Maps:
        """Convolve maps [B, C, H, W] into [B, C', s·H, s·W], whose norm and SiLU are still to be done.

        They are some of `batch` pictures.
        """
        B, _, H, W = maps.values.shape
        down, across = tiles_hw((H, W), self.taps)
        shape = (B, self.channels, self.spread * H, self.spread * W)
        out = torch.empty(shape, device=maps.values.device, dtype=self.dtype, memory_format=torch.channels_last)
        moments = new_moments(out, (down, across), phases=self.spread**2)
        line = self.factors.element_size() * across * len(self.factors) * sum(self.factors.shape[1:])  # bytes
        room = bytes_at_a_time(self.factors.nbytes, B if batch is None else batch)
        lines = lines_at_a_time(B * down, across, most=max(1, room // line))
        for first in range(0, B * down, lines):
            self.run_lines(maps, out, moments, first=first, lines=min(lines, B * down - first))
        return Maps(out, *join_moments(out, moments, self.unit))

    def run_lines(self, maps: Maps, out: Tensor, moments: Any, *, first: int, lines: int) -> None:
        """Convolve some rows of tiles, which are numbered through all pictures."""
        found = spread_tiles(maps, taps=self.taps, first=first, lines=lines, dtype=self.dtype)  # [t², T, C]
        products = torch.bmm(found, self.factors.mT)  # [t², T, s²·C']
        del found
        gather_tiles(
            products, self.bias, out, moments,
            taps=self.taps, spread=self.spread, lead=self.lead, first=first, lines=lines,
        )  # fmt: skip


def pays(
    weight: Tensor, size_hw: tuple[int, int], *, pictures: int, batch: int | None = None, transposed: bool = False
) -> bool:
    """Tell whether tiles beat a plain convolution with this weight on maps of this size.

    `pictures` are convolved together, out of a batch of `batch`. Factors take four times the memory of the weights
    beside them, whatever the batch: few pictures on small maps do without.

    Products saved grow with C · N, what passes through memory with C + N, for N channels out before a shuffle. With
    650 TFLOP/s and 4.3 TB/s the two balance where C · N / (C + N) is 80 for 3×3 and 170 for transposed convolutions;
    half as much again is asked for.
    """
    taps = 2 if transposed else 3
    before, after = (weight.shape[0], 4 * weight.shape[1]) if transposed else (weight.shape[1], weight.shape[0])
    down, across = tiles_hw(size_hw, taps)
    fits = tuple(weight.shape[2:]) == ((4, 4) if transposed else (3, 3)) and before % 8 == 0 and after % 8 == 0
    enough = before * after >= FILTERS[taps].least * (before + after)
    batch = pictures if batch is None else batch
    worth = batch >= WORTH_PICTURES if transposed else batch * down * across >= WORTH_TILES
    return fits and enough and worth and pictures * down * across >= FEWEST_TILES


def bytes_at_a_time(factors: int, batch: int) -> int:
    """Return how many bytes tiles may take at a time: few for few pictures, but not fewer than the factors of the
    weights, which are read again each time."""
    return min(BYTES, max(factors, batch * BYTES // 4))


def lines_at_a_time(lines: int, across: int, *, most: int) -> int:
    """Cut rows of tiles evenly, into about `most` each; where that is little change, into whole blocks of products."""
    even = -(-lines // -(-lines // most))
    block = ROWS // math.gcd(across, ROWS)
    return min(lines, -(-even // block) * block) if 2 * block <= even else even


def tiles_hw(size_hw: tuple[int, int], taps: int) -> tuple[int, int]:
    """Return the number of tiles down and across maps of a size; for two taps, one row more comes out than goes in."""
    size, more = FILTERS[taps].size, 3 - taps
    height, width = (-(-(n + more) // size) for n in size_hw)
    return height, width


def spread_tiles(maps: Maps, *, taps: int, first: int, lines: int, dtype: torch.dtype) -> Tensor:
    """Return the factors [t², lines · across, C] of some rows of tiles, numbered through all pictures."""
    filters, x = FILTERS[taps], maps.values
    H, W = x.shape[2:]
    down, across = tiles_hw((H, W), taps)
    largest = torch.finfo(dtype).max / filters.gain if dtype == torch.float16 else 0.0
    if takes_kernel(x, name="winograd"):
        from vitruvian.kernels import winograd_triton

        return winograd_triton.spread_tiles(
            x, maps.mean, maps.spread,
            taps=taps, tiles_hw=(down, across), first=first, lines=lines, largest=largest, dtype=dtype,
        )  # fmt: skip
    data = torch.tensor(filters.data, dtype=torch.float32, device=x.device)
    below, right = down * filters.size + taps - 2 - H, across * filters.size + taps - 2 - W
    whole = F.pad(maps.activated(torch.float32), (1, right, 1, below))
    if largest:
        whole = whole.clamp(-largest, largest)
    tiles = whole.unfold(2, len(data), filters.size).unfold(3, len(data), filters.size)  # [B, C, down, across, t, t]
    found = torch.einsum("yi,xj,bcdaij->yxbdac", data, data, tiles).flatten(0, 1).flatten(1, 2)  # [t², B·down, a, C]
    return found[:, first : first + lines].flatten(1, 2).to(dtype)


def gather_tiles(
    products: Tensor,
    bias: Tensor | None,
    out: Tensor,
    moments: Any,
    *,
    taps: int,
    spread: int,
    lead: int,
    first: int,
    lines: int,
) -> None:
    """Write the products [t², lines · across, s²·C'] of some rows of tiles, and a bias [s²·C'], into maps, and their
    moments."""
    filters = FILTERS[taps]
    H, W = out.shape[2:]
    down, across = tiles_hw((H // spread, W // spread), taps)
    if moments is not None:
        from vitruvian.kernels import winograd_triton

        winograd_triton.gather_tiles(
            products, bias, out, moments,
            taps=taps, spread=spread, lead=lead, tiles_hw=(down, across), first=first, lines=lines,
        )  # fmt: skip
        return
    sums, s = torch.tensor(filters.out, dtype=torch.float32, device=out.device), spread
    split = products.float().view(len(sums[0]), len(sums[0]), lines, across, s, s, -1)
    found = torch.einsum("iy,jx,yxlapqc->lipajqc", sums, sums, split)
    if bias is not None:
        found = found + bias.view(s, 1, 1, s, -1)
    for number, rows in enumerate(found.reshape(lines, filters.size * s, across * filters.size * s, -1), first):
        top = number % down * filters.size * s - lead
        high = slice(max(top, 0), min(top + len(rows), H))
        kept = rows[high.start - top : high.stop - top, lead : lead + W]
        out[number // down, :, high] = kept.permute(2, 0, 1).to(out.dtype)


def new_moments(out: Tensor, tiles: tuple[int, int], *, phases: int) -> Any:
    """Return a place for the moments of maps that are still to be written, where the kernels run."""
    if not takes_kernel(out, name="winograd"):
        return None
    from vitruvian.kernels import winograd_triton

    return winograd_triton.Moments(out, tiles, phases=phases)


def join_moments(out: Tensor, moments: Any, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean of each map, and the factor that norms it [B, C]; the maps are in units [C]."""
    if moments is not None:
        mean, spread = moments.join(unit, eps=EPS)
        return mean, spread
    variance, mean = torch.var_mean(out.float(), dim=(2, 3), correction=0)
    return mean, unit * torch.rsqrt(variance * unit**2 + EPS)


def factors_of(taps: Tensor, filters: Filters, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Bring the taps [s², C', C, k, k] of a convolution to factors [t², s²·C', C] in units [C'] of their channels."""
    phases, channels, before = taps.shape[:3]
    points = len(filters.kernel)
    out = torch.empty(points**2, phases, channels, before, device=taps.device, dtype=dtype)
    unit = torch.empty(channels, device=taps.device, dtype=torch.float32)
    for part in even_chunks(channels, 256):  # in float32, so a few at a time
        wide = taps[:, part].float()
        rows = [sum_of(wide.unbind(-2), down) for down in filters.kernel]
        found = torch.stack([sum_of(row.unbind(-1), across) for row in rows for across in filters.kernel])
        if dtype == torch.float16:
            norm = found.square().sum(-1).amax((0, 1)).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
            unit[part] = torch.exp2(torch.ceil(torch.log2(norm / ROOM)))
        else:
            unit[part] = 1.0
        out[:, :, part] = (found / unit[part, None]).to(dtype)
    return out.flatten(1, 2), unit


def sum_of(parts: tuple[Tensor, ...], factors: tuple[float, ...]) -> Tensor:
    """Sum tensors with factors."""
    total = torch.zeros_like(parts[0])
    for part, factor in zip(parts, factors, strict=True):
        if factor:
            total = torch.add(total, part, alpha=factor)
    return total
