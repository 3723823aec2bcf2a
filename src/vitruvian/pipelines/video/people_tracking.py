"""Tracking people through a video: boxes in, identities out.

    boxes, scores ──▶ predict all tracks ──▶ match in three rounds ──▶ update the matched, start new ones, drop old ones

Each track is a Kalman filter with constant velocity on center, width and height; noise is relative to the person's
height. The rounds match high-score boxes by IoU; low-score boxes with the remaining visible tracks, since occluded
people have low scores; and high-score boxes again with enlarged boxes, for fast people and low frame rates. An occluded
person is remembered for a while. The state is one array of T tracks.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.errors import InputError
from vitruvian.images.boxes import box_iou
from vitruvian.images.types import Float64Array, IntArray, RgbImage
from vitruvian.ops.assignment import assign
from vitruvian.pipelines.people.detectors import PeopleDetector, run_detector
from vitruvian.pipelines.video.smoothing import UNTRACKED, SceneCuts
from vitruvian.pipelines.video.state import Snapshots, State, Stateful
from vitruvian.results.base import People

Rows = NDArray[np.intp]
# A track. Boxes and velocities are of center x, center y, width and height.
_TRACK = np.dtype(
    [
        ("id", np.int64),
        ("box", np.float64, 4),
        ("velocity", np.float64, 4),  # per step
        ("covariance", np.float64, (4, 3)),  # variance of the position, covariance, variance of the velocity
        ("score", np.float64),
        ("age", np.float64),  # steps since the last detection
        ("detections", np.int64),
    ]
)
_HIGH_SCORE = 0.5  # boxes from this score on are matched first and start new tracks
_LOW_SCORE = 0.1  # boxes from this score on continue a track, but do not start one
# Standard deviations in person heights: of a measured box, of its position and of its velocity after a step.
_BOX_NOISE, _POSITION_NOISE, _VELOCITY_NOISE = 1 / 20, 1 / 20, 1 / 40
_MIN_IOU, _LOW_SCORE_IOU, _ENLARGED_IOU = 0.2, 0.5, 0.1  # of the three rounds
_ENLARGEMENT = 0.4  # of a side, in each direction
_MAX_AGE_UNCONFIRMED = 2.0  # steps for which a person detected once is remembered: most are false positives
_OCCLUDED_DISCOUNT = 0.95  # visible people take precedence over occluded ones
_INFEASIBLE = 1e6  # cost of a pair below the minimum IoU
_GROWTH = 0.03  # of a predicted box for each frame since the last detection


class PersonTracker(Stateful):
    """Assigns identities to people in a video.

    Call `update` for each frame with detections, and `predict` for each frame without.

    Args:
        max_age: Steps for which an occluded person is remembered.
        max_occluded: Maximum number of occluded people to remember; those occluded longest are dropped first.
    """

    state_fields = ("tracks", "next_id")

    def __init__(self, *, max_age: float = 30.0, max_occluded: int = 256) -> None:
        self.max_age, self.max_occluded = max_age, max_occluded
        self.next_id = 1
        self.tracks = np.zeros(0, _TRACK)  # [T]

    def update(self, boxes_xyxy: ArrayLike, scores: ArrayLike) -> IntArray:
        """Match the people detected in the next frame with the tracks.

        Args:
            boxes_xyxy: Boxes [P, 4].
            scores: Their scores [P].

        Returns:
            Identities int64 [P]; -1 for boxes whose score is too low to start a track.
        """
        boxes, confidence = np.asarray(boxes_xyxy, np.float64), np.asarray(scores, np.float64)
        boxes = boxes.reshape(0, 4) if boxes.size == 0 else boxes
        if boxes.ndim != 2 or boxes.shape[1] != 4 or confidence.shape != (len(boxes),):
            shapes = f"{list(boxes.shape)} and {list(confidence.shape)}"
            raise InputError(f"boxes_xyxy, scores: expected the shapes [P, 4], [P], got {shapes}.")
        if not np.isfinite([*boxes.T, confidence]).all() or not (boxes[:, 2:] > boxes[:, :2]).all():
            raise InputError("boxes_xyxy, scores: expected finite boxes with some area. Drop the others first.")
        self._advance()
        tracks = self.tracks
        ids = np.full(len(boxes), UNTRACKED, np.int64)
        unmatched: Rows = np.arange(len(tracks))
        visible = tracks["age"] <= 1  # [T] in the last frame

        def match(rows: Rows, people: Rows, similarity: Float64Array, min_similarity: float) -> None:
            nonlocal unmatched
            for row, person in _best_pairs(similarity, min_similarity):
                ids[people[person]] = tracks["id"][rows[row]]
            unmatched = unmatched[~np.isin(tracks["id"][unmatched], ids)]

        high = np.flatnonzero(confidence >= _HIGH_SCORE)
        similarity = box_iou(_to_corners(tracks["box"]), boxes[high])  # [T, P]
        match(unmatched, high, similarity * np.where(visible, 1, _OCCLUDED_DISCOUNT)[:, None], _MIN_IOU)
        low = np.flatnonzero((confidence >= _LOW_SCORE) & (confidence < _HIGH_SCORE))
        candidates = unmatched[visible[unmatched]]
        match(candidates, low, box_iou(_to_corners(tracks["box"][candidates]), boxes[low]), _LOW_SCORE_IOU)
        rest = high[ids[high] == UNTRACKED]
        match(unmatched, rest, _enlarged_iou(tracks["box"][unmatched], boxes[rest]), _ENLARGED_IOU)

        self._drop_old(unmatched)
        tracked = ids != UNTRACKED
        self._correct(ids[tracked], boxes[tracked], confidence[tracked])
        new = high[ids[high] == UNTRACKED]
        ids[new] = self._start(boxes[new], confidence[new])
        return ids

    def predict(self) -> tuple[IntArray, Float64Array, Float64Array]:
        """Advance by a frame without detections; return visible people: ids [T], predicted boxes [T, 4], scores [T]."""
        visible = self.tracks["age"] <= 0
        self._advance()
        self.tracks["age"][visible] = 0
        shown = self.tracks[visible]
        return shown["id"], _to_corners(shown["box"]), shown["score"]

    def reset(self) -> None:
        """Drop all tracks, as after a scene cut. Identities are not reused."""
        self.tracks = self.tracks[:0]

    def _advance(self) -> None:
        """Predict all tracks one step ahead: constant velocity, growing covariance."""
        tracks = self.tracks
        # Boxes grow or shrink just before people disappear: the size of occluded people stays.
        tracks["velocity"][:, 2:] = np.where(tracks["age"][:, None] > 0, 0, tracks["velocity"][:, 2:])
        tracks["box"] += tracks["velocity"]
        tracks["box"][:, 2:] = np.maximum(tracks["box"][:, 2:], 1)
        height = tracks["box"][:, 3:]  # [T, 1]
        position, cross, velocity = np.moveaxis(tracks["covariance"], -1, 0).copy()  # [T, 4] each
        tracks["covariance"][..., 0] = position + 2 * cross + velocity + (_POSITION_NOISE * height) ** 2
        tracks["covariance"][..., 1] = cross + velocity
        tracks["covariance"][..., 2] = velocity + (_VELOCITY_NOISE * height) ** 2
        tracks["age"] += 1

    def _correct(self, ids: IntArray, boxes: Float64Array, scores: Float64Array) -> None:
        """Correct tracks with the boxes that were matched to them."""
        tracks = self.tracks
        order = np.argsort(tracks["id"])
        rows = order[np.searchsorted(tracks["id"], ids, sorter=order)]
        measured = _to_centers(boxes)  # [P, 4]
        position, cross, velocity = np.moveaxis(tracks["covariance"][rows], -1, 0)  # [P, 4] each
        total = position + (_BOX_NOISE * measured[:, 3:]) ** 2
        residual = measured - tracks["box"][rows]
        tracks["box"][rows] += position / total * residual
        tracks["velocity"][rows] += cross / total * residual
        remaining = 1 - position / total
        updated = np.stack((position * remaining, cross * remaining, velocity - cross**2 / total), -1)
        tracks["covariance"][rows] = updated
        tracks["score"][rows], tracks["age"][rows] = scores, 0
        tracks["detections"][rows] += 1

    def _start(self, boxes: Float64Array, scores: Float64Array) -> IntArray:
        """Start a track for each box, and return their identities [P]."""
        new = np.zeros(len(boxes), _TRACK)
        new["id"] = self.next_id + np.arange(len(boxes))
        new["box"], new["score"], new["detections"] = _to_centers(boxes), scores, 1
        # The position is as certain as the box, the velocity can be that of any person.
        height = (boxes[:, 3] - boxes[:, 1])[:, None, None]  # [P, 1, 1]
        new["covariance"] = (np.array([2 * _BOX_NOISE, 0, 5 * _VELOCITY_NOISE]) * height) ** 2  # [P, 4, 3]
        self.next_id += len(boxes)
        self.tracks = np.concatenate((self.tracks, new))
        ids: IntArray = new["id"]
        return ids

    def _drop_old(self, unmatched: Rows) -> None:
        """Drop unmatched tracks that are too old, and of the others the oldest beyond `max_occluded`."""
        candidates = self.tracks[unmatched]
        limit = np.where(candidates["detections"] < 2, min(_MAX_AGE_UNCONFIRMED, self.max_age), self.max_age)
        remembered = unmatched[candidates["age"] <= limit]
        newest = remembered[np.argsort(self.tracks["age"][remembered], kind="stable")][: self.max_occluded]
        self.tracks = np.delete(self.tracks, np.setdiff1d(unmatched, newest))


class TrackedDetector(Stateful):
    """A people detector for the frames of one video, in order, that assigns identities.

    Args:
        detector: The detector. Give it a low threshold: the tracker handles low scores. Identities that it knows, such
            as those of a `TrackFile`, are kept.
        every: Run the detector every N frames, and after a scene cut; in between, tracks are predicted.
        snapshot_every: Store the state before each frame whose number is a multiple of this, for `state_before`; 0
            for none.
    """

    state_fields = ("_tracker", "_cuts", "_since", "_number")

    def __init__(self, detector: PeopleDetector, *, every: int = 1, snapshot_every: int = 0) -> None:
        if every < 1 or snapshot_every < 0:
            raise InputError(f"every, snapshot_every: expected at least 1 and 0, got {every} and {snapshot_every}.")
        self._detector, self._every = detector, every
        self.name = detector.name
        self._tracker = PersonTracker()
        self._cuts = SceneCuts()
        self._since = every  # frames since the last detection
        self._number = 0
        self._snapshots = Snapshots(snapshot_every)

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in the next frame."""
        return self.detect_in(image, source="", frame=self._number)

    def detect_in(self, image: RgbImage, /, *, source: str, frame: int | None) -> People:
        """Return the people in a frame, which must be the next one."""
        number = self._number if frame is None else frame
        self._snapshots.store_before(number, self._number - 1, self.state)
        self._number = number
        if self._cuts(image):
            self._tracker.reset()
            self._since = self._every
        people = self._detect(image, source) if self._since >= self._every else self._predict()
        self._since += 1
        self._number += 1
        return people

    def _detect(self, image: RgbImage, source: str) -> People:
        detected = run_detector(self._detector, image, source=source, frame=self._number)
        sides = detected.boxes_xyxy[:, 2:] - detected.boxes_xyxy[:, :2]  # [P, 2]
        valid = np.isfinite(detected.boxes_xyxy).all(1) & np.isfinite(detected.scores) & (sides > 0).all(1)  # [P]
        boxes, scores = detected.boxes_xyxy[valid], detected.scores[valid]
        if detected.ids is not None:
            self._since = self._every  # detects in each frame
            return replace(detected, boxes_xyxy=boxes, scores=scores, ids=detected.ids[valid])
        ids = self._tracker.update(boxes, scores)
        self._since = 0
        tracked = ids != UNTRACKED
        return People(
            boxes_xyxy=boxes[tracked], scores=scores[tracked], ids=ids[tracked], detector=self.name, note=detected.note
        )

    def _predict(self) -> People:
        ids, corners, scores = self._tracker.predict()
        boxes = _to_centers(corners)
        boxes[:, 2:] *= 1 + _GROWTH * self._since
        return People(
            boxes_xyxy=_to_corners(boxes).astype(np.float32),
            scores=scores.astype(np.float32),
            ids=ids,
            detector=self.name,
        )

    def state_before(self, frame: int) -> State:
        """Return the state before a frame, and drop older snapshots."""
        return self._snapshots.state_before(frame, self.state)


def _enlarged_iou(tracks: Float64Array, boxes: Float64Array) -> Float64Array:
    """Return the IoU [T, P] of enlarged boxes, zero if heights differ too much to be one person."""
    enlarged, measured = tracks.copy(), _to_centers(boxes)
    ratio = enlarged[:, None, 3] / measured[None, :, 3]  # [T, P]
    enlarged[:, 2:] *= 1 + 2 * _ENLARGEMENT
    measured[:, 2:] *= 1 + 2 * _ENLARGEMENT
    return np.where((ratio > 0.5) & (ratio < 2), box_iou(_to_corners(enlarged), _to_corners(measured)), 0)


def _best_pairs(similarity: Float64Array, min_similarity: float) -> list[tuple[int, int]]:
    """Match rows and columns [T, P] for the largest total similarity; pairs below the minimum are left out."""
    costs = np.where(similarity >= min_similarity, 1 - similarity, _INFEASIBLE)
    pairs = np.stack(assign(costs), axis=1)  # [n, 2]
    return [(row, column) for row, column in pairs.tolist() if similarity[row, column] >= min_similarity]


def _to_centers(corners: Float64Array) -> Float64Array:
    """Convert corners to center x, center y, width and height: [P, 4] -> [P, 4]."""
    return np.concatenate(((corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]), axis=1)


def _to_corners(centers: Float64Array) -> Float64Array:
    """Convert center x, center y, width and height to corners: [P, 4] -> [P, 4]."""
    return np.concatenate((centers[:, :2] - centers[:, 2:] / 2, centers[:, :2] + centers[:, 2:] / 2), axis=1)
