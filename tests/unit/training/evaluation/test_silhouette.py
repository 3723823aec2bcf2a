from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.training.evaluation import ForegroundIoU


def test_by_hand() -> None:
    quality = ForegroundIoU()
    quality.update(np.array([[0.9, 0.6, 0.4, 0.1]]), np.array([[1, 0, 1, 0]]))
    quality.update(torch.tensor([[[True, True, True, True]]]), torch.tensor([[[True, True, True, True]]]))
    scores = quality.compute()
    assert scores.mean_iou == pytest.approx((1 / 3 + 1) / 2)
    assert scores.pooled_iou == pytest.approx(5 / 7)
    assert scores.pixel_accuracy == pytest.approx(6 / 8)
    assert scores.pictures == 2


def test_mask_threshold_and_merge() -> None:
    logits = torch.tensor([[-1.0, 2.0, 0.3, -4.0, -2.0]])
    truth = torch.tensor([[0, 1, 0, 1, 0]])
    quality, other = ForegroundIoU(threshold=0), ForegroundIoU(threshold=0)
    quality.update(logits, truth, mask=torch.tensor([[1, 1, 0, 0, 0]]))
    assert quality.compute().mean_iou == 1
    assert quality.compute().pixel_accuracy == 1
    other.update(logits, truth, mask=torch.tensor([[0, 0, 1, 1, 1]]))
    quality.merge(pickle.loads(pickle.dumps(other)))
    scores = quality.compute()
    assert (scores.mean_iou, scores.pooled_iou, scores.pixel_accuracy) == pytest.approx((0.5, 1 / 3, 0.6))


def test_empty_in_both_is_no_overlap_but_right() -> None:
    quality = ForegroundIoU()
    assert np.isnan(quality.compute().pixel_accuracy)
    quality.update(np.zeros((2, 2)), np.zeros((2, 2)))
    scores = quality.compute()
    assert np.isnan([scores.mean_iou, scores.pooled_iou]).all()
    assert (scores.pixel_accuracy, scores.pictures) == (1, 0)
    quality.update(np.ones((2, 2)), np.zeros((2, 2)))
    assert quality.compute().mean_iou == 0


def test_bad_inputs() -> None:
    quality = ForegroundIoU()
    with pytest.raises(InputError, match=r"target: expected the shape \[..., H, W\]"):
        quality.update(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="finite"):
        quality.update(np.full((1, 1), np.nan), np.zeros((1, 1)))
    with pytest.raises(InputError, match="same threshold"):
        quality.merge(ForegroundIoU(threshold=0))
