"""Surface normals: the angle between predicted and true directions, in degrees, over all pixels.

    angle = atan2(|p × q|, p · q)  ──▶ counted and summed in bins of 0.01° ──▶ mean, median, RMSE, share under a limit

Directions need not have unit length. The bins make the median good to 0.01° whatever the number of pixels; all other
numbers are exact.

Depth and 3D points: errors of each picture after the best alignment, averaged over pictures.

| depth | formula over the pixels that count, p predicted, t true |
|---|---|
| abs_rel | mean of abs(p − t) / t |
| sq_rel | mean of (p − t)² / t |
| rmse, log_rmse | root of the mean of (p − t)², of (ln p − ln t)² |
| delta_1, _2, _3 | share of pixels with max(p/t, t/p) < 1.25, 1.25², 1.25³ |

| points | formula |
|---|---|
| distance | mean Euclidean distance, in the target's unit |
| rmse | root of the mean squared distance |
| relative_distance | distance ÷ a length given for each picture, such as the person's height |

Alignments, found for each picture: "none"; "median" (depth only: medians become equal); "scale" and "scale_and_shift",
which make the sum of squared distances smallest. A shift of points has three coordinates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.training.evaluation.metric import (
    Array,
    Averages,
    Floats,
    as_array,
    check_finite,
    read_maps,
    same_settings,
)

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


DepthAlignment = Literal["none", "median", "scale", "scale_and_shift"]


PointAlignment = Literal["none", "scale", "scale_and_shift"]


@dataclasses.dataclass(frozen=True)
class DepthScores:
    """Means over pictures, NaN where there were none."""

    abs_rel: float
    sq_rel: float
    rmse: float
    log_rmse: float
    delta_1: float
    delta_2: float
    delta_3: float
    pictures: int


@dataclasses.dataclass(frozen=True)
class PointScores:
    """Means over pictures, NaN where there were none; `relative_distance` over those that came with a length."""

    distance: float
    rmse: float
    relative_distance: float
    pictures: int


class DepthQuality:
    """Adds up maps of depth, then says how far off they are.

    Args:
        alignment: What is made right before the comparison.
        min_depth: Depths nearer than this do not count in the target, and are moved here in the aligned prediction.
        max_depth: Depths beyond this do not count in the target, and are moved here in the aligned prediction.
    """

    def __init__(
        self, *, alignment: DepthAlignment = "none", min_depth: float = 1e-3, max_depth: float = math.inf
    ) -> None:
        check_alignment(alignment, get_args(DepthAlignment))
        if not 0 < min_depth < max_depth:
            raise InputError(f"min_depth: expected a number between 0 and max_depth, {max_depth}, got {min_depth}.")
        self.alignment, self.min_depth, self.max_depth = alignment, min_depth, max_depth
        self.averages = Averages()

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps [H, W], [B, H, W] or [B, 1, H, W] where `mask` of the same shape is on.

        Target depths that are not finite or out of range do not count, nor pictures without any that do.
        """
        guess, truth, counts = read_maps(prediction, target, mask)
        counts = counts & truth[:, 0].isfinite() & (truth[:, 0] >= self.min_depth) & (truth[:, 0] <= self.max_depth)
        for p, t, here in zip(guess[:, 0], truth[:, 0], counts, strict=True):
            if bool(here.any()):
                check_finite("prediction", p[here])
                aligned = align(p[here][:, None], t[here][:, None], self.alignment)[:, 0]  # [pixels]
                self.averages.add(depth_errors(aligned.clamp(self.min_depth, self.max_depth), t[here]))

    def merge(self, other: DepthQuality) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "alignment", "min_depth", "max_depth")
        self.averages.merge(other.averages)

    def compute(self) -> DepthScores:
        """Return the scores of all pictures so far."""
        names = [field.name for field in dataclasses.fields(DepthScores) if field.name != "pictures"]
        means = {name: self.averages.mean(name) for name in names}
        return DepthScores(**means, pictures=self.averages.count("abs_rel"))


class PointQuality:
    """Adds up maps of 3D points, then says how far off they are.

    Args:
        alignment: What is made right before the comparison.
    """

    def __init__(self, *, alignment: PointAlignment = "scale") -> None:
        check_alignment(alignment, get_args(PointAlignment))
        self.alignment = alignment
        self.averages = Averages()

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None, length: Any = None) -> None:
        """Add maps [3, H, W] or [B, 3, H, W] where `mask` [H, W] or [B, H, W] is on.

        `length` [B] is what distances are compared with, in the target's unit: the person's height, say. Target points
        that are not finite do not count, nor pictures without any that do.
        """
        guess, truth, counts = read_maps(prediction, target, mask, channels=3)
        counts = counts & truth.isfinite().all(dim=1)  # [B, H, W]
        lengths = as_array("length", length, len(truth), float, default=math.nan)
        if length is not None and not (lengths > 0).all():
            raise InputError(f"length: expected numbers over 0, got {lengths.tolist()}.")
        for p, q, here, size in zip(guess, truth, counts, lengths.tolist(), strict=True):
            if not bool(here.any()):
                continue
            true_points = q[:, here].T  # [pixels, 3]
            points = p[:, here].T  # [pixels, 3]
            check_finite("prediction", points)
            apart = torch.linalg.vector_norm(align(points, true_points, self.alignment) - true_points, dim=-1)
            distance = float(apart.mean())
            self.averages.add({"distance": distance, "rmse": float(apart.square().mean().sqrt())})
            if length is not None:
                self.averages.add({"relative_distance": distance / size})

    def merge(self, other: PointQuality) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "alignment")
        self.averages.merge(other.averages)

    def compute(self) -> PointScores:
        """Return the scores of all pictures so far."""
        return PointScores(
            distance=self.averages.mean("distance"),
            rmse=self.averages.mean("rmse"),
            relative_distance=self.averages.mean("relative_distance"),
            pictures=self.averages.count("distance"),
        )


def check_alignment(alignment: str, known: tuple[str, ...]) -> None:
    """Refuse an alignment of another name."""
    if alignment not in known:
        raise InputError(f"alignment: expected one of {', '.join(known)}, got {alignment!r}.")


def align(points: Tensor, target: Tensor, alignment: str) -> Tensor:
    """Return points [N, C] moved as near to the target [N, C] as the alignment allows."""
    if alignment == "none":
        return points
    if alignment == "median":
        middle, wanted = median(points), median(target)
        return points * (wanted / middle) if middle else points
    if alignment == "scale":
        return points * best_scale(points, target)
    centre, target_centre = points.mean(0), target.mean(0)  # [C] each
    return (points - centre) * best_scale(points - centre, target - target_centre) + target_centre


def median(values: Tensor) -> float:
    """Return the median, of an even number of values the mean of the middle two."""
    ordered = values.flatten().sort().values  # [N]
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def best_scale(points: Tensor, target: Tensor) -> Tensor:
    """Return the factor for points [N, C] that gives the least sum of squares to the target; 0 where all are 0."""
    size = points.square().sum()
    return torch.where(size > 0, (points * target).sum() / torch.where(size > 0, size, 1.0), 0.0)


def depth_errors(prediction: Tensor, target: Tensor) -> dict[str, float]:
    """Return the errors of one picture by their names, from depths over 0: [pixels] and [pixels]."""
    error = prediction - target
    ratio = torch.maximum(prediction / target, target / prediction)
    values = {
        "abs_rel": (error.abs() / target).mean(),
        "sq_rel": (error.square() / target).mean(),
        "rmse": error.square().mean().sqrt(),
        "log_rmse": (prediction.log() - target.log()).square().mean().sqrt(),
        **{f"delta_{power}": (ratio < 1.25**power).double().mean() for power in (1, 2, 3)},
    }
    return dict(zip(values, torch.stack(list(values.values())).tolist(), strict=True))
