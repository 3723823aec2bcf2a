"""Convolutions over channels-last maps on the CPU as fewer products (Winograd's minimal filters), in float32.

    padded map ─▶ tiles that overlap ─▶ sums and differences of their pixels ─▶ one matrix product each ─▶ sums ─▶ map

A 3×3 convolution takes 16 products for 2×2 pixels in place of 36. A transposed one of kernel 4 and stride 2 is four
2×2 convolutions whose tiles coincide: 36 products for 4×4 pixels in place of 64. All factors are 0, ±1 and ½, so that
results stay as exact as those of a plain convolution.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from vitruvian.kernels.lanes_cpu import cut, run_parts
from vitruvian.kernels.linear_cpu import PackedLinear

Seen = TypeVar("Seen")

TILES = 300  # tiles at a time: their products stay in the cache


@dataclass(frozen=True)
class Filters:
    """A minimal filter along one axis. Tiles are two pixels apart."""

    data: tuple[tuple[int, ...], ...]  # [t, s]: pixels of a tile -> factors
    kernel: tuple[tuple[float, ...], ...]  # [t, taps]: taps -> factors
    out: tuple[tuple[int, ...], ...]  # [2, t]: products -> two outputs


TWO_TAPS = Filters(
    data=((1, -1, 0), (0, 1, 0), (0, 1, -1)), kernel=((1, 0), (1, 1), (0, 1)), out=((1, 1, 0), (0, 1, -1))
)
THREE_TAPS = Filters(
    data=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    kernel=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    out=((1, 1, 1, 0), (0, 1, -1, -1)),
)


class Winograd:
    """A 3×3 convolution with padding 1, which may end in a pixel shuffle, or a transposed one (kernel 4, stride 2,
    padding 1)."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, *, transposed: bool = False, shuffles: bool = False
    ) -> None:
        self.filters = TWO_TAPS if transposed else THREE_TAPS
        self.spread = 2 if transposed or shuffles else 1  # pixels out for each pixel in, along an axis
        self.lead = 1 if transposed else 0  # rows that come out before the first one wanted
        split = taps_of_transposed(weight) if transposed else taps_of(weight, self.spread)
        factors = torch.tensor(self.filters.kernel, dtype=torch.float32)
        kernels = torch.einsum("ya,xb,pqoiab->yxpqoi", factors, factors, split)  # [t, t, s, s, C', C]
        self.channels = kernels.shape[-2]
        if bias is not None:
            bias = bias.detach().view(-1, self.spread**2).t().flatten()  # [s·s·C']
        # The product in the middle is part of every output once, so that it can bring the bias.
        places = list(itertools.product(range(len(factors)), repeat=2))
        packed = run_parts(lambda yx: PackedLinear(kernels[yx].flatten(0, 2), bias if yx == (1, 1) else None), places)
        self.products = dict(zip(places, packed, strict=True))

    def tiles_hw(self, size_hw: tuple[int, int]) -> tuple[int, int]:
        """Number of tiles for a map [h, w, C]."""
        height, width = ((n + self.lead + 1) // 2 for n in size_hw)
        return height, width

    def padded(self, size_hw: tuple[int, int], channels: int) -> tuple[Tensor, Tensor]:
        """Return an empty map with the zeros around it that tiles reach, and the view of its inside."""
        down, across = self.tiles_hw(size_hw)
        reach = len(self.filters.data[0]) - 2
        whole = torch.zeros(2 * down + reach, 2 * across + reach, channels)
        return whole, whole[1 : 1 + size_hw[0], 1 : 1 + size_hw[1]]

    def __call__(
        self, whole: Tensor, size_hw: tuple[int, int], look: Callable[[Tensor], Seen]
    ) -> tuple[Tensor, list[Seen]]:
        """Convolve a padded map to [s·h, s·w, C'], and return too what `look` says of its parts [h', s·w, C']."""
        down, across = self.tiles_hw(size_hw)
        s, lead = self.spread, self.lead
        height, width = s * size_hw[0], s * size_hw[1]
        out = torch.empty(down, 2, s, across, 2, s, self.channels)
        flat = out.view(2 * s * down, 2 * s * across, -1)

        def run(rows: slice) -> Seen:
            part = whole[2 * rows.start : 2 * rows.stop + len(self.filters.data[0]) - 2]
            self.run_tiles(part, out[rows])
            first, last = max(lead, 2 * s * rows.start), min(lead + height, 2 * s * rows.stop)
            return look(flat[first:last, lead : lead + width])

        seen = run_parts(run, cut(down, max(1, TILES // across)))
        return flat[lead : lead + height, lead : lead + width], seen

    def run_tiles(self, part: Tensor, out: Tensor) -> None:
        """Convolve rows of tiles: [2·d + …, 2·a + …, C] into [d, 2, s, a, 2, s, C']."""
        d, a = out.shape[0], out.shape[3]
        rows = [combine(list(strips(part, 0, d)), factors) for factors in self.filters.data]
        products = []
        for y, row in enumerate(rows):
            line = []
            for x, factors in enumerate(self.filters.data):
                tile = combine(list(strips(row, 1, a)), factors).reshape(d * a, -1)  # [d·a, C]
                line.append(self.products[y, x](tile))  # [d·a, s·s·C']
            products.append(line)
        for y, down in enumerate(self.filters.out):
            sums = [combine(column, down) for column in zip(*products, strict=True)]
            for x, across in enumerate(self.filters.out):
                found = combine(sums, across).view(d, a, self.spread, self.spread, -1)
                out[:, y, :, :, x] = found.transpose(1, 2)  # [d, s, a, s, C']


def strips(part: Tensor, axis: int, count: int) -> list[Tensor]:
    """Every second row (or column) from the first, from the second, …: one for each pixel of a tile."""
    reach = part.shape[axis] - 2 * count + 2
    return [part.narrow(axis, j, 2 * count - 1)[(slice(None),) * axis + (slice(None, None, 2),)] for j in range(reach)]


def combine(parts: list[Tensor] | tuple[Tensor, ...], factors: tuple[int, ...]) -> Tensor:
    """Sum tensors with factors 0 and ±1."""
    total: Tensor | None = None
    for factor, part in sorted(zip(factors, parts, strict=True), key=lambda pair: -pair[0]):
        if factor == 0:
            continue
        total = part if total is None else (total + part if factor > 0 else total - part)
    if total is None:
        raise ValueError("combine: expected a factor that is not 0")
    return total


def taps_of(weight: Tensor, spread: int) -> Tensor:
    """Bring the weight [C'·s², C, 3, 3] of a convolution to [s, s, C', C, 3, 3]."""
    split = weight.detach().reshape(-1, spread, spread, *weight.shape[1:])  # [C', s, s, C, 3, 3]
    return split.permute(1, 2, 0, 3, 4, 5)


def taps_of_transposed(weight: Tensor) -> Tensor:
    """Bring the weight [C, C', 4, 4] of a transposed convolution to the taps [2, 2, C', C, 2, 2] of its four phases."""
    order = torch.tensor([[2, 0], [3, 1]])
    taps = weight.detach()[:, :, order][:, :, :, :, order]  # [C, C', 2, 2, 2, 2]: phase, tap, phase, tap
    return taps.permute(2, 4, 1, 0, 3, 5)
