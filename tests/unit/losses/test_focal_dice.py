from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from vitruvian.losses.focal_dice import (
    class_cost,
    cross_entropy_cost,
    dice_cost,
    focal_cost,
    mask_dice_loss,
    sigmoid_focal_loss,
)


def pairs(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 50, generator=generator) * 3, (torch.rand(3, 50, generator=generator) > 0.5).float()


@pytest.mark.parametrize(
    ("cost", "loss"),
    [
        (dice_cost, mask_dice_loss),
        (focal_cost, sigmoid_focal_loss),
        (cross_entropy_cost, lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="none").mean(1)),
    ],
)
def test_costs_are_the_losses_of_all_pairs(cost, loss) -> None:
    logits, targets = pairs()
    want = torch.stack([loss(logits, target.expand(4, -1)) for target in targets], dim=1)
    torch.testing.assert_close(cost(logits, targets), want, rtol=1e-4, atol=1e-5)


def test_large_logits_stay_finite() -> None:
    logits, targets = torch.tensor([[200.0, -200.0]]), torch.tensor([[0.0, 1.0]])
    for cost in (dice_cost, focal_cost, cross_entropy_cost):
        assert cost(logits, targets).isfinite().all()


def test_class_cost_is_minus_the_probability() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]])
    cost = class_cost(logits, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(cost[0], torch.full((3,), -1 / 3))
    assert cost[1, 0] < -0.99


def test_focal_by_hand() -> None:
    logits, targets = torch.tensor([[0.0, 2.0]]), torch.tensor([[1.0, 0.0]])
    p = 1 / (1 + math.exp(-2))
    want = (0.25 * 0.5**2 * math.log(2) + 0.75 * p**2 * -math.log(1 - p)) / 2
    assert sigmoid_focal_loss(logits, targets).item() == pytest.approx(want)


def test_dice_by_hand() -> None:
    logits, targets = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    assert mask_dice_loss(logits, targets).item() == pytest.approx(1 - (2 * 1 + 1) / (2 + 2 + 1))
    assert mask_dice_loss((targets - 0.5) * 100, targets).item() == pytest.approx(0)
