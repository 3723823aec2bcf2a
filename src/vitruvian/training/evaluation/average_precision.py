"""Average precision and recall of detected objects by mask or box, with COCO's rules and numbers.

    update: objects of an image ── overlaps [D, G] of each label, greedy matching, best score first ──▶ matches
    compute: at 10 IoU thresholds and 4 ranges of area ──▶ precision over recall

`match_detections` and `precision_recall` take overlaps of any kind; keypoints use them too.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.rle import encode_rles, rle_area, rle_iou
from vitruvian.training.evaluation.metric import (
    Array,
    Bools,
    Floats,
    Mergeable,
    Values,
    check_row,
    nan_mean,
    ratio,
)

Objects = Array | Sequence[object]  # boxes, masks or RLEs
Shapes = Floats | list[Mapping[str, object]]  # boxes, or masks as RLE

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
_RECALLS = np.linspace(0, 1, 101)
AREA_RANGES: dict[str, tuple[float, float]] = {
    "all": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}
_MAX_DETECTIONS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class MeanAveragePrecisionScores:
    """COCO's twelve numbers, NaN where there are no objects, and the average precision of each label."""

    ap: float
    ap50: float
    ap75: float
    ap_small: float
    ap_medium: float
    ap_large: float
    ar_1: float
    ar_10: float
    ar_100: float
    ar_small: float
    ar_medium: float
    ar_large: float
    per_label: dict[int, float]


@dataclasses.dataclass(frozen=True)
class Matches:
    """Detections of one label in one image after matching, for R ranges of size and T thresholds."""

    scores: Floats  # [D], best first
    matched: Bools  # [R, T, D]
    ignored: Bools  # [R, T, D]
    targets: npt.NDArray[np.int64]  # [R]: number of objects that count


class MeanAveragePrecision(Mergeable):
    """COCO's mAP and AR.

    Args:
        kind: What objects are compared by: "mask" (bool [N, H, W] or a list of RLE) or "box" (xyxy [N, 4]).
    """

    settings = ("kind",)

    def __init__(self, kind: Literal["mask", "box"] = "mask") -> None:
        if kind not in ("mask", "box"):
            raise InputError(f"kind: expected mask or box, got {kind!r}.")
        self.kind = kind
        self.matches: list[tuple[int, Matches]] = []  # with their labels

    def update(
        self,
        objects: Objects,
        scores: Values,
        labels: Values,
        targets: Objects,
        target_labels: Values,
        *,
        crowd: Values | None = None,
        target_areas: Values | None = None,
    ) -> None:
        """Add one image: D detected objects with scores and labels, G true ones with labels.

        `crowd` [G] marks regions that stand for many objects; `target_areas` [G] are areas in pixels where they differ
        from those of the masks or boxes, as in COCO's annotations.
        """
        found, truth = _as_shapes(self.kind, objects), _as_shapes(self.kind, targets)
        found_areas, truth_areas = _areas(found), _areas(truth)
        flags = check_row("crowd", crowd, len(truth_areas), np.bool_, default=False)
        if target_areas is not None:
            truth_areas = check_row("target_areas", target_areas, len(truth_areas), np.float64)
        rank = check_row("scores", scores, len(found_areas), np.float64)
        found_labels = check_row("labels", labels, len(found_areas), np.int64)
        truth_labels = check_row("target_labels", target_labels, len(truth_areas), np.int64)
        for label in np.union1d(found_labels, truth_labels).tolist():
            ours, theirs = np.flatnonzero(found_labels == label), np.flatnonzero(truth_labels == label)
            ours = ours[np.argsort(-rank[ours], kind="stable")][: _MAX_DETECTIONS[-1]]
            matches = match_detections(
                _overlaps(_take(found, ours), _take(truth, theirs), flags[theirs]),
                scores=rank[ours],
                areas=found_areas[ours],
                target_areas=truth_areas[theirs],
                crowd=flags[theirs],
            )
            self.matches.append((label, matches))

    def compute(self) -> MeanAveragePrecisionScores:
        """Return the scores of all images so far."""
        labels = sorted({label for label, _ in self.matches})
        by_label = {label: [matches for other, matches in self.matches if other == label] for label in labels}
        tables = {
            (label, most): precision_recall(by_label[label], most) for label in labels for most in _MAX_DETECTIONS
        }
        ranges, last = list(AREA_RANGES), _MAX_DETECTIONS[-1]

        def precision(size: str, threshold: int | slice = slice(None)) -> float:
            return nan_mean([tables[label, last][0][ranges.index(size), threshold] for label in labels])

        def recall(size: str, most: int = last) -> float:
            return nan_mean([tables[label, most][1][ranges.index(size)] for label in labels])

        return MeanAveragePrecisionScores(
            ap=precision("all"),
            ap50=precision("all", 0),
            ap75=precision("all", 5),
            ap_small=precision("small"),
            ap_medium=precision("medium"),
            ap_large=precision("large"),
            ar_1=recall("all", 1),
            ar_10=recall("all", 10),
            ar_100=recall("all"),
            ar_small=recall("small"),
            ar_medium=recall("medium"),
            ar_large=recall("large"),
            per_label={label: nan_mean([tables[label, last][0][0]]) for label in labels},
        )


def match_detections(
    overlaps: Floats,
    *,
    scores: Floats,
    areas: Floats,
    target_areas: Floats,
    crowd: Bools,
    ignored: Bools | None = None,
    ranges: Sequence[tuple[float, float]] = tuple(AREA_RANGES.values()),
    thresholds: Sequence[float] = IOU_THRESHOLDS,
) -> Matches:
    """Match the objects of one label in one image by their overlaps [D, G], best score first.

    `scores` and `areas` are those of the detections [D], `target_areas` those of the true objects [G]. Objects marked
    `ignored` [G] do not count and, unlike a crowd, match only once; likewise objects outside a range of areas.
    """
    skip = crowd if ignored is None else crowd | ignored
    lows, highs = np.array(ranges).T[:, :, None]  # [R, 1] each
    outside = (target_areas < lows) | (target_areas > highs) | skip  # [R, G]
    matched, on_ignored = _match_greedily(overlaps, outside, crowd, thresholds)  # [R, T, D] each
    wrong_size = (areas < lows) | (areas > highs)  # [R, D]
    return Matches(
        scores=scores,
        matched=matched,
        ignored=on_ignored | (~matched & wrong_size[:, None]),
        targets=(~outside).sum(1),
    )


def _match_greedily(
    overlaps: Floats, outside: Bools, crowd: Bools, thresholds: Sequence[float] = IOU_THRESHOLDS
) -> tuple[Bools, Bools]:
    """Match each detection, best first, with the free object it overlaps most, preferring objects that count.

    overlaps [D, G], outside [R, G] (objects that do not count), crowd [G] (always free) -> whether each detection is
    matched, and matched with an object that does not count: [R, T, D] each.
    """
    count, objects = overlaps.shape
    limits = np.minimum(thresholds, 1 - 1e-10)[:, None]  # [T, 1]
    free = np.ones((len(outside), len(limits), objects), dtype=np.bool_)  # [R, T, G]
    matched = np.zeros((len(outside), len(limits), count), dtype=np.bool_)  # [R, T, D]
    on_ignored = np.zeros_like(matched)
    if objects == 0:
        return matched, on_ignored
    for number, row in enumerate(overlaps):
        able = (free | crowd) & (row >= limits)  # [R, T, G]
        # Objects that count come first whatever the overlap; of equals COCO takes the last.
        priority = np.where(able, row + 2.0 * ~outside[:, None], -1.0)  # [R, T, G]
        chosen = objects - 1 - priority[..., ::-1].argmax(-1)  # [R, T]
        hit = able.any(-1)
        matched[..., number] = hit
        on_ignored[..., number] = hit & np.take_along_axis(outside, chosen, axis=1)
        taken = np.take_along_axis(free, chosen[..., None], axis=-1) & ~hit[..., None]
        np.put_along_axis(free, chosen[..., None], taken, axis=-1)
    return matched, on_ignored


def precision_recall(images: Sequence[Matches], most: int) -> tuple[Floats, Floats]:
    """Return mean precision over all recalls and the highest recall: [R, T] each, with `most` detections an image."""
    scores = np.concatenate([p.scores[:most] for p in images])
    order = np.argsort(-scores, kind="stable")
    matched = np.concatenate([p.matched[..., :most] for p in images], axis=-1)[..., order]  # [R, T, D]
    counts = ~np.concatenate([p.ignored[..., :most] for p in images], axis=-1)[..., order]
    targets = np.sum([p.targets for p in images], axis=0)[:, None, None]  # [R, 1, 1]
    correct = np.cumsum(matched & counts, axis=-1, dtype=np.float64)
    wrong = np.cumsum(~matched & counts, axis=-1, dtype=np.float64)
    recall = np.divide(correct, targets, out=np.zeros_like(correct), where=targets > 0)
    precision = correct / np.maximum(correct + wrong, np.spacing(1))
    # The best precision at this recall or any higher one.
    envelope = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    means = np.full(correct.shape[:2], np.nan)
    highest = np.full(correct.shape[:2], np.nan)
    for size, threshold in np.ndindex(*means.shape):
        if targets[size, 0, 0] == 0:
            continue
        index = np.searchsorted(recall[size, threshold], _RECALLS, side="left")
        reached = index < len(order)
        means[size, threshold] = envelope[size, threshold][index[reached]].sum() / len(_RECALLS)
        highest[size, threshold] = recall[size, threshold, -1] if len(order) else 0.0
    return means, highest


def _as_shapes(kind: str, objects: Objects) -> Shapes:
    """Return boxes as float64 [N, 4], or masks as a list of RLE."""
    return check_boxes(objects) if kind == "box" else _as_rles(objects)


def check_boxes(objects: Objects) -> Floats:
    """Return boxes xyxy as float64 [N, 4]."""
    boxes: Floats = torch.as_tensor(objects, dtype=torch.float64).cpu().numpy()
    if boxes.size == 0:
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4 or (boxes[:, 2:] < boxes[:, :2]).any():
        raise InputError(f"boxes: expected xyxy of the shape [N, 4], got the shape {list(boxes.shape)}.")
    return boxes


def _as_rles(objects: Objects) -> list[Mapping[str, object]]:
    if isinstance(objects, (Tensor, np.ndarray)):
        return list(encode_rles(objects))
    return [row if isinstance(row, Mapping) else encode_rles(torch.as_tensor(row)[None])[0] for row in objects]


def _areas(shapes: Shapes) -> Floats:
    """Return areas in pixels [N]."""
    if isinstance(shapes, np.ndarray):
        return np.asarray((shapes[:, 2] - shapes[:, 0]) * (shapes[:, 3] - shapes[:, 1]))
    return np.array([rle_area(shape) for shape in shapes], dtype=np.float64)


def _overlaps(found: Shapes, truth: Shapes, crowd: Bools) -> Floats:
    """Return overlaps [D, G]: intersection over union, or over the detection's area where truth is a crowd."""
    if not isinstance(found, np.ndarray) and not isinstance(truth, np.ndarray):
        overlaps: Floats = rle_iou(found, truth, crowd=crowd).numpy()
        return overlaps
    found, truth = np.asarray(found), np.asarray(truth)
    corner = np.minimum(found[:, None, 2:], truth[None, :, 2:]) - np.maximum(found[:, None, :2], truth[None, :, :2])
    shared = corner.clip(min=0).prod(-1)  # [D, G]
    ours, theirs = _areas(found)[:, None], _areas(truth)[None]
    whole = np.where(crowd[None], ours, ours + theirs - shared)
    return np.asarray(shared / np.where(whole > 0, whole, 1.0))


def _take(shapes: Shapes, index: npt.NDArray[np.int64]) -> Shapes:
    return shapes[index] if isinstance(shapes, np.ndarray) else [shapes[i] for i in index]


@dataclasses.dataclass(frozen=True)
class BoxAPScores:
    """Scores at each IoU threshold, NaN where there were no people (recall, AP) or no boxes (precision)."""

    ap: dict[float, float]
    recall: dict[float, float]
    precision: dict[float, float]
    people: int


class BoxAP(Mergeable):
    """Average precision, recall and precision of boxes of one class.

    Args:
        thresholds: IoU from which a person counts as detected.
        min_height: Height under which people do not count, as a share of the image's height.
        min_score: Boxes with lower scores are left out; by default none.
        max_detections: Number of boxes an image that count, best first.
    """

    settings = ("thresholds", "min_height", "min_score", "max_detections")

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
        boxes_xyxy: Objects,
        scores: Values,
        target_boxes_xyxy: Objects,
        *,
        crowd: Values | None = None,
        ignored: Values | None = None,
        size_hw: tuple[int, int] | None = None,
    ) -> None:
        """Add one image: D boxes [D, 4] with scores [D], and G true ones [G, 4].

        `crowd` [G] marks regions with any number of people; `ignored` [G] people that do not count. `size_hw` is the
        image's size, needed with `min_height`.
        """
        if self.min_height and size_hw is None:
            raise InputError("size_hw: expected the picture's size, which min_height refers to, got None.")
        found, truth = check_boxes(boxes_xyxy), check_boxes(target_boxes_xyxy)
        rank = check_row("scores", scores, len(found), np.float64)
        best = np.argsort(-rank, kind="stable")
        best = best[rank[best] >= self.min_score][: self.max_detections]
        flags = check_row("crowd", crowd, len(truth), np.bool_, default=False)
        lowest = self.min_height * size_hw[0] if size_hw is not None else 0.0
        self.matches.append(
            match_detections(
                _overlaps(found[best], truth, flags),
                scores=rank[best],
                areas=found[best, 3] - found[best, 1],
                target_areas=truth[:, 3] - truth[:, 1],
                crowd=flags,
                ignored=check_row("ignored", ignored, len(truth), np.bool_, default=False),
                ranges=[(lowest, np.inf)],
                thresholds=self.thresholds,
            )
        )

    def compute(self) -> BoxAPScores:
        """Return the scores of all images so far."""
        nothing = np.full((1, len(self.thresholds)), np.nan)
        tables = precision_recall(self.matches, self.max_detections) if self.matches else (nothing, nothing)
        correct, counted = np.zeros((2, len(self.thresholds)))
        for image in self.matches:
            correct += (image.matched & ~image.ignored)[0].sum(-1)
            counted += (~image.ignored)[0].sum(-1)
        ap, recall, precision = (
            dict(zip(self.thresholds, values.tolist(), strict=True))
            for values in (tables[0][0], tables[1][0], ratio(correct, counted))
        )
        return BoxAPScores(ap, recall, precision, people=sum(int(image.targets[0]) for image in self.matches))
