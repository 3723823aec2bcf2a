"""Attention in windows equals the long way: pad, roll, cut, attend with a mask from region numbers, and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.ways import WAYS, Way
from vitruvian.kernels import windows
from vitruvian.kernels.windows import attend_windows


def long_way(
    qkv: Tensor, grid: tuple[int, int], heads: int, window: int, shift: int, pool: int, fill: Tensor, bias: Tensor
) -> Tensor:
    """What `attend_windows` promises, in float32 and step by step."""
    qkv, fill, bias = qkv.float().cpu(), fill.float().cpu(), bias.float().cpu()
    B, C = qkv.shape[0], qkv.shape[-1] // 3
    high, wide = (-(-side // window) * window for side in grid)
    canvas = fill.expand(B, high, wide, -1).clone()
    canvas[:, : grid[0], : grid[1]] = qkv.view(B, *grid, -1)
    # Regions that touch only through the wrap-around get different numbers, as in the paper.
    region = torch.zeros(high, wide)
    if shift:
        cuts = [slice(0, -window), slice(-window, -shift), slice(-shift, None)]
        for number, (down, across) in enumerate((d, a) for d in cuts for a in cuts):
            region[down, across] = number
    rolled = canvas.roll((-shift, -shift), (1, 2))

    def cut(x: Tensor) -> Tensor:
        split = x.view(*x.shape[:-3], x.shape[-3] // window, window, x.shape[-2] // window, window, x.shape[-1])
        return split.transpose(-4, -3)  # […, rows, columns, window, window, channels]

    tiles, regions = cut(rolled), cut(region[..., None])[..., 0].flatten(2)  # [rows, columns, N]
    q, k, v = tiles.chunk(3, -1)
    side = window // pool
    q = q.reshape(*q.shape[:3], side, pool, side, pool, C).amax((4, 6))  # [B, rows, columns, side, side, C]
    q, k, v = (x.flatten(3, 4).unflatten(-1, (heads, -1)).transpose(3, 4) for x in (q, k, v))
    scores = q @ k.mT / (C // heads) ** 0.5 + bias
    if shift:
        apart = regions[..., None, :] != regions[..., :, None]
        scores = scores - 100.0 * apart[:, :, None]
    out = (scores.softmax(-1) @ v).transpose(3, 4).flatten(4).unflatten(3, (side, side))
    joined = out.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll((shift // pool, shift // pool), (1, 2))
    return joined[:, : grid[0] // pool, : grid[1] // pool].flatten(1, 2)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("grid", "heads", "dim", "window", "shift", "pool"),
    [
        ((14, 21), 2, 32, 7, 3, 1),
        ((10, 17), 1, 24, 7, 3, 1),
        ((10, 17), 3, 16, 7, 0, 1),
        ((12, 24), 1, 16, 12, 6, 1),
        ((4, 5), 1, 16, 7, 3, 1),
        ((16, 8), 2, 72, 8, 0, 1),
        ((16, 8), 2, 16, 8, 0, 2),
        ((20, 20), 1, 16, 14, 0, 2),
        ((8, 8), 2, 16, 4, 0, 2),
    ],
)
def test_windows(
    way: str, grid: tuple[int, int], heads: int, dim: int, window: int, shift: int, pool: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    make = Way(way, windows, monkeypatch)
    qkv, fill = make.randn(2, grid[0] * grid[1], 3 * heads * dim), make.randn(3 * heads * dim)
    bias = make.randn(heads, window**2, window**2)
    given = {"grid_hw": grid, "heads": heads, "window": window, "shift": shift, "pool": pool, "fill": fill}
    if pool == 1:
        got = attend_windows(qkv, **given, bias=bias)
        make.close(got.cpu(), long_way(qkv, grid, heads, window, shift, pool, fill, bias))
    got = attend_windows(qkv, **given)
    make.close(got.cpu(), long_way(qkv, grid, heads, window, shift, pool, fill, torch.zeros(())))


@pytest.mark.parametrize("way", WAYS)
def test_bias_of_any_layout_and_no_fill(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Way(way, windows, monkeypatch)
    qkv, table = make.randn(1, 30, 96), make.randn(16, 16, 2)
    got = attend_windows(qkv, grid_hw=(5, 6), heads=2, window=4, bias=table.permute(2, 0, 1))
    zeros = torch.zeros(96)
    make.close(got.cpu(), long_way(qkv, (5, 6), 2, 4, 0, 1, zeros, table.permute(2, 0, 1)))
