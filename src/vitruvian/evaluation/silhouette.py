"""Silhouettes: how well one region of a picture, such as the person, is cut out."""

from __future__ import annotations

import dataclasses

from vitruvian.evaluation.arrays import Array, Averages, check_finite, read_maps, same_settings, share


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
