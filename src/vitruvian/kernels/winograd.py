"""Convolutions over channels-last maps on the CPU as fewer products (Winograd's minimal filters), in float32.

    padded map ─▶ tiles that overlap ─▶ sums and differences of their pixels ─▶ one matrix product each ─▶ sums ─▶ map

A 3×3 convolution takes 16 products for 2×2 pixels in place of 36. A transposed one of kernel 4 and stride 2 is four
2×2 convolutions whose tiles coincide: 64 products for 6×6 pixels in place of 144. All factors are 0, ±1 and ½, so that
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

TILES = 400  # at a time: products of a hundred take a sixth longer for each, as weights are read more often


@dataclass(frozen=True)
class Filters:
    """A minimal filter along one axis. Tiles are as many pixels apart as come out of each."""

    kernel: tuple[tuple[float, ...], ...]  # [t, taps]: taps -> factors
    out: tuple[tuple[int, ...], ...]  # [n, t]: products -> outputs

    @property
    def step(self) -> int:
        """Pixels between tiles."""
        return len(self.out)


# [t, t]: pixels of a tile -> factors, the same for both filters.
DATA = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
TILE = len(DATA)  # pixels
TWO_TAPS = Filters(kernel=((1, 0), (0.5, 0.5), (0.5, -0.5), (0, 1)), out=((1, 1, 1, 0), (0, 1, -1, 0), (0, 1, 1, -1)))
THREE_TAPS = Filters(
    kernel=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)), out=((1, 1, 1, 0), (0, 1, -1, -1))
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
        height, width = (-(-(n + self.lead) // self.filters.step) for n in size_hw)
        return height, width

    def padded(self, size_hw: tuple[int, int], channels: int) -> tuple[Tensor, Tensor]:
        """Return an empty map with the zeros around it that tiles reach, and the view of its inside."""
        down, across = self.tiles_hw(size_hw)
        step = self.filters.step
        whole = torch.zeros(step * (down - 1) + TILE, step * (across - 1) + TILE, channels)
        return whole, whole[1 : 1 + size_hw[0], 1 : 1 + size_hw[1]]

    def __call__(
        self, whole: Tensor, size_hw: tuple[int, int], look: Callable[[Tensor], Seen]
    ) -> tuple[Tensor, list[Seen]]:
        """Convolve a padded map to [s·h, s·w, C'], and return too what `look` says of its parts [h', s·w, C'].

        Parts are small: what `look` makes of them stays in the cache.
        """
        down, across = self.tiles_hw(size_hw)
        s, lead, step = self.spread, self.lead, self.filters.step
        height, width = s * size_hw[0], s * size_hw[1]
        out = torch.empty(down, step, s, across, step, s, self.channels)
        flat = out.view(step * s * down, step * s * across, -1)

        def run(rows: slice) -> list[Seen]:
            self.run_tiles(whole[step * rows.start : step * (rows.stop - 1) + TILE], out[rows])
            edges = (min(max(lead, step * s * row), lead + height) for row in range(rows.start, rows.stop + 1))
            return [look(flat[a:b, lead : lead + width]) for a, b in itertools.pairwise(edges)]

        seen = run_parts(run, cut(down, max(1, TILES // across)))
        return flat[lead : lead + height, lead : lead + width], list(itertools.chain.from_iterable(seen))

    def run_tiles(self, part: Tensor, out: Tensor) -> None:
        """Convolve rows of tiles: [n·d + …, n·a + …, C] into [d, n, s, a, n, s, C']."""
        d, a, step = out.shape[0], out.shape[3], self.filters.step
        pixels = strips(part, 0, d, step)
        begun: set[int] = set()
        for y, factors in enumerate(DATA):
            row = strips(combine(pixels, factors), 1, a, step)
            tiles = (combine(row, factors).reshape(d * a, -1) for factors in DATA)  # [d·a, C]
            line = [self.products[y, x](tile) for x, tile in enumerate(tiles)]  # [d·a, s·s·C']
            rooms = [(j, down[y]) for j, down in enumerate(self.filters.out) if down[y]]
            for x, across in enumerate(self.filters.out):
                found = combine(line, across).view(d, a, self.spread, self.spread, -1).transpose(1, 2)
                for j, sign in rooms:
                    room = out[:, j, :, :, x]  # [d, s, a, s, C'], whose first part has the factor 1
                    if j in begun:
                        room.add_(found, alpha=sign)
                    else:
                        room.copy_(found)
            begun.update(j for j, _ in rooms)


def strips(part: Tensor, axis: int, count: int, step: int) -> list[Tensor]:
    """Every n-th row (or column) from the first, from the second, …: one for each pixel of a tile."""
    place = (slice(None),) * axis + (slice(None, None, step),)
    return [part.narrow(axis, j, step * (count - 1) + 1)[place] for j in range(TILE)]


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
