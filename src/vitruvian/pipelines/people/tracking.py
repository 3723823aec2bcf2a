"""Tracking people through a video: boxes in, identities out.

    boxes, scores ──▶ predict all tracks ──▶ match in three rounds ──▶ update the matched, start new ones, drop old ones

Each track is a Kalman filter with constant velocity on centre, width and height; noise is relative to the person's
height. The rounds match high-score boxes by IoU; low-score boxes with the remaining visible tracks, since occluded
people have low scores; and high-score boxes again with enlarged boxes, for fast people and low frame rates. An occluded
person is remembered for a while. The state is a few arrays of T tracks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.errors import InputError
from vitruvian.ops.assignment import assign
from vitruvian.pipelines.people.detectors import PeopleDetector, run_detector
from vitruvian.pipelines.people.smoothing import SceneCuts, State, substate
from vitruvian.results.base import People, Picture

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Rows = NDArray[np.intp]
_UNTRACKED = -1  # identity of boxes whose score is too low
# Standard deviations in person heights: of a measured box, of its position and of its velocity after a step.
_BOX_NOISE, _POSITION_NOISE, _VELOCITY_NOISE = 1 / 20, 1 / 20, 1 / 40
_LOW_SCORE_IOU = 0.5  # minimum IoU of the second round
_ENLARGED_IOU = 0.1  # minimum IoU of the third round
_ENLARGEMENT = 0.4  # of a side, in each direction
_MAX_AGE_UNCONFIRMED = 2.0  # steps for which a person detected once is remembered: most are false positives
_OCCLUDED_DISCOUNT = 0.95  # visible people take precedence over occluded ones
_INFEASIBLE = 1e6  # cost of a pair below the minimum IoU
_GROWTH = 0.03  # of a predicted box for each frame since the last detection


class Tracks(NamedTuple):
    """Predicted positions of people."""

    ids: Ids  # [T]
    boxes_xyxy: NDArray[np.float32]  # [T, 4]
    scores: NDArray[np.float32]  # [T], of the last detection


@dataclass
class TrackTable:
    """All tracks, one per row. Boxes and velocities are of centre x, centre y, width and height."""

    ids: Ids  # [T]
    boxes: Floats  # [T, 4]
    velocities: Floats  # [T, 4], per step
    covariance: Floats  # [T, 4, 3]: variance of the position, covariance, variance of the velocity
    scores: Floats  # [T]
    age: Floats  # [T] steps since the last detection
    detections: Ids  # [T] number of detections

    @classmethod
    def empty(cls) -> TrackTable:
        """Return a table without tracks."""
        return cls(
            ids=np.zeros(0, np.int64),
            boxes=np.zeros((0, 4)),
            velocities=np.zeros((0, 4)),
            covariance=np.zeros((0, 4, 3)),
            scores=np.zeros(0),
            age=np.zeros(0),
            detections=np.zeros(0, np.int64),
        )


class Tracker:
    """Assigns identities to people in a video.

    Call `update` for each frame with detections, and `predict` for each frame without.

    Args:
        high_threshold: Boxes with at least this score are matched first and start new tracks.
        low_threshold: Boxes with at least this score continue a track, but do not start one.
        min_iou: Lowest IoU of a box and the predicted box of a track.
        max_age: Steps for which an occluded person is remembered.
        max_occluded: Maximum number of occluded people to remember; those occluded longest are dropped first.
    """

    def __init__(
        self,
        *,
        high_threshold: float = 0.5,
        low_threshold: float = 0.1,
        min_iou: float = 0.2,
        max_age: float = 30.0,
        max_occluded: int = 256,
    ) -> None:
        if not 0 <= low_threshold <= high_threshold <= 1:
            raise InputError(
                "low_threshold, high_threshold: expected 0 ≤ low_threshold ≤ high_threshold ≤ 1, got "
                f"{low_threshold} and {high_threshold}."
            )
        if not 0 < min_iou < 1 or max_age < 0 or max_occluded < 1:
            raise InputError(
                f"Tracker: expected 0 < min_iou < 1, max_age ≥ 0 and max_occluded ≥ 1, got {min_iou}, {max_age} and "
                f"{max_occluded}."
            )
        self.high_threshold, self.low_threshold, self.min_iou = high_threshold, low_threshold, min_iou
        self.max_age, self.max_occluded = max_age, max_occluded
        self.next_id = 1
        self.table = TrackTable.empty()

    def update(self, boxes_xyxy: ArrayLike, scores: ArrayLike, *, steps: float = 1.0) -> Ids:
        """Match the people detected in a frame with the tracks.

        Args:
            boxes_xyxy: Boxes [P, 4].
            scores: Their scores [P].
            steps: Frames since the last call of `update` or `predict`.

        Returns:
            Identities int64 [P]; -1 for boxes whose score is too low to start a track.
        """
        boxes, confidence = _check_people(boxes_xyxy, scores)
        self._advance(steps)
        table = self.table
        ids = np.full(len(boxes), _UNTRACKED, np.int64)
        unmatched: Rows = np.arange(len(table.ids))
        visible = table.age <= steps  # [T] at the last call

        def match(tracks: Rows, people: Rows, similarity: Floats, min_similarity: float) -> None:
            nonlocal unmatched
            for track, person in _best_pairs(similarity, min_similarity):
                ids[people[person]] = table.ids[tracks[track]]
            unmatched = unmatched[~np.isin(table.ids[unmatched], ids)]

        high = np.flatnonzero(confidence >= self.high_threshold)
        similarity = box_iou(_to_corners(table.boxes), boxes[high])  # [T, P]
        match(unmatched, high, similarity * np.where(visible, 1, _OCCLUDED_DISCOUNT)[:, None], self.min_iou)
        low = np.flatnonzero((confidence >= self.low_threshold) & (confidence < self.high_threshold))
        candidates = unmatched[visible[unmatched]]
        match(candidates, low, box_iou(_to_corners(table.boxes[candidates]), boxes[low]), _LOW_SCORE_IOU)
        rest = high[ids[high] == _UNTRACKED]
        match(unmatched, rest, _enlarged_iou(table.boxes[unmatched], boxes[rest]), _ENLARGED_IOU)

        self._drop_old(unmatched)
        tracked = ids != _UNTRACKED
        self._correct(ids[tracked], boxes[tracked], confidence[tracked])
        new = high[ids[high] == _UNTRACKED]
        ids[new] = self._start(boxes[new], confidence[new])
        return ids

    def predict(self, steps: float = 1.0) -> Tracks:
        """Advance without detections, and return the predicted boxes of visible people."""
        visible = self.table.age <= 0
        self._advance(steps)
        self.table.age[visible] = 0
        boxes = _to_corners(self.table.boxes[visible]).astype(np.float32)
        return Tracks(self.table.ids[visible].copy(), boxes, self.table.scores[visible].astype(np.float32))

    def reset(self) -> None:
        """Drop all tracks, as after a scene cut. Identities are not reused."""
        self.table = TrackTable.empty()

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        table = {field.name: getattr(self.table, field.name).copy() for field in fields(self.table)}
        return table | {"next_id": np.array(self.next_id)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        self.table = TrackTable(**{field.name: np.array(state[field.name]) for field in fields(TrackTable)})
        self.next_id = int(state["next_id"])

    # ------------------------------------------------------------------------------------------------ Kalman filter

    def _advance(self, steps: float) -> None:
        """Predict all tracks: constant velocity, growing covariance."""
        table = self.table
        # Boxes grow or shrink just before people disappear: the size of occluded people stays.
        table.velocities[:, 2:] = np.where(table.age[:, None] > 0, 0, table.velocities[:, 2:])
        table.boxes = table.boxes + table.velocities * steps
        table.boxes[:, 2:] = np.maximum(table.boxes[:, 2:], 1)
        height = table.boxes[:, 3:]  # [T, 1]
        position, cross, velocity = np.moveaxis(table.covariance, -1, 0)  # [T, 4] each
        table.covariance = np.stack(
            (
                position + 2 * steps * cross + steps**2 * velocity + steps * (_POSITION_NOISE * height) ** 2,
                cross + steps * velocity,
                velocity + steps * (_VELOCITY_NOISE * height) ** 2,
            ),
            axis=-1,
        )  # [T, 4, 3]
        table.age = table.age + steps

    def _correct(self, ids: Ids, boxes: Floats, scores: Floats) -> None:
        """Correct tracks with the boxes that were matched to them."""
        table = self.table
        order = np.argsort(table.ids)
        rows = order[np.searchsorted(table.ids, ids, sorter=order)]
        measured = _to_centers(boxes)  # [P, 4]
        position, cross, velocity = np.moveaxis(table.covariance[rows], -1, 0)  # [P, 4] each
        total = position + (_BOX_NOISE * measured[:, 3:]) ** 2
        residual = measured - table.boxes[rows]
        table.boxes[rows] += position / total * residual
        table.velocities[rows] += cross / total * residual
        remaining = 1 - position / total
        table.covariance[rows] = np.stack((position * remaining, cross * remaining, velocity - cross**2 / total), -1)
        table.scores[rows], table.age[rows] = scores, 0
        table.detections[rows] += 1

    def _start(self, boxes: Floats, scores: Floats) -> Ids:
        """Start a track for each box, and return their identities [P]."""
        count, table = len(boxes), self.table
        height = (boxes[:, 3] - boxes[:, 1])[:, None, None]  # [P, 1, 1]
        # The position is as certain as the box, the velocity can be that of any person.
        deviation = np.array([2 * _BOX_NOISE, 0, 5 * _VELOCITY_NOISE]) * np.broadcast_to(height, (count, 4, 1))
        new = TrackTable(
            ids=self.next_id + np.arange(count),
            boxes=_to_centers(boxes),
            velocities=np.zeros((count, 4)),
            covariance=deviation**2,  # [P, 4, 3]
            scores=scores,
            age=np.zeros(count),
            detections=np.ones(count, np.int64),
        )
        self.next_id += count
        self.table = TrackTable(
            **{f.name: np.concatenate((getattr(table, f.name), getattr(new, f.name))) for f in fields(table)}
        )
        return new.ids

    def _drop_old(self, unmatched: Rows) -> None:
        """Drop unmatched tracks that are too old, and of the others the oldest beyond `max_occluded`."""
        table = self.table
        limit = np.where(table.detections[unmatched] < 2, min(_MAX_AGE_UNCONFIRMED, self.max_age), self.max_age)
        remembered = unmatched[table.age[unmatched] <= limit]
        newest = remembered[np.argsort(table.age[remembered], kind="stable")][: self.max_occluded]
        kept = np.ones(len(table.ids), np.bool_)
        kept[unmatched] = False
        kept[newest] = True
        self.table = TrackTable(**{field.name: getattr(table, field.name)[kept] for field in fields(table)})


class TrackedDetector:
    """A people detector for the frames of one video, in order, that assigns identities.

    Args:
        detector: The detector. Give it a low threshold: the tracker handles low scores.
        every: Run the detector in every so many frames, and after a scene cut; in between, tracks are predicted.
        tracker: The tracker.
        checkpoint_every: Keep the state before each frame whose number is a multiple of this, for `state_before`; 0 for
            none.
    """

    def __init__(
        self,
        detector: PeopleDetector,
        *,
        every: int = 1,
        tracker: Tracker | None = None,
        checkpoint_every: int = 0,
    ) -> None:
        if every < 1 or checkpoint_every < 0:
            raise InputError(f"every, checkpoint_every: expected at least 1 and 0, got {every} and {checkpoint_every}.")
        self._detector, self._every, self._checkpoint_every = detector, every, checkpoint_every
        self.name = detector.name
        self._tracker = tracker or Tracker()
        self._cuts = SceneCuts()
        self._since = every  # frames since the last detection
        self._number = 0
        self._checkpoints: dict[int, State] = {}

    def find(self, image: Picture, /) -> People:
        """Return the people in the next frame."""
        return self.find_in(image, source="", frame=self._number)

    def find_in(self, image: Picture, /, *, source: str, frame: int | None) -> People:
        """Return the people in a frame, which must be the next one."""
        self._number = self._number if frame is None else frame
        if self._checkpoint_every and self._number % self._checkpoint_every == 0:
            self._checkpoints[self._number] = self.state()
        if self._cuts(image):
            self._tracker.reset()
            self._since = self._every
        people = self._detect(image, source) if self._since >= self._every else self._predict()
        self._since += 1
        self._number += 1
        return people

    def _detect(self, image: Picture, source: str) -> People:
        detected = run_detector(self._detector, image, source=source, frame=self._number)
        sides = detected.boxes_xyxy[:, 2:] - detected.boxes_xyxy[:, :2]  # [P, 2]
        valid = np.isfinite(detected.boxes_xyxy).all(1) & np.isfinite(detected.scores) & (sides > 0).all(1)  # [P]
        boxes, scores = detected.boxes_xyxy[valid], detected.scores[valid]
        ids = self._tracker.update(boxes, scores)
        self._since = 0
        tracked = ids != _UNTRACKED
        return People(
            boxes_xyxy=boxes[tracked], scores=scores[tracked], ids=ids[tracked], finder=self.name, note=detected.note
        )

    def _predict(self) -> People:
        tracks = self._tracker.predict()
        center = (tracks.boxes_xyxy[:, :2] + tracks.boxes_xyxy[:, 2:]) / 2  # [P, 2]
        half = (tracks.boxes_xyxy[:, 2:] - center) * (1 + _GROWTH * self._since)
        boxes = np.concatenate((center - half, center + half), axis=1).astype(np.float32)
        return People(boxes_xyxy=boxes, scores=tracks.scores, ids=tracks.ids, finder=self.name)

    def state_before(self, frame: int) -> State:
        """Return the state before a frame, and drop older checkpoints."""
        state = self._checkpoints.get(frame, self.state())
        self._checkpoints = {number: state for number, state in self._checkpoints.items() if number > frame}
        return state

    def state(self) -> State:
        """Return the state as arrays, for `restore`."""
        tracker = {f"tracker_{name}": value for name, value in self._tracker.state().items()}
        cuts = {f"cuts_{name}": value for name, value in self._cuts.state().items()}
        return tracker | cuts | {"since": np.array(self._since), "number": np.array(self._number)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from what `state` returned."""
        self._tracker.restore(substate(state, "tracker_"))
        self._cuts.restore(substate(state, "cuts_"))
        self._since, self._number = int(state["since"]), int(state["number"])


# ------------------------------------------------------------------------------------------------------ matching


def _enlarged_iou(tracks: Floats, boxes: Floats) -> Floats:
    """Return the IoU [T, P] of enlarged boxes, zero if heights differ too much to be one person."""
    enlarged, measured = tracks.copy(), _to_centers(boxes)
    ratio = enlarged[:, None, 3] / measured[None, :, 3]  # [T, P]
    enlarged[:, 2:] *= 1 + 2 * _ENLARGEMENT
    measured[:, 2:] *= 1 + 2 * _ENLARGEMENT
    return np.where((ratio > 0.5) & (ratio < 2), box_iou(_to_corners(enlarged), _to_corners(measured)), 0)


def _best_pairs(similarity: Floats, min_similarity: float) -> list[tuple[int, int]]:
    """Match rows and columns [T, P] for the largest total similarity; pairs below the minimum are left out."""
    costs = np.where(similarity >= min_similarity, 1 - similarity, _INFEASIBLE)
    pairs = np.stack(assign(costs), axis=1)  # [n, 2]
    return [(row, column) for row, column in pairs.tolist() if similarity[row, column] >= min_similarity]


def box_iou(one: Floats, other: Floats) -> Floats:
    """Return the IoU of every two boxes: [T, 4], [P, 4] -> [T, P]."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])  # [T, P, 2]
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    intersection = np.prod(np.maximum(high - low, 0), axis=-1)  # [T, P]
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1) for boxes in (one, other)]
    union: Floats = areas[0][:, None] + areas[1][None] - intersection
    iou: Floats = intersection / np.maximum(union, 1e-9)
    return iou


def _to_centers(corners: Floats) -> Floats:
    """Convert corners to centre x, centre y, width and height: [P, 4] -> [P, 4]."""
    return np.concatenate(((corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]), axis=1)


def _to_corners(centers: Floats) -> Floats:
    """Convert centre x, centre y, width and height to corners: [P, 4] -> [P, 4]."""
    return np.concatenate((centers[:, :2] - centers[:, 2:] / 2, centers[:, :2] + centers[:, 2:] / 2), axis=1)


def _check_people(boxes_xyxy: ArrayLike, scores: ArrayLike) -> tuple[Floats, Floats]:
    """Check the boxes [P, 4] and scores [P] of a frame."""
    boxes, confidence = np.asarray(boxes_xyxy, np.float64), np.asarray(scores, np.float64)
    boxes = boxes.reshape(0, 4) if boxes.size == 0 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4 or confidence.shape != (len(boxes),):
        raise InputError(
            "boxes_xyxy, scores: expected the shapes [P, 4], [P], got "
            f"{list(boxes.shape)} and {list(confidence.shape)}."
        )
    if not np.isfinite(boxes).all() or not np.isfinite(confidence).all() or not (boxes[:, 2:] > boxes[:, :2]).all():
        raise InputError("boxes_xyxy, scores: expected finite boxes with some area. Drop the others first.")
    return boxes, confidence
