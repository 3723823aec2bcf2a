from __future__ import annotations

import math

import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.layers.deformable import (
    DeformableAttention,
    deformable_attention,
    level_centers,
    point_centers,
    short_softmax,
    start_offsets,
    sum_rows,
    sum_samples,
)

LEVELS = ((2, 3), (4, 5))


def by_hand(value: torch.Tensor, x: float, y: float, height: int, width: int) -> torch.Tensor:
    """Bilinear sample of a map [h·w, D], 0 outside."""
    total = torch.zeros(value.shape[-1])
    for line in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= line < height and 0 <= column < width:
                total += (1 - abs(x - column)) * (1 - abs(y - line)) * value[line * width + column]
    return total


@pytest.mark.parametrize("sample", [sum_rows, sum_samples, deformable_attention])
def test_is_the_sum_of_bilinear_samples(sample) -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(2, 26, 3, 4, generator=generator)
    x, y = (torch.rand(2, 5, 3, 2, 2, generator=generator) * 9 - 2 for _ in range(2))
    x[0, 0], y[0, 0] = 1e4, -1e4  # far outside
    x[0, 1, 0, 0, 0], y[0, 1, 0, 0, 0] = 2.0, 1.0  # the last pixel of the first level, exactly
    weights = torch.rand(2, 5, 3, 2, 2, generator=generator)
    got = sample(value, LEVELS, x, y, weights)
    want = torch.zeros(2, 5, 3, 4)
    for b, q, a, level, p in torch.cartesian_prod(*map(torch.arange, weights.shape)).tolist():
        height, width = LEVELS[level]
        part = value[b, 6 * level : 6 * level + height * width, a]
        spot = float(x[b, q, a, level, p]), float(y[b, q, a, level, p])
        want[b, q, a] += weights[b, q, a, level, p] * by_hand(part, *spot, height, width)
    torch.testing.assert_close(got, want.flatten(2), rtol=1e-4, atol=1e-5)


def test_not_a_number_gives_not_a_number_and_no_crash() -> None:
    value, weights = torch.randn(1, 26, 1, 4), torch.ones(1, 3, 1, 2, 1)
    x = torch.tensor([float("nan"), float("inf"), 1.0])[None, :, None, None, None].expand(1, 3, 1, 2, 1)
    out = sum_rows(value, LEVELS, x, torch.ones_like(x), weights)
    assert out[0, 0].isnan().all()
    assert out[0, 2].isfinite().all()


def test_wants_a_token_for_every_pixel() -> None:
    points = torch.zeros(1, 3, 1, 2, 1)
    with pytest.raises(InputError, match="25 tokens"):
        deformable_attention(torch.zeros(1, 25, 1, 4), LEVELS, points, points, points)


def test_centers_fall_on_the_same_place_in_every_level() -> None:
    centers = level_centers(LEVELS, torch.device("cpu"))
    assert centers.shape == (26, 2, 2)
    torch.testing.assert_close(centers[4, 0], torch.tensor([1.0, 1.0]))  # second row, second column, in its own level
    torch.testing.assert_close(centers[0, 1], torch.tensor([0.5 / 3 * 5 - 0.5, 0.5 / 2 * 4 - 0.5]))


def test_bfloat16_keeps_places_in_float32() -> None:
    torch.manual_seed(0)
    layer = DeformableAttention(32, heads=4, levels=2, points=2)
    start_offsets(layer.sampling_offsets)
    levels = ((40, 50), (80, 100))
    tokens, positions = torch.randn(1, 10_000, 32), torch.randn(10_000, 32)
    want, _ = layer(tokens, positions, levels)
    got, weights = layer.bfloat16()(tokens.bfloat16(), positions.bfloat16(), levels)
    assert got.dtype == weights.dtype == torch.bfloat16
    assert (got.float() - want).norm() / want.norm() < 0.02


def test_exports_without_the_fast_path() -> None:
    class Sampler(torch.nn.Module):
        def forward(self, value, x, y, weights):
            return deformable_attention(value, LEVELS, x, y, weights)

    given = (torch.randn(1, 26, 2, 4), *(torch.rand(1, 3, 2, 2, 2) * 3 for _ in range(3)))
    exported = torch.export.export(Sampler(), given)
    used = {str(node.target) for node in exported.graph.nodes}
    assert any("grid_sampl" in name for name in used)
    assert not any("embedding_bag" in name for name in used)
    torch.testing.assert_close(exported.module()(*given), sum_rows(given[0], LEVELS, *given[1:]))


def test_heads_start_in_different_directions() -> None:
    layer = DeformableAttention(8, heads=4, levels=2, points=3)
    start_offsets(layer.sampling_offsets)
    ring = layer.sampling_offsets.bias.view(4, 2, 3, 2)
    torch.testing.assert_close(ring[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(ring[1, 1, 2], torch.tensor([0.0, 3.0]), atol=1e-6, rtol=0)


def test_softmax_of_a_few_numbers() -> None:
    scores = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(short_softmax(scores), scores.softmax(-1))
    large = torch.tensor([[1000.0, 999.0, -1000.0]])
    torch.testing.assert_close(short_softmax(large), large.softmax(-1))
    assert torch.autograd.gradcheck(short_softmax, scores)


def test_centers_of_points_are_those_of_their_level() -> None:
    x, y = point_centers(LEVELS, 4, torch.device("cpu"))
    centers = level_centers(LEVELS, torch.device("cpu"))
    for level in range(len(LEVELS)):
        for point in range(4):
            assert torch.equal(x[:, 0, level * 4 + point], centers[:, level, 0])
            assert torch.equal(y[:, 0, level * 4 + point], centers[:, level, 1])
