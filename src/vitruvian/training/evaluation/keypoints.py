"""Keypoints: the share of correct ones (PCK), and average precision by object keypoint similarity (OKS).

    PCK           keypoints of people that are paired already ── distance ≤ threshold · length? ──▶ PCK
    KeypointAP    people detected in an image, with scores ── OKS [D, G] ── COCO's matching ──▶ AP, AR

| PCK relative to | `reference` |
|---|---|
| the box | `box_length(boxes_xyxy, side="larger", factor=1.0)` |
| the head (PCKh, of MPII) | `head_length(head_boxes_xyxy)` |
| the torso | `torso_length(keypoints, layout=…)` |
| anything else | any lengths in pixels, one per person |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
import torch

from vitruvian.errors import InputError, check_choice
from vitruvian.human import COCO_WHOLEBODY_133, KEYPOINT_INDEX, KEYPOINTS, LAYOUTS, SIGMAS, Layout
from vitruvian.images.types import BoolArray, Float64Array
from vitruvian.training.evaluation.average_precision import AveragePrecision, check_boxes, summarize
from vitruvian.training.evaluation.metric import Array, Metric, PerObject, Values, as_row

# Sigmas of COCO-WholeBody for points that the 308 do not have, and for its 68 points of the face.
_WHOLEBODY_FACE_SIGMAS: Final[tuple[float, ...]] = (
    0.042, 0.043, 0.044, 0.043, 0.040, 0.035, 0.031, 0.025, 0.020, 0.023, 0.029, 0.032, 0.037, 0.038, 0.043, 0.041,
    0.045, 0.013, 0.012, 0.011, 0.011, 0.012, 0.012, 0.011, 0.011, 0.013, 0.015, 0.009, 0.007, 0.007, 0.007, 0.012,
    0.009, 0.008, 0.016, 0.010, 0.017, 0.011, 0.009, 0.011, 0.009, 0.007, 0.013, 0.008, 0.011, 0.012, 0.010, 0.034,
    0.008, 0.008, 0.009, 0.008, 0.008, 0.007, 0.010, 0.008, 0.009, 0.009, 0.009, 0.007, 0.007, 0.008, 0.011, 0.008,
    0.008, 0.008, 0.010, 0.008,
)  # fmt: skip
_WHOLEBODY_WRIST_SIGMA: Final = 0.029
_WHOLEBODY_GROUPS: Final[dict[str, tuple[int, ...]]] = {
    "body": tuple(range(17)),
    "feet": tuple(range(17, 23)),
    "face": tuple(range(23, 91)),
    "left_hand": tuple(range(91, 112)),
    "right_hand": tuple(range(112, 133)),
}


def _find_layout(layout: Layout | str) -> Layout:
    """Return a layout by its name: sapiens308, coco17, coco133 or openpose."""
    if isinstance(layout, Layout):
        return layout
    check_choice("layout", layout, LAYOUTS)
    return LAYOUTS[layout]


def layout_sigmas(layout: Layout | str) -> tuple[float, ...]:
    """Return the annotation sigma of each point of a layout [J], for object keypoint similarity.

    Those of COCO's 17 and COCO-WholeBody's 133 are the official ones; midpoints take the mean of their ends.
    """
    layout = _find_layout(layout)
    special: dict[int, float] = {}
    if layout.name == COCO_WHOLEBODY_133.name:
        special = dict(zip(_WHOLEBODY_GROUPS["face"], _WHOLEBODY_FACE_SIGMAS, strict=True))
        special |= {_WHOLEBODY_GROUPS[hand][0]: _WHOLEBODY_WRIST_SIGMA for hand in ("left_hand", "right_hand")}
    unknown = [layout.names[i] for i in layout.undefined if i not in special]
    if unknown:
        raise InputError(
            f"{layout.name} layout: expected sigmas for all points, got none for {', '.join(unknown)}. "
            "Pass sigmas [J] instead of a layout."
        )
    return tuple(
        special[i] if i in special else float(np.mean([SIGMAS[source] for source in ids]))
        for i, ids in enumerate(layout.sources)
    )


def layout_groups(layout: Layout | str) -> dict[str, tuple[int, ...]]:
    """Return the indices of the points of each group of a layout: body, feet, left_hand … as far as it has them."""
    layout = _find_layout(layout)
    if layout.name == COCO_WHOLEBODY_133.name:
        return dict(_WHOLEBODY_GROUPS)
    groups: dict[str, list[int]] = {}
    for i, ids in enumerate(layout.sources):
        if ids:
            groups.setdefault(KEYPOINTS[ids[0]].group, []).append(i)
    return {name: tuple(members) for name, members in groups.items()}


def _check_points(name: str, values: Array, count: int) -> Float64Array:
    """Return keypoints as float64 [N, J, 2] from [..., J, 2] with J = `count`."""
    points = torch.as_tensor(values).detach().cpu().double().numpy()
    if points.size == 0:
        return np.zeros((0, count, 2))
    if points.ndim < 2 or points.shape[-2:] != (count, 2):
        raise InputError(
            f"{name}: expected the shape [..., {count}, 2], got {list(points.shape)}. "
            "Convert keypoints to the layout that is scored, and leave scores out."
        )
    return points.reshape(-1, count, 2)


def box_length(
    boxes_xyxy: Array,
    *,
    side: Literal["larger", "smaller", "width", "height", "diagonal"] = "larger",
    factor: float = 1.0,
) -> Float64Array:
    """Return a length of each box, times a factor: [..., 4] -> [...]."""
    boxes = torch.as_tensor(boxes_xyxy).detach().cpu().double().numpy()
    if boxes.shape[-1:] != (4,):
        raise InputError(f"boxes_xyxy: expected the shape [..., 4], got {list(boxes.shape)}.")
    width, height = np.moveaxis(boxes[..., 2:] - boxes[..., :2], -1, 0)
    lengths: dict[str, Float64Array] = {
        "larger": np.maximum(width, height),
        "smaller": np.minimum(width, height),
        "width": width,
        "height": height,
        "diagonal": np.hypot(width, height),
    }
    check_choice("side", side, lengths)
    return np.asarray(factor * lengths[side])


def head_length(head_boxes_xyxy: Array) -> Float64Array:
    """Return the length of the head for PCKh, 0.6 of the diagonal of the head's box as in MPII: [..., 4] -> [...]."""
    return box_length(head_boxes_xyxy, side="diagonal", factor=0.6)


def torso_length(keypoints: Array, *, layout: Layout | str) -> Float64Array:
    """Return the distance from the left shoulder to the right hip: [..., J, 2] -> [...]; NaN where either is."""
    layout = _find_layout(layout)
    points = torch.as_tensor(keypoints).detach().cpu().double().numpy()
    ends = []
    for name in ("left_shoulder", "right_hip"):
        source = (KEYPOINT_INDEX[name],)
        if source not in layout.sources:
            raise InputError(f"{layout.name} layout: expected the point {name}, got a layout without it.")
        ends.append(points[..., layout.sources.index(source), :])
    return np.asarray(np.linalg.norm(ends[0] - ends[1], axis=-1))


@dataclasses.dataclass(frozen=True)
class PCKScores:
    """Shares of the points that count, 0 to 1, within each threshold; NaN where no point did."""

    pck: dict[float, float]
    per_group: dict[str, dict[float, float]]
    per_keypoint: dict[str, dict[float, float]]
    points: int


@dataclasses.dataclass(frozen=True)
class KeypointAPScores:
    """COCO's ten numbers for keypoints, NaN where no person could be found."""

    ap: float
    ap50: float
    ap75: float
    ap_medium: float
    ap_large: float
    ar: float
    ar50: float
    ar75: float
    ar_medium: float
    ar_large: float


class PCK(Metric):
    """PCK: the share of keypoints within a threshold of their targets.

    Args:
        layout: What the J points are, a layout or its name.
        thresholds: Distances that count as correct, as shares of the reference length.
        groups: Indices of points to score together, by name; None for the groups of the layout.
    """

    merge_key = ("layout", "thresholds", "groups")

    def __init__(
        self,
        layout: Layout | str = "sapiens308",
        *,
        thresholds: Sequence[float] = (0.05, 0.1, 0.2),
        groups: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.layout = _find_layout(layout)
        count = len(self.layout.names)
        if not thresholds or not all(threshold > 0 for threshold in thresholds):
            raise InputError(f"thresholds: expected numbers over 0, got {list(thresholds)}.")
        self.thresholds = tuple(float(threshold) for threshold in thresholds)
        chosen = layout_groups(self.layout) if groups is None else groups
        self.groups = {name: tuple(members) for name, members in chosen.items()}
        for name, members in self.groups.items():
            if not all(0 <= member < count for member in members):
                raise InputError(f"groups, {name}: expected indices from 0 to {count - 1}, got {list(members)}.")
        self.correct = np.zeros((len(self.thresholds), count), dtype=np.int64)
        self.total = np.zeros(count, dtype=np.int64)

    def update(self, prediction: Array, target: Array, *, reference: Values, mask: Array | None = None) -> None:
        """Add N people: keypoints [N, J, 2], or [J, 2] of one, and lengths in pixels `reference` [N].

        `mask` [N, J] marks the points that count: labeled, and visible if the benchmark says so. Target points that
        are not finite do not count, nor people whose reference is not a length over 0. Predicted NaN is wrong.
        """
        count = len(self.total)
        expected = _check_points("target", target, count)  # [N, J, 2]
        predicted = _check_points("prediction", prediction, count)  # [N, J, 2]
        if predicted.shape != expected.shape:
            raise InputError(f"prediction: expected the {len(expected)} people of the target, got {len(predicted)}.")
        lengths = as_row("reference", reference, len(expected), np.float64)[:, None]  # [N, 1]
        counts = as_row("mask", mask, expected[..., 0].size, np.bool_, default=True).reshape(-1, count)  # [N, J]
        counts = counts & np.isfinite(expected).all(-1) & np.isfinite(lengths) & (lengths > 0)
        distance = np.linalg.norm(predicted - expected, axis=-1)  # [N, J]
        for number, threshold in enumerate(self.thresholds):
            self.correct[number] += (counts & (distance <= threshold * lengths)).sum(0)
        self.total += counts.sum(0)

    def compute(self) -> PCKScores:
        """Return the scores of all points so far; each point counts alike."""
        names = self.layout.names
        return PCKScores(
            pck=self._accuracy(range(len(names))),
            per_group={name: self._accuracy(members) for name, members in self.groups.items()},
            per_keypoint={name: self._accuracy([i]) for i, name in enumerate(names)},
            points=int(self.total.sum()),
        )

    def _accuracy(self, members: Sequence[int]) -> dict[float, float]:
        """Return threshold -> share of these points that are near enough."""
        index = list(members)
        shares = self.correct[:, index].sum(1) / (self.total[index].sum() or np.nan)
        return dict(zip(self.thresholds, shares.tolist(), strict=True))


class KeypointAP(AveragePrecision):
    """Average precision by object keypoint similarity (OKS), as in COCO's evaluation.

    Args:
        keypoints: What the J points are: a layout, its name, or sigmas [J] of any points, for instance
            ``layout_sigmas("coco133")[91:112]`` to score left hands alone.
    """

    merge_key = ("sigmas",)
    max_detections = 20

    def __init__(self, keypoints: Layout | str | Sequence[float] = "coco17") -> None:
        super().__init__()
        if isinstance(keypoints, (Layout, str)):
            self.sigmas = layout_sigmas(keypoints)
        else:
            self.sigmas = tuple(float(sigma) for sigma in keypoints)
        if not self.sigmas or not all(sigma > 0 for sigma in self.sigmas):
            raise InputError(f"keypoints: expected sigmas over 0, got {list(self.sigmas)}.")

    def update(
        self,
        keypoints: Array,
        scores: Values,
        target_keypoints: Array,
        *,
        target_visible: Values,
        target_areas: Values,
        target_boxes_xyxy: Array | None = None,
        crowd: PerObject = None,
        ignored: PerObject = None,
    ) -> None:
        """Add one image: D detected people [D, J, 2] with scores [D], G true ones [G, J, 2].

        Args:
            keypoints: Detected points; those that are NaN are far from everything.
            scores: Confidence of each person. The 20 best count.
            target_keypoints: True points.
            target_visible: Which of them are labeled [G, J]: COCO's visibility over 0.
            target_areas: Sizes of the people in pixels [G]: of their masks, in COCO.
            target_boxes_xyxy: Boxes [G, 4]; needed where a person or crowd has no labeled point.
            crowd: Marks regions that stand for many people [G].
            ignored: Marks people that do not count [G], as people without labeled keypoints.
        """
        count = len(self.sigmas)
        detected = _check_points("keypoints", keypoints, count)  # [D, J, 2]
        truth = _check_points("target_keypoints", target_keypoints, count)  # [G, J, 2]
        confidence = as_row("scores", scores, len(detected), np.float64)
        visible = as_row("target_visible", target_visible, len(truth) * count, np.float64).reshape(-1, count) > 0
        areas = as_row("target_areas", target_areas, len(truth), np.float64)
        flags = as_row("crowd", crowd, len(truth), np.bool_, default=False)
        skipped = as_row("ignored", ignored, len(truth), np.bool_, default=False) | ~visible.any(1)
        if target_boxes_xyxy is None and not visible.any(1).all():
            raise InputError("target_boxes_xyxy: needed for people without labeled points.")
        boxes = np.zeros((len(truth), 4)) if target_boxes_xyxy is None else check_boxes(target_boxes_xyxy)
        if len(boxes) != len(truth):
            raise InputError(f"target_boxes_xyxy: expected one for each of the {len(truth)} people, got {len(boxes)}.")
        best = self.best_first(confidence)
        self.add(
            _keypoint_similarity(detected[best], truth, visible, areas, boxes, np.array(self.sigmas)),
            scores=confidence[best],
            sizes=_point_areas(detected[best]),
            target_sizes=areas,
            crowd=flags,
            ignored=skipped,
        )

    def compute(self) -> KeypointAPScores:
        precision, recall = self.precision_recall(self.matches)
        means = summarize("ap", [precision]) | summarize("ar", [recall])
        return KeypointAPScores(**{field.name: means[field.name] for field in dataclasses.fields(KeypointAPScores)})


def _keypoint_similarity(
    detected: Float64Array,
    truth: Float64Array,
    visible: BoolArray,
    areas: Float64Array,
    boxes_xyxy: Float64Array,
    sigmas: Float64Array,
) -> Float64Array:
    """Return the similarity of people by their keypoints, 0 to 1: [D, J, 2] and [G, J, 2] -> [D, G].

    The mean over labeled points of exp(−distance² / (2 · area · (2 sigma)²)). For a true person without any, distances
    are those to its box enlarged three times, over all points. `visible` is [G, J], `areas` [G], `sigmas` [J].
    """
    offset = detected[:, None] - truth[None]  # [D, G, J, 2]
    unlabeled = np.logical_not(visible.any(axis=1))  # [G]
    size = boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]  # [G, 2]
    low, high = ((boxes_xyxy[:, :2] - size)[:, None], (boxes_xyxy[:, 2:] + size)[:, None])  # [G, 1, 2] each
    outside = np.maximum(low - detected[:, None], 0) + np.maximum(detected[:, None] - high, 0)  # [D, G, J, 2]
    squares = np.where(unlabeled[:, None, None], outside, offset)
    squares = np.where(np.isnan(squares), np.inf, squares**2).sum(-1)  # [D, G, J]
    variance = 2 * (2 * sigmas) ** 2 * (areas[:, None] + np.spacing(1))  # [G, J]
    counts = visible | unlabeled[:, None]  # [G, J]
    return np.asarray(np.where(counts, np.exp(-squares / variance), 0.0).sum(-1) / np.maximum(counts.sum(-1), 1))


def _point_areas(points: Float64Array) -> Float64Array:
    """Return the areas of the boxes around people's points: [D, J, 2] -> [D]; NaN points do not count."""
    known = ~np.isnan(points)
    high, low = np.where(known, points, -np.inf).max(1), np.where(known, points, np.inf).min(1)  # [D, 2] each
    return np.asarray(np.where(known.any(1), high - low, 0.0).prod(-1))
