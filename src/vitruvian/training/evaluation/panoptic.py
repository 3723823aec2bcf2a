"""Panoptic quality: how well segments and their labels agree with the truth.

    PQ = SQ · RQ:  SQ = mean overlap of matched segments,  RQ = matched / (matched + ½ spurious + ½ missed)

A predicted and a true segment of one label match if they overlap by more than half (intersection over union), which at
most one pair can. Rules for void pixels and crowds are those of COCO: void pixels do not count in a predicted segment,
and an unmatched one that lies mostly on void or on a crowd of its label is not spurious; crowds are never missed.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vitruvian.errors import InputError
from vitruvian.images.types import IntArray
from vitruvian.training.evaluation.metric import Array, Metric, ratio

_SegmentInfo = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class PanopticGroupScores:
    """Panoptic, segmentation and recognition quality: means over `labels` labels that occurred, NaN if none did."""

    pq: float
    sq: float
    rq: float
    labels: int


@dataclasses.dataclass(frozen=True)
class PanopticScores:
    """Scores over all labels, over things and stuff alone, and of each label that occurred."""

    all: PanopticGroupScores
    things: PanopticGroupScores
    stuff: PanopticGroupScores
    per_label: dict[int, PanopticGroupScores]

    @property
    def pq(self) -> float:
        """Panoptic quality over all labels."""
        return self.all.pq


class PanopticQuality(Metric):
    """Panoptic quality of panoptic maps.

    Args:
        things: Labels of countable objects, for the scores of things and stuff; None where there is no such split, and
            all labels are things.
        void_id: Number of the pixels that belong to no segment, in both maps. Negative numbers are void too.
    """

    merge_key = ("things", "void_id")

    def __init__(self, *, things: Collection[int] | None = None, void_id: int = 0) -> None:
        self.things = None if things is None else frozenset(things)
        self.void_id = void_id
        # Of each label: segments, and the sum of the overlaps of matched ones.
        self.matched: Counter[int] = Counter()
        self.spurious: Counter[int] = Counter()
        self.missed: Counter[int] = Counter()
        self.overlaps: Counter[int] = Counter()

    def update(
        self,
        segmentation: Array,
        segments_info: Sequence[_SegmentInfo],
        target_segmentation: Array,
        target_segments_info: Sequence[_SegmentInfo],
    ) -> None:
        """Add one image.

        Maps [H, W] hold segment ids. Entries of `segments_info` have `id` and `label_id` (or COCO's `category_id`);
        those of the truth may have `iscrowd`.
        """
        predicted, truth = _segment_labels(segments_info), _segment_labels(target_segments_info)
        crowds = {int(row["id"]) for row in target_segments_info if row.get("iscrowd")}
        rows = self._segment_indices("segmentation", segmentation, predicted)
        columns = self._segment_indices("target_segmentation", target_segmentation, truth)
        if rows.shape != columns.shape:
            raise InputError(f"segmentation: expected as many pixels as the target, {len(columns)}, got {len(rows)}.")
        shape = (len(predicted) + 1, len(truth) + 1)  # void last
        areas = np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)
        predicted_areas, truth_areas = areas[:-1].sum(1), areas[:, :-1].sum(0)
        if (predicted_areas == 0).any():
            empty = [segment for segment, area in zip(predicted, predicted_areas, strict=True) if area == 0]
            raise InputError(
                f"segments_info: expected segments with pixels in the map, got none for the ids {empty[:8]}."
            )
        labels, truth_labels = (np.array([*table.values()], np.int64) for table in (predicted, truth))  # [P], [T]
        crowd = np.array([segment in crowds for segment in truth], np.bool_)  # [T]
        shared, void = areas[:-1, :-1], areas[:-1, -1]  # [P, T], [P]
        same_label = labels[:, None] == truth_labels
        overlap = ratio(shared, predicted_areas[:, None] + truth_areas - shared - void[:, None])
        matched = same_label & ~crowd & (overlap > 0.5)
        matched_labels = truth_labels[np.nonzero(matched)[1]].tolist()
        self.matched.update(matched_labels)
        for label, value in zip(matched_labels, overlap[matched].tolist(), strict=True):
            self.overlaps[label] += value
        self.missed.update(truth_labels[~matched.any(0) & ~crowd].tolist())
        excused = (shared * (same_label & crowd)).sum(1) + void
        self.spurious.update(labels[~matched.any(1) & (excused <= 0.5 * predicted_areas)].tolist())

    def compute(self) -> PanopticScores:
        labels = sorted({*self.matched, *self.spurious, *self.missed})
        per_label = {label: self._label_scores(label) for label in labels}
        split = frozenset(per_label) if self.things is None else self.things
        return PanopticScores(
            all=_mean_scores(list(per_label.values())),
            things=_mean_scores([score for label, score in per_label.items() if label in split]),
            stuff=_mean_scores([score for label, score in per_label.items() if label not in split]),
            per_label=per_label,
        )

    def _label_scores(self, label: int) -> PanopticGroupScores:
        matched = self.matched[label]
        sq = self.overlaps[label] / matched if matched else 0.0
        rq = matched / (matched + 0.5 * self.spurious[label] + 0.5 * self.missed[label])
        return PanopticGroupScores(pq=sq * rq, sq=sq, rq=rq, labels=1)

    def _segment_indices(self, name: str, segmentation: Array, labels: Mapping[int, int]) -> IntArray:
        """Return the index in `labels` of each pixel's segment, flat; void comes after the last."""
        ids = torch.as_tensor(segmentation).cpu().numpy()
        if ids.ndim != 2:
            raise InputError(f"{name}: expected the shape [H, W], got {list(ids.shape)}.")
        values, inverse = np.unique(ids.astype(np.int64), return_inverse=True)
        index = {segment: number for number, segment in enumerate(labels)}
        void = len(labels)
        table = []
        for value in values.tolist():
            if value not in index and value >= 0 and value != self.void_id:
                raise InputError(f"{name}: expected ids that are listed with a label, got {value} too.")
            table.append(void if value < 0 or value == self.void_id else index[value])
        return np.array(table, dtype=np.int64)[inverse.ravel()]  # [H · W]


def _segment_labels(segments_info: Sequence[_SegmentInfo]) -> dict[int, int]:
    """Return id -> label of segments, in order."""
    labels: dict[int, int] = {}
    for row in segments_info:
        label = row.get("label_id", row.get("category_id"))
        if label is None or "id" not in row or int(row["id"]) in labels:
            raise InputError(f"segments_info: expected entries with a label_id and a unique id, got {dict(row)}.")
        labels[int(row["id"])] = int(label)
    return labels


def _mean_scores(scores: Sequence[PanopticGroupScores]) -> PanopticGroupScores:
    """Return the means over labels."""
    if not scores:
        return PanopticGroupScores(pq=float("nan"), sq=float("nan"), rq=float("nan"), labels=0)
    pq, sq, rq = (float(np.mean([getattr(score, name) for score in scores])) for name in ("pq", "sq", "rq"))
    return PanopticGroupScores(pq=pq, sq=sq, rq=rq, labels=len(scores))
