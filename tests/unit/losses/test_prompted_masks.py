"""Losses of prompted masks: values worked out by hand, what is learnt from what, and what does not count."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from vitruvian.errors import ConfigError, InputError
from vitruvian.losses.prompted_masks import PROMPTED_MASK_WEIGHTS, _mask_iou, prompted_mask_loss


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    targets = torch.zeros(2, 2, 8, 8)
    targets[:, :, 2:6, 2:6] = 1
    logits = torch.randn(2, 2, 3, 8, 8, requires_grad=True)
    return logits, torch.rand(2, 2, 3, requires_grad=True), torch.randn(2, 2, 1, requires_grad=True), targets


def test_iou_and_its_regression() -> None:
    logits = torch.tensor([[1.0, 1.0, -1.0, -1.0]])[None]
    targets = torch.tensor([[0.0, 1.0, 1.0, 0.0]])[None]
    assert _mask_iou(logits, targets).item() == pytest.approx(1 / 3)
    assert _mask_iou(-torch.ones(1, 2, 2), torch.zeros(1, 2, 2)).item() == 1
    terms = prompted_mask_loss(logits[:, None, None], torch.full((1, 1, 1), 0.5), None, targets[:, None]).terms
    assert terms["iou"].item() == pytest.approx(1 / 6)


def test_object_score_is_cross_entropy() -> None:
    logits, ious, _, targets = case()
    low, high = (
        prompted_mask_loss(logits, ious, torch.full((2, 2, 1), score), targets).terms["object_score"]
        for score in (0.0, 5.0)
    )
    assert low.item() == pytest.approx(math.log(2))
    assert high < low


def test_the_total_is_the_weighted_sum() -> None:
    logits, ious, objects, targets = case()
    loss = prompted_mask_loss(logits, ious, objects, targets)
    assert set(loss.terms) == {"focal", "dice", "iou", "object_score"}
    want = 20 * loss.terms["focal"] + loss.terms["dice"] + loss.terms["iou"] + loss.terms["object_score"]
    torch.testing.assert_close(loss.total, want)
    only = prompted_mask_loss(
        logits, ious, objects, targets, weights=dict.fromkeys(PROMPTED_MASK_WEIGHTS, 0) | {"dice": 2}
    )
    assert set(only.terms) == {"dice"}
    torch.testing.assert_close(only.total, 2 * only.terms["dice"])


def test_only_the_best_mask_is_trained_and_every_quality() -> None:
    logits, ious, objects, targets = case()
    with torch.no_grad():
        logits[:, :, 1] = (targets - 0.4) * 6  # the second mask is best everywhere
    prompted_mask_loss(logits, ious, objects, targets).total.backward()
    assert logits.grad is not None
    moved = logits.grad.abs().sum(dim=(0, 1, 3, 4))
    assert moved[1] > 0
    assert moved[0] == moved[2] == 0
    assert ious.grad is not None
    assert (ious.grad != 0).all()


def test_absent_objects_train_only_the_object_score() -> None:
    logits, ious, objects, targets = case()
    targets[0, 1] = 0
    prompted_mask_loss(logits, ious, objects, targets).total.backward()
    assert logits.grad is not None
    assert logits.grad[0, 1].abs().sum() == 0
    assert logits.grad[0, 0].abs().sum() > 0
    assert objects.grad is not None
    assert objects.grad[0, 1] > 0 > objects.grad[0, 0]


def test_padding_does_not_count() -> None:
    logits, ious, objects, targets = case()
    counts = torch.tensor([[True, False], [True, True]])
    padded = prompted_mask_loss(logits, ious, objects, targets, counts=counts)
    changed = logits.detach().clone()
    changed[0, 1] += 3
    other = prompted_mask_loss(changed, ious, objects, targets, counts=counts)
    torch.testing.assert_close(padded.total, other.total)
    none = prompted_mask_loss(logits, ious, objects, targets, counts=torch.zeros(2, 2, dtype=torch.bool))
    assert none.total.item() == 0


def test_a_perfect_answer_costs_nothing() -> None:
    targets = case()[3]
    logits = ((targets - 0.5) * 80)[:, :, None]
    loss = prompted_mask_loss(logits, torch.ones(2, 2, 1), torch.full((2, 2, 1), 40.0), targets)
    assert loss.total.item() == pytest.approx(0, abs=1e-5)


def test_bad_shapes_and_weights_are_refused() -> None:
    logits, ious, objects, targets = case()
    with pytest.raises(InputError, match="targets"):
        prompted_mask_loss(logits, ious, objects, targets[:, :1])
    with pytest.raises(InputError, match="iou_scores"):
        prompted_mask_loss(logits, ious[:, :, :1], objects, targets)
    with pytest.raises(ConfigError, match="focal"):
        prompted_mask_loss(logits, ious, objects, targets, weights={"focal": -1})
