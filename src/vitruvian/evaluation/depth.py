"""Depth and 3D points: errors of each picture after the best alignment, averaged over pictures.

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
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.evaluation.arrays import Array, Averages, as_array, check_finite, read_maps, same_settings

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
