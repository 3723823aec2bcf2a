"""Deformable attention: every version against bilinear samples summed one by one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.unit.ops.versions import assert_close, every_version, randn
from vitruvian.errors import InputError
from vitruvian.ops import deformable_attention as ops
from vitruvian.ops.deformable_attention import LevelSizes, deformable_attention

LEVELS = ((2, 3), (4, 5))


def bilinear(pixels: Tensor, x: float, y: float, height: int, width: int) -> Tensor:
    """Bilinear sample of a map [h·w, D], 0 outside."""
    total = torch.zeros(pixels.shape[-1])
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < height and 0 <= column < width:
                total += (1 - abs(x - column)) * (1 - abs(y - row)) * pixels[row * width + column]
    return total


def reference(value: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Sum samples of value [B, N, A, D] at [B, Q, A, L, P] of LEVELS, one by one."""
    want = torch.zeros(*weights.shape[:3], value.shape[-1])
    for b, q, a, level, p in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        height, width = LEVELS[level]
        pixels = value[b, 6 * level : 6 * level + height * width, a]
        point = float(x[b, q, a, level, p]), float(y[b, q, a, level, p])
        want[b, q, a] += weights[b, q, a, level, p] * bilinear(pixels, *point, height, width)
    return want.flatten(2)


@pytest.mark.parametrize("sample", [ops._sum_of_rows, ops._sum_of_grid_samples])
def test_sum_of_bilinear_samples(sample: Callable[..., Tensor]) -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(2, 26, 3, 4, generator=generator)
    x, y = (torch.rand(2, 5, 3, 2, 2, generator=generator) * 9 - 2 for _ in range(2))
    x[0, 0], y[0, 0] = 1e4, -1e4  # far outside
    x[0, 1, 0, 0, 0], y[0, 1, 0, 0, 0] = 2.0, 1.0  # the last pixel of the first level, exactly
    weights = torch.rand(2, 5, 3, 2, 2, generator=generator)
    got = sample(value, LEVELS, x, y, weights)
    torch.testing.assert_close(got, reference(value, x, y, weights), rtol=1e-4, atol=1e-5)


def centers(level_hw: LevelSizes) -> Tensor:
    """Position (x, y) of every token in every level, in its pixels [N, L, 2]."""
    rows = []
    for height, width in level_hw:
        for token in range(height * width):
            x, y = (token % width + 0.5) / width, (token // width + 0.5) / height
            rows.append([(x * w - 0.5, y * h - 0.5) for h, w in level_hw])
    return torch.tensor(rows)


@every_version
@pytest.mark.parametrize(("heads", "dim"), [(4, 8), (3, 24)])
@pytest.mark.parametrize("joined", [True, False])
def test_points_around_tokens(version: str, heads: int, dim: int, joined: bool) -> None:
    points, count = 3, heads * 2 * 3
    value = randn(2, 26, heads * dim, version=version)
    projected = randn(2, 26, 3 * count, version=version, seed=1) * 2
    projected[0, 0, :4] = torch.tensor([1e9, -1e9, 50.0, 0.0])  # far outside
    offsets = projected[..., : 2 * count].unflatten(-1, (heads, 2, points, 2))
    scores = projected[..., 2 * count :].unflatten(-1, (heads, 2, points))
    if not joined:
        offsets, scores = offsets.contiguous(), scores.transpose(0, 1).contiguous().transpose(0, 1)
    got = deformable_attention(value, offsets, scores, LEVELS)
    xy = offsets.float().cpu() + centers(LEVELS)[:, None, :, None]
    weights = scores.float().cpu().flatten(3).softmax(-1).view(scores.shape)
    want = reference(value.float().cpu().unflatten(-1, (heads, -1)), xy[..., 0], xy[..., 1], weights)
    assert_close(got.cpu(), want)


def test_nan_gives_nan_and_no_crash() -> None:
    value, scores = torch.randn(1, 26, 4), torch.zeros(1, 26, 1, 2, 1)
    offsets = torch.zeros(1, 26, 1, 2, 1, 2)
    offsets[0, 0], offsets[0, 1] = float("nan"), float("inf")
    out = deformable_attention(value, offsets, scores, LEVELS)
    assert out[0, 0].isnan().all()
    assert out[0, 2].isfinite().all()


def test_needs_a_token_for_every_pixel() -> None:
    with pytest.raises(InputError, match="25 tokens"):
        deformable_attention(torch.zeros(1, 25, 4), torch.zeros(1, 25, 1, 2, 1, 2), torch.zeros(1, 25, 1, 2, 1), LEVELS)


def test_bfloat16_computes_coordinates_in_float32() -> None:
    torch.manual_seed(0)
    levels = ((40, 50), (80, 100))
    value = torch.randn(1, 10_000, 8)
    offsets, scores = torch.randn(1, 10_000, 2, 2, 2, 2), torch.randn(1, 10_000, 2, 2, 2)
    want = deformable_attention(value, offsets, scores, levels)
    got = deformable_attention(value.bfloat16(), offsets.bfloat16(), scores.bfloat16(), levels)
    assert got.dtype == torch.bfloat16
    assert (got.float() - want).norm() / want.norm() < 0.02


def test_exports_as_grid_samples() -> None:
    class Sampler(torch.nn.Module):
        def forward(self, value: Tensor, offsets: Tensor, scores: Tensor) -> Tensor:
            return deformable_attention(value, offsets, scores, LEVELS)

    inputs = (torch.randn(1, 26, 8), torch.randn(1, 26, 2, 2, 2, 2), torch.randn(1, 26, 2, 2, 2))
    exported = torch.export.export(Sampler(), inputs)
    targets = {str(node.target) for node in exported.graph.nodes}
    assert any("grid_sampl" in name for name in targets)
    assert not any("embedding_bag" in name for name in targets)
    torch.testing.assert_close(exported.module()(*inputs), deformable_attention(*inputs, LEVELS))


def test_softmax_of_a_few_numbers() -> None:
    scores = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(ops._short_softmax(scores), scores.softmax(-1))
    large = torch.tensor([[1000.0, 999.0, -1000.0]])
    torch.testing.assert_close(ops._short_softmax(large), large.softmax(-1))
    assert torch.autograd.gradcheck(ops._short_softmax, scores)
