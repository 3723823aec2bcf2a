"""Semantic segmentation: intersection over union and pixel accuracy from one confusion matrix.

Silhouettes: how well one region of a picture, such as the person, is cut out.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from vitruvian.errors import InputError
from vitruvian.training.evaluation.metric import (
    Array,
    Averages,
    Floats,
    check_finite,
    mean_known,
    read_maps,
    same_settings,
    share,
)


@dataclasses.dataclass(frozen=True)
class SemanticScores:
    """Results over all pixels that count; NaN for a class that occurs nowhere."""

    mean_iou: float  # mean over the classes that occur in targets or predictions
    pixel_accuracy: float
    mean_accuracy: float  # mean over the classes that occur in targets
    iou: Floats  # [K]
    accuracy: Floats  # [K]


class SemanticQuality:
    """Adds up label maps, then says how well they agree.

    Args:
        num_labels: Number of classes K.
        ignore_index: Target pixels of this number do not count.
    """

    def __init__(self, num_labels: int, *, ignore_index: int = 255) -> None:
        if num_labels < 1:
            raise InputError(f"num_labels: expected at least 1, got {num_labels}.")
        self.num_labels, self.ignore_index = num_labels, ignore_index
        # Rows are targets, columns predictions; the last column holds predictions that are no class at all.
        self.confusion = np.zeros((num_labels, num_labels + 1), dtype=np.int64)

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add one or more maps of equal shape [..., H, W] where `mask` of that shape is on.

        Predicted numbers outside 0 … K-1 count as wrong.
        """
        predicted, wanted = torch.as_tensor(prediction), torch.as_tensor(target)
        if predicted.shape != wanted.shape:
            raise InputError(
                f"prediction: expected the shape of the target, {list(wanted.shape)}, got {list(predicted.shape)}."
            )
        counts = wanted != self.ignore_index
        if mask is not None:
            looked_at = torch.as_tensor(mask).to(wanted.device) > 0
            if looked_at.shape != wanted.shape:
                raise InputError(
                    f"mask: expected the shape of the target, {list(wanted.shape)}, got {list(looked_at.shape)}."
                )
            counts &= looked_at
        wanted, predicted = wanted[counts].long(), predicted.to(wanted.device)[counts].long()  # [pixels]
        if wanted.numel() and not 0 <= int(wanted.min()) <= int(wanted.max()) < self.num_labels:
            raise InputError(
                f"target: expected labels from 0 to {self.num_labels - 1} or {self.ignore_index} to ignore, "
                f"got {int(wanted.min())} to {int(wanted.max())}."
            )
        predicted = torch.where((predicted < 0) | (predicted >= self.num_labels), self.num_labels, predicted)
        cells = torch.bincount(wanted * (self.num_labels + 1) + predicted, minlength=self.confusion.size)
        self.confusion += cells.cpu().numpy().reshape(self.confusion.shape)

    def merge(self, other: SemanticQuality) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "num_labels", "ignore_index")
        self.confusion += other.confusion

    def compute(self) -> SemanticScores:
        """Return the scores of all maps so far."""
        right = np.diagonal(self.confusion).astype(np.float64)  # [K]
        targets = self.confusion.sum(1)  # [K]
        either = targets + self.confusion[:, : self.num_labels].sum(0) - right
        iou, accuracy = share(right, either), share(right, targets)
        return SemanticScores(
            mean_iou=mean_known(iou),
            pixel_accuracy=float(share(right.sum(), targets.sum())),
            mean_accuracy=mean_known(accuracy),
            iou=iou,
            accuracy=accuracy,
        )


@dataclasses.dataclass(frozen=True)
class SilhouetteScores:
    """Results over all pictures that count, NaN where there were none."""

    mean_iou: float  # mean over pictures of the intersection over union
    pooled_iou: float  # over the pixels of all pictures together
    pixel_accuracy: float
    pictures: int  # with a silhouette in target or prediction


class SilhouetteQuality:
    """Adds up silhouettes, then says how well they agree.

    Args:
        threshold: Pixels over this number are inside: half for an opacity or bool, zero for logits or labels of parts.
    """

    def __init__(self, *, threshold: float = 0.5) -> None:
        self.threshold = threshold
        self.averages = Averages()
        self.shared = self.either = self.right = self.pixels = 0

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps [H, W], [B, H, W] or [B, 1, H, W], bool or numbers, where `mask` of the same shape is on.

        The target is a silhouette where it is over 0.5, or true. Pictures that are empty in both count as right pixels
        only: nothing was there to overlap with.
        """
        guess, truth, counts = read_maps(prediction, target, mask)
        check_finite("prediction", guess[:, 0][counts])
        inside = (guess[:, 0] > self.threshold) & counts  # [B, H, W]
        wanted = (truth[:, 0] > 0.5) & counts  # [B, H, W]
        shared = (inside & wanted).sum((1, 2)).tolist()
        either = (inside | wanted).sum((1, 2)).tolist()
        for part, whole in zip(shared, either, strict=True):
            if whole:
                self.averages.add({"iou": part / whole})
        self.shared += sum(shared)
        self.either += sum(either)
        self.pixels += int(counts.sum())
        self.right += int(((inside == wanted) & counts).sum())

    def merge(self, other: SilhouetteQuality) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "threshold")
        self.averages.merge(other.averages)
        self.shared += other.shared
        self.either += other.either
        self.right += other.right
        self.pixels += other.pixels

    def compute(self) -> SilhouetteScores:
        """Return the scores of all pictures so far."""
        return SilhouetteScores(
            mean_iou=self.averages.mean("iou"),
            pooled_iou=float(share(self.shared, self.either)),
            pixel_accuracy=float(share(self.right, self.pixels)),
            pictures=self.averages.count("iou"),
        )
