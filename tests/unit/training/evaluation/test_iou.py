from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from vitruvian.errors import InputError
from vitruvian.training.evaluation import ForegroundIoU, MeanIoU


def test_by_hand_of_classes() -> None:
    quality = MeanIoU(3)
    quality.update(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 255]]))
    scores = quality.compute()
    assert scores.iou[:2].tolist() == [0.5, 0.5]
    assert np.isnan(scores.iou[2])
    assert scores.mean_iou == 0.5
    assert scores.pixel_accuracy == pytest.approx(2 / 3)
    assert scores.accuracy[:2].tolist() == [1.0, 0.5]
    assert scores.mean_accuracy == 0.75


def test_random_maps_against_a_loop_over_classes() -> None:
    random = np.random.default_rng(0)
    quality, labels = MeanIoU(5, ignore_index=9), 5
    predictions = random.integers(0, 5, (4, 20, 30))
    targets = random.choice([0, 1, 2, 3, 9], (4, 20, 30))
    quality.update(predictions[:2], targets[:2])
    other = MeanIoU(5, ignore_index=9)
    other.update(torch.from_numpy(predictions[2:]), torch.from_numpy(targets[2:]))
    quality.merge(other)
    scores = quality.compute()
    counts = targets != 9
    ious = []
    for label in range(labels):
        mine, theirs = (predictions == label) & counts, (targets == label) & counts
        ious.append((mine & theirs).sum() / (mine | theirs).sum())
    assert scores.iou == pytest.approx(ious)
    assert scores.mean_iou == pytest.approx(np.mean(ious))
    assert scores.pixel_accuracy == pytest.approx((predictions == targets)[counts].mean())
    assert np.isnan(scores.accuracy[4])
    assert scores.mean_accuracy == pytest.approx(
        np.mean([(predictions == label)[targets == label].mean() for label in range(4)])
    )


def test_predictions_that_are_no_class_are_wrong() -> None:
    quality = MeanIoU(2)
    quality.update(torch.tensor([0, -1, 255, 7]), torch.tensor([0, 0, 0, 1]))
    scores = quality.compute()
    assert scores.iou == pytest.approx([1 / 3, 0.0])
    assert scores.pixel_accuracy == 0.25


def test_only_the_mask_counts() -> None:
    quality = MeanIoU(2)
    quality.update(np.array([[0, 1, 1]]), torch.tensor([[0, 0, 255]]), mask=np.array([[True, False, True]]))
    assert quality.confusion.tolist() == [[1, 0, 0], [0, 0, 0]]


def test_no_data_is_nan() -> None:
    quality = MeanIoU(2)
    quality.update(torch.tensor([0, 1]), torch.tensor([255, 255]))
    scores = quality.compute()
    assert np.isnan([scores.mean_iou, scores.pixel_accuracy, scores.mean_accuracy]).all()


def test_bad_inputs_of_classes() -> None:
    quality = MeanIoU(2)
    with pytest.raises(InputError, match="shape"):
        quality.update(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(InputError, match="mask: expected the shape of the target"):
        quality.update(torch.zeros(2, 3), torch.zeros(2, 3), mask=torch.ones(3))
    with pytest.raises(InputError, match="labels from 0 to 1"):
        quality.update(torch.tensor([0]), torch.tensor([2]))
    with pytest.raises(InputError, match="labels from 0 to 1"):
        quality.update(torch.tensor([0]), torch.tensor([-1]))
    with pytest.raises(InputError, match="num_labels"):
        MeanIoU(0)
    with pytest.raises(InputError, match="different num_labels"):
        quality.merge(MeanIoU(3))


def test_by_hand_of_foreground() -> None:
    quality = ForegroundIoU()
    quality.update(np.array([[0.9, 0.6, 0.4, 0.1]]), np.array([[1, 0, 1, 0]]))
    quality.update(torch.tensor([[[True, True, True, True]]]), torch.tensor([[[True, True, True, True]]]))
    scores = quality.compute()
    assert scores.mean_iou == pytest.approx((1 / 3 + 1) / 2)
    assert scores.pooled_iou == pytest.approx(5 / 7)
    assert scores.pixel_accuracy == pytest.approx(6 / 8)
    assert scores.images == 2


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


def test_images_empty_in_both_count_for_accuracy_only() -> None:
    quality = ForegroundIoU()
    assert np.isnan(quality.compute().pixel_accuracy)
    quality.update(np.zeros((2, 2)), np.zeros((2, 2)))
    scores = quality.compute()
    assert np.isnan([scores.mean_iou, scores.pooled_iou]).all()
    assert (scores.pixel_accuracy, scores.images) == (1, 0)
    quality.update(np.ones((2, 2)), np.zeros((2, 2)))
    assert quality.compute().mean_iou == 0


def test_bad_inputs_of_foreground() -> None:
    quality = ForegroundIoU()
    with pytest.raises(InputError, match=r"target: expected the shape \[..., H, W\]"):
        quality.update(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="NaN or infinity"):
        quality.update(np.full((1, 1), np.nan), np.zeros((1, 1)))
    with pytest.raises(InputError, match="different threshold"):
        quality.merge(ForegroundIoU(threshold=0))
