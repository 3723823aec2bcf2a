"""Intersection over union: of classes (mIoU, from one confusion matrix) and of the foreground, image by image."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from vitruvian.errors import InputError
from vitruvian.images.types import Float64Array
from vitruvian.training.evaluation.metric import Array, Averages, Metric, as_maps, nan_mean, ratio, require_finite


@dataclasses.dataclass(frozen=True)
class MeanIoUScores:
    """Scores over all pixels that count; NaN for a class that does not occur."""

    mean_iou: float  # mean over the classes that occur in targets or predictions
    pixel_accuracy: float
    mean_accuracy: float  # mean over the classes that occur in targets
    iou: Float64Array  # [K]
    accuracy: Float64Array  # [K]


class MeanIoU(Metric):
    """Mean intersection over union and pixel accuracy of label maps.

    Args:
        num_labels: Number of classes K.
        ignore_index: Target pixels of this label do not count.
    """

    merge_key = ("num_labels", "ignore_index")

    def __init__(self, num_labels: int, *, ignore_index: int = 255) -> None:
        if num_labels < 1:
            raise InputError(f"num_labels: expected at least 1, got {num_labels}.")
        self.num_labels, self.ignore_index = num_labels, ignore_index
        # Rows are targets, columns predictions; the last column holds predictions outside of the classes.
        self.confusion = np.zeros((num_labels, num_labels + 1), dtype=np.int64)

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps of equal shape [..., H, W], within `mask` of that shape. Predictions outside 0 … K-1 are wrong."""
        predicted, expected = torch.as_tensor(prediction), torch.as_tensor(target)
        inside = torch.ones_like(expected) if mask is None else torch.as_tensor(mask)
        for name, values in (("prediction", predicted), ("mask", inside)):
            if values.shape != expected.shape:
                raise InputError(
                    f"{name}: expected the shape of the target, {list(expected.shape)}, got {list(values.shape)}."
                )
        valid = (expected != self.ignore_index) & (inside.to(expected.device) > 0)
        expected, predicted = expected[valid].long(), predicted.to(expected.device)[valid].long()  # [pixels]
        if expected.numel() and not 0 <= int(expected.min()) <= int(expected.max()) < self.num_labels:
            raise InputError(
                f"target: expected labels from 0 to {self.num_labels - 1} or {self.ignore_index} to ignore, "
                f"got {int(expected.min())} to {int(expected.max())}."
            )
        predicted = torch.where((predicted < 0) | (predicted >= self.num_labels), self.num_labels, predicted)
        cells = torch.bincount(expected * (self.num_labels + 1) + predicted, minlength=self.confusion.size)
        self.confusion += cells.cpu().numpy().reshape(self.confusion.shape)

    def compute(self) -> MeanIoUScores:
        correct = np.diagonal(self.confusion).astype(np.float64)  # [K]
        targets = self.confusion.sum(1)  # [K]
        union = targets + self.confusion[:, : self.num_labels].sum(0) - correct
        iou, accuracy = ratio(correct, union), ratio(correct, targets)
        return MeanIoUScores(
            mean_iou=nan_mean(iou),
            pixel_accuracy=float(ratio(correct.sum(), targets.sum())),
            mean_accuracy=nan_mean(accuracy),
            iou=iou,
            accuracy=accuracy,
        )


@dataclasses.dataclass(frozen=True)
class ForegroundIoUScores:
    """Scores over all images that count, NaN where there were none."""

    mean_iou: float  # mean over images of the intersection over union
    pooled_iou: float  # over the pixels of all images together
    pixel_accuracy: float
    images: int  # images with foreground in target or prediction


class ForegroundIoU(Metric):
    """Intersection over union of person masks.

    Args:
        threshold: Pixels above this are foreground: half for an opacity or bool, zero for logits or labels of parts.
    """

    merge_key = ("threshold",)

    def __init__(self, *, threshold: float = 0.5) -> None:
        self.threshold = threshold
        self.averages = Averages()
        self.intersection = self.union = self.correct = self.pixels = 0

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps [H, W], [B, H, W] or [B, 1, H, W], bool or numbers, within `mask` of the same shape.

        The target is foreground above 0.5. Images that are empty in both count for the pixel accuracy only.
        """
        predicted, target, valid = as_maps(prediction, target, mask)
        require_finite("prediction", predicted[:, 0][valid])
        inside = (predicted[:, 0] > self.threshold) & valid  # [B, H, W]
        expected = (target[:, 0] > 0.5) & valid  # [B, H, W]
        intersection = (inside & expected).sum((1, 2)).tolist()
        union = (inside | expected).sum((1, 2)).tolist()
        for part, whole in zip(intersection, union, strict=True):
            if whole:
                self.averages.add({"iou": part / whole})
        self.intersection += sum(intersection)
        self.union += sum(union)
        self.pixels += int(valid.sum())
        self.correct += int(((inside == expected) & valid).sum())

    def compute(self) -> ForegroundIoUScores:
        return ForegroundIoUScores(
            mean_iou=self.averages.mean("iou"),
            pooled_iou=float(ratio(self.intersection, self.union)),
            pixel_accuracy=float(ratio(self.correct, self.pixels)),
            images=self.averages.counts["iou"],
        )
