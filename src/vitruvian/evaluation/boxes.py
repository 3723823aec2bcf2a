"""Finding people: recall, precision and average precision of boxes at given overlaps.

    boxes of a picture ── overlaps [D, G] ── greedy matching, best score first ──▶ recall of all, precision over recall

Crowds and regions to be ignored follow COCO's rules (`detection`): nobody has to be found there, and what is found
there is no false alarm. The same holds for people that are too small to be asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitruvian.errors import InputError
from vitruvian.evaluation.arrays import Array, as_array, same_settings, share
from vitruvian.evaluation.detection import Matches, as_shapes, curves, find_matches, shape_overlaps


@dataclasses.dataclass(frozen=True)
class BoxScores:
    """Results at each overlap, NaN where nobody was to be found (recall, AP) or nothing was found (precision)."""

    ap: dict[float, float]
    recall: dict[float, float]
    precision: dict[float, float]
    people: int


class BoxQuality:
    """Adds up boxes around people, or anything else of one kind, then says how many were found.

    Args:
        thresholds: Overlaps (intersection over union) from which a person counts as found.
        min_height: Height under which people need not be found, as a part of the picture's height.
        min_score: Boxes with lower scores are left out; by default none.
        max_detections: Number of boxes a picture that count, best first.
    """

    def __init__(
        self,
        *,
        thresholds: Sequence[float] = (0.5, 0.75),
        min_height: float = 0.0,
        min_score: float = -math.inf,
        max_detections: int = 100,
    ) -> None:
        if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
            raise InputError(f"thresholds: expected overlaps over 0, up to 1, got {list(thresholds)}.")
        if not 0 <= min_height <= 1:
            raise InputError(f"min_height: expected a part of the picture's height, 0 to 1, got {min_height}.")
        if max_detections < 1:
            raise InputError(f"max_detections: expected at least 1, got {max_detections}.")
        self.thresholds = tuple(float(threshold) for threshold in thresholds)
        self.min_height, self.min_score, self.max_detections = min_height, min_score, max_detections
        self.matches: list[Matches] = []

    def update(
        self,
        boxes_xyxy: Array | Sequence[Any],
        scores: Array | Sequence[float],
        target_boxes_xyxy: Array | Sequence[Any],
        *,
        crowd: Any = None,
        ignored: Any = None,
        size_hw: tuple[int, int] | None = None,
    ) -> None:
        """Add one picture: D boxes [D, 4] with scores [D], and G true ones [G, 4].

        `crowd` [G] marks regions in which any number of people may be; `ignored` [G] people that need not be found.
        `size_hw` is the picture's size, needed with `min_height`.
        """
        if self.min_height and size_hw is None:
            raise InputError("size_hw: expected the picture's size, which min_height refers to, got None.")
        found, truth = as_shapes("box", boxes_xyxy), as_shapes("box", target_boxes_xyxy)
        rank = as_array("scores", scores, len(found), np.float64)
        best = np.argsort(-rank, kind="stable")
        best = best[rank[best] >= self.min_score][: self.max_detections]
        flags = as_array("crowd", crowd, len(truth), np.bool_, default=False)
        lowest = self.min_height * size_hw[0] if size_hw is not None else 0.0
        self.matches.append(
            find_matches(
                shape_overlaps(found[best], truth, flags),
                scores=rank[best],
                areas=found[best, 3] - found[best, 1],
                target_areas=truth[:, 3] - truth[:, 1],
                crowd=flags,
                ignored=as_array("ignored", ignored, len(truth), np.bool_, default=False),
                ranges=[(lowest, np.inf)],
                thresholds=self.thresholds,
            )
        )

    def merge(self, other: BoxQuality) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "thresholds", "min_height", "min_score", "max_detections")
        self.matches.extend(other.matches)

    def compute(self) -> BoxScores:
        """Return the scores of all pictures so far."""
        nothing = np.full((1, len(self.thresholds)), np.nan)
        precisions, recalls = curves(self.matches, self.max_detections) if self.matches else (nothing, nothing)
        right, counted = np.zeros((2, len(self.thresholds)))
        for picture in self.matches:
            right += (picture.matched & ~picture.ignored)[0].sum(-1)
            counted += (~picture.ignored)[0].sum(-1)
        tables = (precisions[0], recalls[0], share(right, counted))
        ap, recall, precision = (dict(zip(self.thresholds, values.tolist(), strict=True)) for values in tables)
        return BoxScores(
            ap=ap, recall=recall, precision=precision, people=sum(int(picture.wanted[0]) for picture in self.matches)
        )
