from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional as F

from vitruvian.errors import MissingExtraError
from vitruvian.losses.masks import mask_dice_loss, sigmoid_focal_loss
from vitruvian.losses.matching import assign, class_cost, cross_entropy_cost, dice_cost, focal_cost


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


def test_assignment_has_the_least_total_cost() -> None:
    cost = torch.tensor([[4.0, 1.0], [2.0, 0.5], [9.0, 9.0]])
    ((queries, objects),) = assign([cost])
    assert list(zip(queries.tolist(), objects.tolist(), strict=True)) == [(0, 1), (1, 0)]


def test_more_objects_than_queries_and_none() -> None:
    few, none = assign([torch.tensor([[3.0, 1.0, 2.0]]), torch.zeros(3, 0)])
    assert (few[0].tolist(), few[1].tolist()) == ([0], [1])
    assert len(none[0]) == len(none[1]) == 0


def test_broken_costs_are_the_last_choice() -> None:
    bad = float("nan")
    cost = torch.tensor([[bad, bad], [1.0, 2.0], [-float("inf"), float("inf")], [5.0, 1.0]])
    ((queries, _),) = assign([cost])
    assert queries.tolist() == [1, 3]


def test_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"vitruvian\[train\]"):
        assign([torch.zeros(1, 1)])
