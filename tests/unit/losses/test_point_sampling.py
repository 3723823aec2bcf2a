from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import vitruvian.losses.point_sampling as points_module
from vitruvian.losses.point_sampling import (
    sample_labels,
    sample_labels_at,
    sample_logits,
    sample_logits_at,
    uncertain_points,
)


def masks_and_points() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(3, 13, 17, generator=generator) > 0.5, torch.rand(4, 60, 2, generator=generator)


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.float32, torch.float64])
def test_labels_are_sampled_as_by_grid_sample(kind: torch.dtype) -> None:
    masks, points = masks_and_points()
    rows = torch.tensor([2, 0, 0, 1])
    got = sample_labels(masks.to(kind), rows, points, (13, 17))
    want = F.grid_sample(masks[rows, None].float(), (2 * points - 1)[:, None], align_corners=False)[:, 0, 0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)
    together = sample_labels_at(masks.to(kind), points[0], (13, 17))
    torch.testing.assert_close(together[2], want[0], rtol=0, atol=1e-5)


def test_labels_smaller_than_the_frame_lie_in_its_corner() -> None:
    masks, points = masks_and_points()
    padded = F.pad(masks.float(), (0, 7, 0, 5))
    rows = torch.tensor([2, 0, 0, 1])
    want = sample_labels(padded, rows, points, (18, 24))
    torch.testing.assert_close(sample_labels(masks, rows, points, (18, 24)), want)


def test_logits_are_sampled_one_by_one_or_together() -> None:
    maps, points = torch.randn(4, 6, 5), masks_and_points()[1]
    one = sample_logits(maps, points[:1].expand(4, -1, -1))
    torch.testing.assert_close(sample_logits_at(maps, points[0]), one)
    assert sample_logits(maps.bfloat16(), points).dtype == torch.float32


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    masks, points = masks_and_points()
    maps = torch.randn(4, 6, 5)
    actual = []
    for limit in (1 << 20, 61):
        monkeypatch.setattr(points_module, "_MAX_POINTS", limit)
        torch.manual_seed(0)
        chosen = uncertain_points(maps, count=20, oversample_ratio=3.0, importance_sample_ratio=0.75)
        own = sample_labels(masks, torch.tensor([2, 0, 0, 1]), points, (13, 17))
        actual.append((own, sample_labels_at(masks, points[0], (13, 17)), chosen))
    for one, other in zip(*actual, strict=True):
        assert torch.equal(one, other)


def test_points_concentrate_where_logits_are_near_zero() -> None:
    torch.manual_seed(0)
    ramp = torch.linspace(-8, 8, 64).expand(2, 64, 64)  # 0 in the middle column
    points = uncertain_points(ramp, count=200, oversample_ratio=4.0, importance_sample_ratio=0.75)
    assert points.shape == (2, 200, 2)
    assert points.min() >= 0
    assert points.max() <= 1
    sure, drawn = points[:, :150, 0], points[:, 150:, 0]
    assert (sure - 0.5).abs().max() < 0.25
    assert (drawn - 0.5).abs().max() > 0.3


def test_no_maps_no_points() -> None:
    points = uncertain_points(torch.zeros(0, 4, 4), count=8, oversample_ratio=3.0, importance_sample_ratio=0.5)
    assert points.shape == (0, 8, 2)
