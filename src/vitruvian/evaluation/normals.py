"""Surface normals: the angle between predicted and true directions, in degrees, over all pixels.

    angle = atan2(|p × q|, p · q)  ──▶ counted and summed in bins of 0.01° ──▶ mean, median, RMSE, share under a limit

Directions need not have unit length. The bins make the median good to 0.01° whatever the number of pixels; all other
numbers are exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.evaluation.arrays import Array, Floats, check_finite, read_maps, same_settings

ANGLES = (5.0, 7.5, 11.25, 22.5, 30.0)
BINS_PER_DEGREE = 100


@dataclasses.dataclass(frozen=True)
class NormalScores:
    """Angular errors in degrees over all pixels that count, NaN where there were none."""

    mean: float
    median: float
    rmse: float
    within: dict[float, float]  # share of the pixels, 0 to 1, under each angle
    pixels: int


class NormalQuality:
    """Adds up maps of normals, then says how far off they are.

    Args:
        angles: Limits in degrees for the shares of good pixels.
    """

    def __init__(self, *, angles: Sequence[float] = ANGLES) -> None:
        if not angles or not all(0 < angle <= 180 for angle in angles):
            raise InputError(f"angles: expected degrees over 0, up to 180, got {list(angles)}.")
        self.angles = tuple(float(angle) for angle in angles)
        self.counts = np.zeros(180 * BINS_PER_DEGREE + 1, dtype=np.int64)
        self.sums: Floats = np.zeros(len(self.counts))
        self.squares = 0.0
        self.good = np.zeros(len(self.angles), dtype=np.int64)

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps [3, H, W] or [B, 3, H, W] where `mask` [H, W] or [B, H, W] is on.

        Target normals that are not finite or have no length do not count; predicted ones without length are 90° off.
        """
        guess, truth, counts = read_maps(prediction, target, mask, channels=3)
        counts = counts & truth.isfinite().all(dim=1) & (truth != 0).any(dim=1)  # [B, H, W]
        guess, truth = (normals.movedim(1, -1)[counts] for normals in (guess, truth))  # [pixels, 3]
        check_finite("prediction", guess)
        angles = angular_error(guess, truth)  # [pixels]
        place = (angles * BINS_PER_DEGREE).long()
        self.counts += torch.bincount(place, minlength=len(self.counts)).cpu().numpy()
        self.sums += torch.bincount(place, weights=angles, minlength=len(self.counts)).cpu().numpy()
        self.squares += float(angles.square().sum())
        limits = angles.new_tensor(self.angles)[:, None]  # [limits, 1]
        self.good += (angles < limits).sum(dim=1).cpu().numpy()

    def merge(self, other: NormalQuality) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "angles")
        self.counts += other.counts
        self.sums += other.sums
        self.squares += other.squares
        self.good += other.good

    def compute(self) -> NormalScores:
        """Return the scores of all maps so far."""
        pixels = int(self.counts.sum())
        if pixels == 0:
            nothing = float("nan")
            return NormalScores(nothing, nothing, nothing, dict.fromkeys(self.angles, nothing), 0)
        return NormalScores(
            mean=float(self.sums.sum() / pixels),
            median=(self.ranked((pixels - 1) // 2) + self.ranked(pixels // 2)) / 2,
            rmse=math.sqrt(self.squares / pixels),
            within={angle: int(good) / pixels for angle, good in zip(self.angles, self.good, strict=True)},
            pixels=pixels,
        )

    def ranked(self, rank: int) -> float:
        """Return the angle of the pixel with this rank, from 0 for the best: the mean of its bin."""
        place = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        return float(self.sums[place] / self.counts[place])


def angular_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the angles in degrees between directions: [..., 3] and [..., 3] -> [...]; 90 where one has no length."""
    # The arc cosine loses small angles to rounding, the arc tangent does not.
    across = torch.linalg.vector_norm(torch.linalg.cross(prediction, target), dim=-1)
    along = (prediction * target).sum(-1)
    angles = torch.rad2deg(torch.atan2(across, along))
    no_direction = (prediction == 0).all(-1) | (target == 0).all(-1)
    return torch.where(no_direction, 90.0, angles)
