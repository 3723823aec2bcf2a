"""Window attention: every version against padding, rolling, cutting and attending with region masks, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.ops.window_attention import window_attention


def reference(
    qkv: Tensor, grid: tuple[int, int], heads: int, window: int, shift: int, pool: int, fill: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs [B, h·w / pool², C] and weights [B · windows, A, N / pool², N]."""
    qkv, fill, bias = qkv.float().cpu(), fill.float().cpu(), bias.float().cpu()
    B, C = qkv.shape[0], qkv.shape[-1] // 3
    height, width = (-(-side // window) * window for side in grid)
    canvas = fill.expand(B, height, width, -1).clone()
    canvas[:, : grid[0], : grid[1]] = qkv.view(B, *grid, -1)
    # Regions that touch only through the wrap-around get different numbers, as in the paper.
    region = torch.zeros(height, width)
    if shift:
        cuts = [slice(0, -window), slice(-window, -shift), slice(-shift, None)]
        for number, (down, across) in enumerate((d, a) for d in cuts for a in cuts):
            region[down, across] = number

    def cut(x: Tensor) -> Tensor:
        split = x.view(*x.shape[:-3], x.shape[-3] // window, window, x.shape[-2] // window, window, x.shape[-1])
        return split.transpose(-4, -3)  # [..., rows, columns, window, window, channels]

    tiles = cut(canvas.roll((-shift, -shift), (1, 2)))
    regions = cut(region[..., None])[..., 0].flatten(2)  # [rows, columns, N]
    q, k, v = tiles.chunk(3, -1)
    side = window // pool
    q = q.reshape(*q.shape[:3], side, pool, side, pool, C).amax((4, 6))  # [B, rows, columns, side, side, C]
    q, k, v = (x.flatten(3, 4).unflatten(-1, (heads, -1)).transpose(3, 4) for x in (q, k, v))
    scores = q @ k.mT / (C // heads) ** 0.5 + bias
    if shift:
        scores = scores - 100.0 * (regions[..., None, :] != regions[..., :, None])[:, :, None]
    weights = scores.softmax(-1)  # [B, rows, columns, A, N / pool², N]
    out = (weights @ v).transpose(3, 4).flatten(4).unflatten(3, (side, side))
    grids = out.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll((shift // pool, shift // pool), (1, 2))
    return grids[:, : grid[0] // pool, : grid[1] // pool].flatten(1, 2), weights.flatten(0, 2)


CASES = [
    ((14, 21), 2, 32, 7, 3, 1),
    ((10, 17), 1, 24, 7, 3, 1),
    ((10, 17), 3, 16, 7, 0, 1),
    ((12, 24), 1, 16, 12, 6, 1),
    ((4, 5), 1, 16, 7, 3, 1),
    ((16, 8), 2, 72, 8, 0, 1),
    ((16, 8), 2, 16, 8, 0, 2),
    ((20, 20), 1, 16, 14, 0, 2),
    ((8, 8), 2, 16, 4, 0, 2),
]


@every_version
@pytest.mark.parametrize(("grid", "heads", "dim", "window", "shift", "pool"), CASES)
def test_windows(version: str, grid: tuple[int, int], heads: int, dim: int, window: int, shift: int, pool: int) -> None:
    qkv = randn(2, grid[0] * grid[1], 3 * heads * dim, version=version)
    fill = randn(3 * heads * dim, version=version, seed=1)
    bias = randn(heads, window**2, window**2, version=version, seed=2)
    options: dict[str, Any] = {"grid_hw": grid, "heads": heads, "window": window, "shift": shift, "fill": fill}
    zeros = torch.zeros(())
    want, _ = reference(qkv, grid, heads, window, shift, pool, fill, zeros)
    assert_close(window_attention(qkv, pool=pool, **options)[0].cpu(), want)
    if pool == 1:
        want, want_weights = reference(qkv, grid, heads, window, shift, pool, fill, bias)
        assert_close(window_attention(qkv, bias=bias, **options)[0].cpu(), want)
        out, weights = window_attention(qkv, bias=bias, need_weights=True, **options)
        assert weights is not None
        assert_close(out.cpu(), want)
        assert_close(weights.cpu(), want_weights)


@every_version
def test_bias_of_any_memory_layout_and_no_fill(version: str) -> None:
    qkv, table = randn(1, 30, 96, version=version), randn(16, 16, 2, version=version, seed=1)
    got, _ = window_attention(qkv, grid_hw=(5, 6), heads=2, window=4, bias=table.permute(2, 0, 1))
    assert_close(got.cpu(), reference(qkv, (5, 6), 2, 4, 0, 1, torch.zeros(96), table.permute(2, 0, 1))[0])


@pytest.mark.parametrize("grid_hw", [(8, 12), (7, 9)])
def test_gradients(grid_hw: tuple[int, int]) -> None:
    qkv = torch.randn(2, grid_hw[0] * grid_hw[1], 6, dtype=torch.float64, requires_grad=True)
    fill = torch.randn(6, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(1, 16, 16, dtype=torch.float64, requires_grad=True)

    def run(qkv: Tensor, fill: Tensor, bias: Tensor) -> Tensor:
        return window_attention(qkv, grid_hw=grid_hw, heads=1, window=4, shift=2, fill=fill, bias=bias)[0]

    assert torch.autograd.gradcheck(run, (qkv, fill, bias), fast_mode=True)


def test_index_tables_cached_in_inference_mode_serve_training() -> None:
    qkv = torch.randn(1, 30, 6)
    with torch.inference_mode():
        want, _ = window_attention(qkv, grid_hw=(5, 6), heads=1, window=3, shift=1)
    qkv.requires_grad_()
    got, _ = window_attention(qkv, grid_hw=(5, 6), heads=1, window=3, shift=1)
    got.sum().backward()
    assert_close(got, want)
    assert qkv.grad is not None


def test_compiled_and_eager_agree() -> None:
    qkv, fill = torch.randn(1, 30, 6), torch.randn(6)

    def run(qkv: Tensor, fill: Tensor) -> Tensor:
        return window_attention(qkv, grid_hw=(5, 6), heads=1, window=4, shift=2, fill=fill)[0]

    assert_close(torch.compile(run, backend="eager", fullgraph=True)(qkv, fill), run(qkv, fill))


def test_dropout_drops_weights() -> None:
    qkv = torch.randn(1, 16, 6)
    options: dict[str, Any] = {"grid_hw": (4, 4), "heads": 1, "window": 4}
    assert not torch.equal(window_attention(qkv, dropout=0.5, **options)[0], window_attention(qkv, **options)[0])
    _, weights = window_attention(qkv, dropout=0.5, need_weights=True, **options)
    assert weights is not None
    assert (weights == 0).any()
