"""Average precision and recall of detected objects by mask or box, with COCO's rules and numbers.

    update: objects of a picture ── overlaps [D, G] of each label ──▶ kept
    compute: greedy matching, best score first, at 10 overlap thresholds and 4 ranges of size ──▶ precision over recall

`find_matches` and `curves` take overlaps of any kind, so that other measures (keypoints, people) use the same rules.

Finding people: recall, precision and average precision of boxes at given overlaps.

    boxes of a picture ── overlaps [D, G] ── greedy matching, best score first ──▶ recall of all, precision over recall

Crowds and regions to be ignored follow COCO's rules (`detection`): nobody has to be found there, and what is found
there is no false alarm. The same holds for people that are too small to be asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.rle import encode_rles, rle_area, rle_iou
from vitruvian.training.evaluation.metric import Array, Bools, Floats, as_array, mean_known, same_settings, share

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())


RECALLS = np.linspace(0, 1, 101)


AREA_RANGES: dict[str, tuple[float, float]] = {
    "all": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}


MAX_DETECTIONS = (1, 10, 100)


@dataclasses.dataclass(frozen=True)
class DetectionScores:
    """COCO's twelve numbers, NaN where no object could be found, and the average precision of each label."""

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
    """Detections of one label in one picture after matching, for R ranges of size and T thresholds."""

    scores: Floats  # [D], best first
    matched: Bools  # [R, T, D]
    ignored: Bools  # [R, T, D]
    wanted: npt.NDArray[np.int64]  # [R]: objects to be found


class AveragePrecision:
    """Adds up the objects of pictures, then scores them.

    Args:
        kind: What objects are compared by: "mask" (bool [N, H, W] or a list of RLE) or "box" (xyxy [N, 4]).
    """

    def __init__(self, kind: Literal["mask", "box"] = "mask") -> None:
        if kind not in ("mask", "box"):
            raise InputError(f"kind: expected mask or box, got {kind!r}.")
        self.kind = kind
        self.matches: dict[int, list[Matches]] = {}

    def update(
        self,
        objects: Any,
        scores: Sequence[float] | Tensor,
        labels: Sequence[int] | Tensor,
        targets: Any,
        target_labels: Sequence[int] | Tensor,
        *,
        crowd: Sequence[bool] | Tensor | None = None,
        target_areas: Sequence[float] | Tensor | None = None,
    ) -> None:
        """Add one picture: D detected objects with scores and labels, G true ones with labels.

        `crowd` [G] marks regions that stand for many objects; `target_areas` [G] are sizes in pixels where they differ
        from those of the masks or boxes, as COCO's annotations have them.
        """
        found, truth = as_shapes(self.kind, objects), as_shapes(self.kind, targets)
        found_areas, truth_areas = shape_areas(found), shape_areas(truth)
        flags = as_array("crowd", crowd, len(truth_areas), np.bool_, default=False)
        if target_areas is not None:
            truth_areas = as_array("target_areas", target_areas, len(truth_areas), np.float64)
        rank = as_array("scores", scores, len(found_areas), np.float64)
        found_labels = as_array("labels", labels, len(found_areas), np.int64)
        truth_labels = as_array("target_labels", target_labels, len(truth_areas), np.int64)
        for label in np.union1d(found_labels, truth_labels).tolist():
            mine, theirs = np.flatnonzero(found_labels == label), np.flatnonzero(truth_labels == label)
            mine = mine[np.argsort(-rank[mine], kind="stable")][: MAX_DETECTIONS[-1]]
            self.matches.setdefault(label, []).append(
                find_matches(
                    shape_overlaps(take(found, mine), take(truth, theirs), flags[theirs]),
                    scores=rank[mine],
                    areas=found_areas[mine],
                    target_areas=truth_areas[theirs],
                    crowd=flags[theirs],
                )
            )

    def merge(self, other: AveragePrecision) -> None:
        """Add what another one has seen, such as that of another process."""
        same_settings(self, other, "kind")
        for label, theirs in other.matches.items():
            self.matches.setdefault(label, []).extend(theirs)

    def compute(self) -> DetectionScores:
        """Return the scores of all pictures so far."""
        labels = sorted(self.matches)
        tables = {(label, most): curves(self.matches[label], most) for label in labels for most in MAX_DETECTIONS}
        ranges, last = list(AREA_RANGES), MAX_DETECTIONS[-1]

        def precision(size: str, threshold: int | slice = slice(None)) -> float:
            return mean_known([tables[label, last][0][ranges.index(size), threshold] for label in labels])

        def recall(size: str, most: int = last) -> float:
            return mean_known([tables[label, most][1][ranges.index(size)] for label in labels])

        return DetectionScores(
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
            per_label={label: mean_known([tables[label, last][0][0]]) for label in labels},
        )


def find_matches(
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
    """Match the objects of one label in one picture by their overlaps [D, G], best score first.

    `scores` and `areas` are those of the detections [D], `target_areas` those of the true objects [G]. Objects marked
    `ignored` [G] need not be found and, unlike a crowd, can be found only once; the same
    goes for objects out of a range of sizes.
    """
    skip = crowd if ignored is None else crowd | ignored
    lows, highs = np.array(ranges).T[:, :, None]  # [R, 1] each
    outside = (target_areas < lows) | (target_areas > highs) | skip  # [R, G]
    matched, on_ignored = match(overlaps, outside, crowd, thresholds)  # [R, T, D] each
    wrong_size = (areas < lows) | (areas > highs)  # [R, D]
    return Matches(
        scores=scores,
        matched=matched,
        ignored=on_ignored | (~matched & wrong_size[:, None]),
        wanted=(~outside).sum(1),
    )


def match(
    overlaps: Floats, outside: Bools, crowd: Bools, thresholds: Sequence[float] = IOU_THRESHOLDS
) -> tuple[Bools, Bools]:
    """Give each detection, best first, the true object it overlaps most, one that counts rather than one that does not.

    overlaps [D, G], outside [R, G] (objects that do not count), crowd [G] (may be given often) -> whether each
    detection was given one, and one that does not count: [R, T, D] each.
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
        worth = np.where(able, row + 2.0 * ~outside[:, None], -1.0)  # [R, T, G]
        chosen = objects - 1 - worth[..., ::-1].argmax(-1)  # [R, T]
        given = able.any(-1)
        matched[..., number] = given
        on_ignored[..., number] = given & np.take_along_axis(outside, chosen, axis=1)
        taken = np.take_along_axis(free, chosen[..., None], axis=-1) & ~given[..., None]
        np.put_along_axis(free, chosen[..., None], taken, axis=-1)
    return matched, on_ignored


def curves(pictures: Sequence[Matches], most: int) -> tuple[Floats, Floats]:
    """Return mean precision over all recalls and the highest recall: [R, T] each, with `most` detections a picture."""
    scores = np.concatenate([p.scores[:most] for p in pictures])
    order = np.argsort(-scores, kind="stable")
    matched = np.concatenate([p.matched[..., :most] for p in pictures], axis=-1)[..., order]  # [R, T, D]
    counts = ~np.concatenate([p.ignored[..., :most] for p in pictures], axis=-1)[..., order]
    wanted = np.sum([p.wanted for p in pictures], axis=0)[:, None, None]  # [R, 1, 1]
    right = np.cumsum(matched & counts, axis=-1, dtype=np.float64)
    wrong = np.cumsum(~matched & counts, axis=-1, dtype=np.float64)
    recall = np.divide(right, wanted, out=np.zeros_like(right), where=wanted > 0)
    precision = right / np.maximum(right + wrong, np.spacing(1))
    # The best precision at this recall or any higher one.
    envelope = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    means = np.full(right.shape[:2], np.nan)
    highest = np.full(right.shape[:2], np.nan)
    for size, threshold in np.ndindex(*means.shape):
        if wanted[size, 0, 0] == 0:
            continue
        places = np.searchsorted(recall[size, threshold], RECALLS, side="left")
        reached = places < len(order)
        means[size, threshold] = envelope[size, threshold][places[reached]].sum() / len(RECALLS)
        highest[size, threshold] = recall[size, threshold, -1] if len(order) else 0.0
    return means, highest


def as_shapes(kind: str, objects: Any) -> Any:
    """Return boxes as float64 [N, 4], or masks as a list of RLE."""
    if kind == "box":
        boxes = torch.as_tensor(objects, dtype=torch.float64).cpu().numpy()
        if boxes.size == 0:
            return np.zeros((0, 4))
        if boxes.ndim != 2 or boxes.shape[1] != 4 or (boxes[:, 2:] < boxes[:, :2]).any():
            raise InputError(f"boxes: expected xyxy of the shape [N, 4], got the shape {list(boxes.shape)}.")
        return boxes
    if isinstance(objects, (Tensor, np.ndarray)):
        return encode_rles(objects)
    return [row if isinstance(row, Mapping) else encode_rles(torch.as_tensor(row)[None])[0] for row in objects]


def shape_areas(shapes: Any) -> Floats:
    """Return sizes in pixels [N]."""
    if isinstance(shapes, np.ndarray):
        return np.asarray((shapes[:, 2] - shapes[:, 0]) * (shapes[:, 3] - shapes[:, 1]))
    return np.array([rle_area(shape) for shape in shapes], dtype=np.float64)


def shape_overlaps(found: Any, truth: Any, crowd: Bools) -> Floats:
    """Return overlaps [D, G]: intersection over union, or over the detection's own size where truth is a crowd."""
    if not isinstance(found, np.ndarray):
        return rle_iou(found, truth, crowd=crowd).numpy()
    corner = np.minimum(found[:, None, 2:], truth[None, :, 2:]) - np.maximum(found[:, None, :2], truth[None, :, :2])
    shared = corner.clip(min=0).prod(-1)  # [D, G]
    mine, theirs = shape_areas(found)[:, None], shape_areas(truth)[None]
    whole = np.where(crowd[None], mine, mine + theirs - shared)
    return np.asarray(shared / np.where(whole > 0, whole, 1.0))


def take(shapes: Any, places: npt.NDArray[np.int64]) -> Any:
    """Return the shapes at these places."""
    return shapes[places] if isinstance(shapes, np.ndarray) else [shapes[place] for place in places]


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
