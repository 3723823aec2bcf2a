"""Average precision and recall of detected objects by mask, box or keypoints, with COCO's rules and numbers.

    update: objects of an image ── similarity [D, G] of each label, greedy matching, best score first ──▶ matches
    compute: at 10 thresholds and 4 ranges of area ──▶ precision over recall

`AveragePrecision` takes similarities of any kind; `KeypointAP`, in `keypoints`, uses that of keypoints.
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

from vitruvian.errors import InputError, check_choice
from vitruvian.images.boxes import box_areas, box_iou
from vitruvian.images.rle import encode_rles, rle_area, rle_iou
from vitruvian.images.types import BoolArray, Float64Array, SizeHW
from vitruvian.training.evaluation.metric import Array, Metric, PerObject, Values, as_row, nan_mean, ratio

Objects = Array | Sequence[object]  # boxes, masks or RLEs

IOU_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
_RECALLS = np.linspace(0, 1, 101)
_AREA_RANGES: dict[str, tuple[float, float]] = {
    "all": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}


@dataclasses.dataclass(frozen=True)
class _Matches:
    """Detections of one label in one image after matching, for R ranges of size and T thresholds."""

    label: int
    scores: Float64Array  # [D], best first
    matched: BoolArray  # [R, T, D]
    ignored: BoolArray  # [R, T, D]
    targets: npt.NDArray[np.int64]  # [R]: number of objects that count


class AveragePrecision(Metric):
    """Base of average precisions, whatever measures the similarity of a detection and an object.

    Attributes:
        thresholds: Similarities from which a detection counts as correct.
        max_detections: Detections of a label in an image that count, best first.
    """

    thresholds: tuple[float, ...] = IOU_THRESHOLDS
    max_detections: int = 100

    def __init__(self) -> None:
        self.matches: list[_Matches] = []

    def best_first(self, scores: Float64Array) -> npt.NDArray[np.int64]:
        """Return the indices of the detections that count: [D] -> [d]."""
        return np.argsort(-scores, kind="stable")[: self.max_detections]

    def add(
        self,
        similarity: Float64Array,
        *,
        scores: Float64Array,
        sizes: Float64Array,
        target_sizes: Float64Array,
        crowd: BoolArray,
        ignored: BoolArray | None = None,
        ranges: Sequence[tuple[float, float]] = tuple(_AREA_RANGES.values()),
        label: int = 0,
    ) -> None:
        """Match the objects of one label in one image by their similarity [D, G].

        `scores` and `sizes` are those of the detections [D], best first, `target_sizes` those of the true objects [G].
        Objects marked `ignored` [G] do not count and, unlike a crowd, match only once; likewise objects whose size is
        outside a range.
        """
        low, high = np.array(ranges).T[:, :, None]  # [R, 1] each
        outside = (target_sizes < low) | (target_sizes > high) | crowd  # [R, G]
        if ignored is not None:
            outside |= ignored
        matched, on_ignored = _match_greedily(similarity, outside, crowd, self.thresholds)  # [R, T, D] each
        wrong_size = (sizes < low) | (sizes > high)  # [R, D]
        ignored_detections = on_ignored | (~matched & wrong_size[:, None])
        self.matches.append(_Matches(label, scores, matched, ignored_detections, (~outside).sum(1)))

    def precision_recall(
        self, images: Sequence[_Matches], limit: int | None = None
    ) -> tuple[Float64Array, Float64Array]:
        """Return mean precision over all recalls and the highest recall, with `limit` detections per image: [R, T]."""
        if not images:
            nothing = np.full((len(_AREA_RANGES), len(self.thresholds)), np.nan)
            return nothing, nothing
        scores = np.concatenate([image.scores[:limit] for image in images])
        order = np.argsort(-scores, kind="stable")
        matched = np.concatenate([image.matched[..., :limit] for image in images], axis=-1)[..., order]  # [R, T, D]
        counts = ~np.concatenate([image.ignored[..., :limit] for image in images], axis=-1)[..., order]
        targets = np.sum([image.targets for image in images], axis=0)[:, None, None]  # [R, 1, 1]
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


def _match_greedily(
    similarity: Float64Array, outside: BoolArray, crowd: BoolArray, thresholds: Sequence[float]
) -> tuple[BoolArray, BoolArray]:
    """Match each detection, best first, with the free object most similar to it, preferring objects that count.

    similarity [D, G], outside [R, G] (objects that do not count), crowd [G] (always free) -> whether each detection is
    matched, and matched with an object that does not count: [R, T, D] each.
    """
    count, objects = similarity.shape
    limits = np.minimum(thresholds, 1 - 1e-10)[:, None]  # [T, 1]
    free = np.ones((len(outside), len(limits), objects), dtype=np.bool_)  # [R, T, G]
    matched = np.zeros((len(outside), len(limits), count), dtype=np.bool_)  # [R, T, D]
    on_ignored = np.zeros_like(matched)
    if objects == 0:
        return matched, on_ignored
    for number, row in enumerate(similarity):
        able = (free | crowd) & (row >= limits)  # [R, T, G]
        # Objects that count come first whatever the similarity; of equals COCO takes the last.
        priority = np.where(able, row + 2.0 * ~outside[:, None], -1.0)  # [R, T, G]
        chosen = objects - 1 - priority[..., ::-1].argmax(-1)  # [R, T]
        hit = able.any(-1)
        matched[..., number] = hit
        on_ignored[..., number] = hit & np.take_along_axis(outside, chosen, axis=1)
        taken = np.take_along_axis(free, chosen[..., None], axis=-1) & ~hit[..., None]
        np.put_along_axis(free, chosen[..., None], taken, axis=-1)
    return matched, on_ignored


def summarize(name: str, tables: Sequence[Float64Array]) -> dict[str, float]:
    """Return COCO's means of tables [R, T], one per label: over all thresholds, at 0.5, at 0.75, and by size."""
    table = np.stack(tables) if tables else np.full((1, len(_AREA_RANGES), len(IOU_THRESHOLDS)), np.nan)
    sizes = {f"{name}_{size}": nan_mean(table[:, row]) for row, size in enumerate(_AREA_RANGES) if size != "all"}
    at_one = {f"{name}50": nan_mean(table[:, 0, 0]), f"{name}75": nan_mean(table[:, 0, 5])}
    return {name: nan_mean(table[:, 0])} | at_one | sizes


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


class MeanAveragePrecision(AveragePrecision):
    """COCO's mAP and AR.

    Args:
        kind: What objects are compared by: "mask" (bool [N, H, W] or a list of RLE) or "box" (xyxy [N, 4]).
    """

    merge_key = ("kind",)

    def __init__(self, kind: Literal["mask", "box"] = "mask") -> None:
        super().__init__()
        check_choice("kind", kind, ("mask", "box"))
        self.kind = kind

    def update(
        self,
        objects: Objects,
        scores: Values,
        labels: Values,
        targets: Objects,
        target_labels: Values,
        *,
        crowd: PerObject = None,
        target_areas: PerObject = None,
    ) -> None:
        """Add one image: D detected objects with scores and labels, G true ones with labels.

        `crowd` [G] marks regions that stand for many objects; `target_areas` [G] are areas in pixels where they differ
        from those of the masks or boxes, as in COCO's annotations.
        """
        read, area, iou = (check_boxes, box_areas, box_iou) if self.kind == "box" else (_read_rles, _areas, _rle_iou)
        detected, truth = read(objects), read(targets)
        areas, true_areas = area(detected), area(truth)
        if target_areas is not None:
            true_areas = as_row("target_areas", target_areas, len(truth), np.float64)
        flags = as_row("crowd", crowd, len(truth), np.bool_, default=False)
        confidence = as_row("scores", scores, len(detected), np.float64)
        detected_labels = as_row("labels", labels, len(detected), np.int64)
        true_labels = as_row("target_labels", target_labels, len(truth), np.int64)
        for label in np.union1d(detected_labels, true_labels).tolist():
            ours, theirs = np.flatnonzero(detected_labels == label), np.flatnonzero(true_labels == label)
            ours = ours[self.best_first(confidence[ours])]
            self.add(
                iou(detected[ours], truth[theirs], flags[theirs]),
                scores=confidence[ours],
                sizes=areas[ours],
                target_sizes=true_areas[theirs],
                crowd=flags[theirs],
                label=label,
            )

    def compute(self) -> MeanAveragePrecisionScores:
        images: dict[int, list[_Matches]] = {}
        for image in self.matches:
            images.setdefault(image.label, []).append(image)
        precisions, recalls = {}, {}
        for label in sorted(images):
            for limit in (1, 10, 100):
                precisions[label], recalls[label, limit] = self.precision_recall(images[label], limit)
        means = summarize("ap", list(precisions.values()))
        for limit in (1, 10, 100):
            of_limit = summarize("ar", [recalls[label, limit] for label in precisions])
            means |= of_limit | {f"ar_{limit}": of_limit["ar"]}
        names = [field.name for field in dataclasses.fields(MeanAveragePrecisionScores)[:-1]]
        per_label = {label: nan_mean(table[0]) for label, table in precisions.items()}
        return MeanAveragePrecisionScores(**{name: means[name] for name in names}, per_label=per_label)


def check_boxes(objects: Objects) -> Float64Array:
    """Return boxes xyxy as float64 [N, 4]."""
    boxes: Float64Array = torch.as_tensor(objects, dtype=torch.float64).cpu().numpy()
    if boxes.size == 0:
        return np.zeros((0, 4))
    if boxes.ndim != 2 or boxes.shape[1] != 4 or (boxes[:, 2:] < boxes[:, :2]).any():
        raise InputError(f"boxes: expected xyxy of the shape [N, 4], got the shape {list(boxes.shape)}.")
    return boxes


def _read_rles(objects: Objects) -> npt.NDArray[Any]:
    """Return masks as an array of RLE [N]."""
    if isinstance(objects, (Tensor, np.ndarray)):
        return np.array(encode_rles(objects), dtype=object)
    rles = [row if isinstance(row, Mapping) else encode_rles(torch.as_tensor(row)[None])[0] for row in objects]
    return np.array(rles, dtype=object)


def _areas(rles: npt.NDArray[Any]) -> Float64Array:
    return np.array([rle_area(rle) for rle in rles], dtype=np.float64)


def _rle_iou(detected: npt.NDArray[Any], truth: npt.NDArray[Any], crowd: BoolArray) -> Float64Array:
    return np.asarray(rle_iou(list(detected), list(truth), crowd=crowd))


@dataclasses.dataclass(frozen=True)
class BoxAPScores:
    """Scores at each IoU threshold, NaN where there were no people (recall, AP) or no boxes (precision)."""

    ap: dict[float, float]
    recall: dict[float, float]
    precision: dict[float, float]
    people: int


class BoxAP(AveragePrecision):
    """Average precision, recall and precision of boxes of one class.

    Args:
        thresholds: IoU from which a person counts as detected.
        min_height: Height under which people do not count, as a share of the image's height.
        min_score: Boxes with lower scores are left out; by default none.
        max_detections: Number of boxes per image that count, best first.
    """

    merge_key = ("thresholds", "min_height", "min_score", "max_detections")

    def __init__(
        self,
        *,
        thresholds: Sequence[float] = (0.5, 0.75),
        min_height: float = 0.0,
        min_score: float = -math.inf,
        max_detections: int = 100,
    ) -> None:
        super().__init__()
        if not thresholds or not all(0 < threshold <= 1 for threshold in thresholds):
            raise InputError(f"thresholds: expected overlaps over 0, up to 1, got {list(thresholds)}.")
        if not 0 <= min_height <= 1:
            raise InputError(f"min_height: expected a share of the image's height, 0 to 1, got {min_height}.")
        if max_detections < 1:
            raise InputError(f"max_detections: expected at least 1, got {max_detections}.")
        self.thresholds = tuple(float(threshold) for threshold in thresholds)
        self.min_height, self.min_score, self.max_detections = min_height, min_score, max_detections

    def update(
        self,
        boxes_xyxy: Objects,
        scores: Values,
        target_boxes_xyxy: Objects,
        *,
        crowd: PerObject = None,
        ignored: PerObject = None,
        size_hw: SizeHW | None = None,
    ) -> None:
        """Add one image: D boxes [D, 4] with scores [D], and G true ones [G, 4].

        `crowd` [G] marks regions with any number of people; `ignored` [G] people that do not count. `size_hw` is the
        image's size, needed with `min_height`.
        """
        if self.min_height and size_hw is None:
            raise InputError("size_hw: expected the image's size, which min_height refers to, got None.")
        detected, truth = check_boxes(boxes_xyxy), check_boxes(target_boxes_xyxy)
        confidence = as_row("scores", scores, len(detected), np.float64)
        best = self.best_first(confidence)
        best = best[confidence[best] >= self.min_score]
        flags = as_row("crowd", crowd, len(truth), np.bool_, default=False)
        lowest = self.min_height * size_hw[0] if size_hw is not None else 0.0
        self.add(
            box_iou(detected[best], truth, flags),
            scores=confidence[best],
            sizes=detected[best, 3] - detected[best, 1],
            target_sizes=truth[:, 3] - truth[:, 1],
            crowd=flags,
            ignored=as_row("ignored", ignored, len(truth), np.bool_, default=False),
            ranges=[(lowest, np.inf)],
        )

    def compute(self) -> BoxAPScores:
        tables = self.precision_recall(self.matches)
        correct, counted = np.zeros((2, len(self.thresholds)))
        for image in self.matches:
            correct += (image.matched & ~image.ignored)[0].sum(-1)
            counted += (~image.ignored)[0].sum(-1)
        ap, recall, precision = (
            dict(zip(self.thresholds, values.tolist(), strict=True))
            for values in (tables[0][0], tables[1][0], ratio(correct, counted))
        )
        return BoxAPScores(ap, recall, precision, people=sum(int(image.targets[0]) for image in self.matches))
