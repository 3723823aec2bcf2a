"""Errors of surface normals, depth and 3D points.

Normals: the angle between predicted and true directions, in degrees, over all pixels. Angles are counted in bins of
0.01°, which limits the precision of the median; all other numbers are exact.

Depth and points: errors of each image after an alignment, averaged over images.

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
| relative_distance | distance ÷ a length of each image, such as the person's height |

Alignments of each image: "none"; "median" (depth only: medians become equal); "scale" and "scale_and_shift", which
minimize the sum of squared distances. A shift of points has three coordinates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError, check_choice
from vitruvian.images.types import Float64Array
from vitruvian.training.evaluation.metric import Array, Averages, Metric, PerObject, as_maps, as_row, require_finite

_DepthAlignment = Literal["none", "median", "scale", "scale_and_shift"]
_PointAlignment = Literal["none", "scale", "scale_and_shift"]
_ANGLES = (5.0, 7.5, 11.25, 22.5, 30.0)
_BINS_PER_DEGREE = 100


@dataclasses.dataclass(frozen=True)
class AngularErrorScores:
    """Angular errors in degrees over all pixels that count, NaN where there were none."""

    mean: float
    median: float
    rmse: float
    within: dict[float, float]  # share of the pixels, 0 to 1, under each angle
    pixels: int


class AngularError(Metric):
    """Angular errors of surface normals.

    Args:
        angles: Limits in degrees for the shares of good pixels.
    """

    merge_key = ("angles",)

    def __init__(self, *, angles: Sequence[float] = _ANGLES) -> None:
        if not angles or not all(0 < angle <= 180 for angle in angles):
            raise InputError(f"angles: expected degrees over 0, up to 180, got {list(angles)}.")
        self.angles = tuple(float(angle) for angle in angles)
        self.counts = np.zeros(180 * _BINS_PER_DEGREE + 1, dtype=np.int64)
        self.sums: Float64Array = np.zeros(len(self.counts))
        self.squares = 0.0
        self.within = np.zeros(len(self.angles), dtype=np.int64)

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps [3, H, W] or [B, 3, H, W], within `mask` [H, W] or [B, H, W]. Vectors need not have unit length.

        Target normals that are not finite or zero do not count; zero predictions are 90° off.
        """
        predicted, target, valid = as_maps(prediction, target, mask, channels=3)
        valid = valid & target.isfinite().all(dim=1) & (target != 0).any(dim=1)  # [B, H, W]
        predicted, target = (normals.movedim(1, -1)[valid] for normals in (predicted, target))  # [pixels, 3]
        require_finite("prediction", predicted)
        angles = _angle_degrees(predicted, target)  # [pixels]
        index = (angles * _BINS_PER_DEGREE).long()
        self.counts += torch.bincount(index, minlength=len(self.counts)).cpu().numpy()
        self.sums += torch.bincount(index, weights=angles, minlength=len(self.counts)).cpu().numpy()
        self.squares += float(angles.square().sum())
        limits = angles.new_tensor(self.angles)[:, None]  # [limits, 1]
        self.within += (angles < limits).sum(dim=1).cpu().numpy()

    def compute(self) -> AngularErrorScores:
        pixels = int(self.counts.sum())
        if pixels == 0:
            return AngularErrorScores(math.nan, math.nan, math.nan, dict.fromkeys(self.angles, math.nan), 0)
        ranks = np.array([(pixels - 1) // 2, pixels // 2])
        middle = np.searchsorted(np.cumsum(self.counts), ranks, side="right")
        return AngularErrorScores(
            mean=float(self.sums.sum() / pixels),
            median=float((self.sums[middle] / self.counts[middle]).mean()),
            rmse=math.sqrt(self.squares / pixels),
            within={angle: int(count) / pixels for angle, count in zip(self.angles, self.within, strict=True)},
            pixels=pixels,
        )


def _angle_degrees(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the angles between directions: [..., 3] and [..., 3] -> [...]; 90 where one is zero."""
    # The arc tangent is precise for small angles, unlike the arc cosine.
    sine = torch.linalg.vector_norm(torch.linalg.cross(prediction, target), dim=-1)
    angles = torch.rad2deg(torch.atan2(sine, (prediction * target).sum(-1)))
    return torch.where((prediction == 0).all(-1) | (target == 0).all(-1), 90.0, angles)


@dataclasses.dataclass(frozen=True)
class DepthErrorScores:
    """Means over images, NaN where there were none."""

    abs_rel: float
    sq_rel: float
    rmse: float
    log_rmse: float
    delta_1: float
    delta_2: float
    delta_3: float
    images: int


@dataclasses.dataclass(frozen=True)
class PointErrorScores:
    """Means over images, NaN where there were none; `relative_distance` over those with a length."""

    distance: float
    rmse: float
    relative_distance: float
    images: int


class DepthError(Metric):
    """AbsRel, RMSE and delta of depth maps.

    Args:
        alignment: Alignment before the comparison.
        min_depth: Smaller depths do not count in the target, and are clamped in the aligned prediction.
        max_depth: Larger depths do not count in the target, and are clamped in the aligned prediction.
    """

    merge_key = ("alignment", "min_depth", "max_depth")

    def __init__(
        self, *, alignment: _DepthAlignment = "none", min_depth: float = 1e-3, max_depth: float = math.inf
    ) -> None:
        check_choice("alignment", alignment, get_args(_DepthAlignment))
        if not 0 < min_depth < max_depth:
            raise InputError(f"min_depth: expected a number between 0 and max_depth, {max_depth}, got {min_depth}.")
        self.alignment, self.min_depth, self.max_depth = alignment, min_depth, max_depth
        self.averages = Averages()

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add maps [H, W], [B, H, W] or [B, 1, H, W], within `mask` of the same shape.

        Target depths that are not finite or out of range do not count, nor images without any that do.
        """
        predicted, target, valid = as_maps(prediction, target, mask)
        valid = valid & target[:, 0].isfinite() & (target[:, 0] >= self.min_depth) & (target[:, 0] <= self.max_depth)
        for p, t, inside in zip(predicted[:, 0], target[:, 0], valid, strict=True):
            if bool(inside.any()):
                require_finite("prediction", p[inside])
                aligned = _align(p[inside][:, None], t[inside][:, None], self.alignment)[:, 0]  # [pixels]
                self.averages.add(_depth_errors(aligned.clamp(self.min_depth, self.max_depth), t[inside]))

    def compute(self) -> DepthErrorScores:
        return self.averages.scores(DepthErrorScores)


class PointError(Metric):
    """Distances of maps of 3D points.

    Args:
        alignment: Alignment before the comparison.
    """

    merge_key = ("alignment",)

    def __init__(self, *, alignment: _PointAlignment = "scale") -> None:
        check_choice("alignment", alignment, get_args(_PointAlignment))
        self.alignment = alignment
        self.averages = Averages()

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None, length: PerObject = None) -> None:
        """Add maps [3, H, W] or [B, 3, H, W], within `mask` [H, W] or [B, H, W].

        `length` [B] is what distances are divided by, in the target's unit: the person's height, for example. Target
        points that are not finite do not count, nor images without any that do.
        """
        predicted, target, valid = as_maps(prediction, target, mask, channels=3)
        valid = valid & target.isfinite().all(dim=1)  # [B, H, W]
        lengths = as_row("length", length, len(target), np.float64, default=math.nan)
        if length is not None and not (lengths > 0).all():
            raise InputError(f"length: expected numbers over 0, got {lengths.tolist()}.")
        for p, q, inside, size in zip(predicted, target, valid, lengths.tolist(), strict=True):
            if not bool(inside.any()):
                continue
            points, true_points = p[:, inside].T, q[:, inside].T  # [pixels, 3]
            require_finite("prediction", points)
            distances = torch.linalg.vector_norm(_align(points, true_points, self.alignment) - true_points, dim=-1)
            distance = float(distances.mean())
            self.averages.add({"distance": distance, "rmse": float(distances.square().mean().sqrt())})
            if length is not None:
                self.averages.add({"relative_distance": distance / size})

    def compute(self) -> PointErrorScores:
        return self.averages.scores(PointErrorScores)


def _align(points: Tensor, target: Tensor, alignment: str) -> Tensor:
    """Align points [N, C] with the target [N, C]."""
    if alignment == "none":
        return points
    if alignment == "median":
        median, target_median = (float(np.median(values.cpu().numpy())) for values in (points, target))
        return points * (target_median / median) if median else points
    if alignment == "scale":
        return points * _best_scale(points, target)
    center, target_center = points.mean(0), target.mean(0)  # [C] each
    return (points - center) * _best_scale(points - center, target - target_center) + target_center


def _best_scale(points: Tensor, target: Tensor) -> Tensor:
    """Return the least-squares factor from points [N, C] to the target; 0 where all are 0."""
    size = points.square().sum()
    return torch.where(size > 0, (points * target).sum() / torch.where(size > 0, size, 1.0), 0.0)


def _depth_errors(prediction: Tensor, target: Tensor) -> dict[str, float]:
    """Return the errors of one image by their names, from depths over 0: [pixels] and [pixels]."""
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
