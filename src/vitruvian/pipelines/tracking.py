"""Who is who from frame to frame: boxes in, identities out.

    boxes, scores ──▶ move every track on ──▶ match in three rounds ──▶ correct the matched, start new ones, forget old

Each track is a Kalman filter with constant velocity on centre, width and height; noise grows with the person's height.
Rounds: sure boxes with tracks by overlap (and keypoints, where there are any); unsure boxes with the tracks that are
left, as people half hidden have low scores; and sure boxes again with widened boxes, for fast people and low frame
rates. A hidden person is remembered for a while. All memory is a few arrays of T
tracks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.errors import InputError

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
NOBODY = -1
# Standard deviations in person heights: of a box, of its place after a step, of its speed after a step.
BOX_NOISE, PLACE_NOISE, SPEED_NOISE = 1 / 20, 1 / 20, 1 / 40
UNSURE_OVERLAP = 0.5  # unsure boxes must fit well
WIDE_OVERLAP = 0.1
GLIMPSE_PATIENCE = 2.0  # steps for which a person seen only once is remembered: most such are mistakes of the finder
WIDENING = 0.4  # of a side, each way
HIDDEN_DISCOUNT = 0.95  # people in sight come before people who were hidden
JOINT_REACH = 0.1  # of the box's size: how far a joint moves before it stops counting as the same
NEVER = 1e6  # cost of a pair that must not be


class Tracks(NamedTuple):
    """Where people should be now."""

    ids: Ids  # [T]
    boxes_xyxy: NDArray[np.float32]  # [T, 4]
    scores: NDArray[np.float32]  # [T], of the last box of each


@dataclass
class TrackTable:
    """All tracks, one a row. Places and speeds are of centre x, centre y, width and height."""

    ids: Ids  # [T]
    places: Floats  # [T, 4]
    speeds: Floats  # [T, 4], a step
    spread: Floats  # [T, 4, 3]: variance of the place, covariance, variance of the speed
    scores: Floats  # [T]
    hidden: Floats  # [T] steps since it was last seen
    sightings: Ids  # [T]
    joints: Floats  # [T, J, 2], NaN where unknown

    @classmethod
    def empty(cls) -> TrackTable:
        """Return a table without tracks."""
        count = np.zeros(0, np.int64)
        four = np.zeros((0, 4))
        return cls(count, four, four, np.zeros((0, 4, 3)), np.zeros(0), np.zeros(0), count, np.zeros((0, 0, 2)))

    def keep(self, rows: NDArray[Any]) -> None:
        """Keep only some rows."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[rows])


class Tracker:
    """Gives people in a video identities that last.

    Call `update` for each frame whose people were looked for; for a frame in between call `predict`, and `correct` if
    more is known by then.

    Args:
        sure: Boxes with at least this score are matched first and start new tracks.
        unsure: Boxes with at least this score can go on with a track, but not start one.
        min_overlap: Lowest similarity, from 0 to 1, of a box and the place where a track should be.
        patience: Steps for which a hidden person is remembered.
        max_hidden: Largest number of hidden people in memory; those hidden longest are forgotten first.
    """

    def __init__(
        self,
        *,
        sure: float = 0.5,
        unsure: float = 0.1,
        min_overlap: float = 0.2,
        patience: float = 30.0,
        max_hidden: int = 256,
    ) -> None:
        if not 0 <= unsure <= sure <= 1:
            raise InputError(f"sure, unsure: expected 0 ≤ unsure ≤ sure ≤ 1, got {sure} and {unsure}.")
        if not 0 < min_overlap < 1 or patience < 0 or max_hidden < 1:
            raise InputError(
                f"Tracker: expected 0 < min_overlap < 1, patience ≥ 0 and max_hidden ≥ 1, got {min_overlap}, "
                f"{patience} and {max_hidden}."
            )
        self.sure, self.unsure, self.min_overlap = sure, unsure, min_overlap
        self.patience, self.max_hidden = patience, max_hidden
        self.next_id = 1
        self.table = TrackTable.empty()

    def update(
        self, boxes_xyxy: ArrayLike, scores: ArrayLike, keypoints: ArrayLike | None = None, *, steps: float = 1.0
    ) -> Ids:
        """Match the people found in a frame with those known, and return their identities [P].

        Args:
            boxes_xyxy: Boxes [P, 4].
            scores: How sure they are [P].
            keypoints: Joints [P, J, 2], which help to tell people apart who overlap.
            steps: Frames since the last call of `update` or `predict`.

        Returns:
            int64 [P]; -1 for boxes that are too unsure to be anyone.
        """
        boxes, sureness, joints = checked_people(boxes_xyxy, scores, keypoints)
        self.move(steps)
        self.fit_joints(joints)
        ids = np.full(len(boxes), NOBODY, np.int64)
        free_tracks = np.arange(len(self.table.ids))
        sure = np.flatnonzero(sureness >= self.sure)
        seen_before = self.table.hidden <= steps  # [T] in sight at the last call

        def match(tracks: NDArray[Any], people: NDArray[Any], similarity: Floats, lowest: float) -> None:
            nonlocal free_tracks
            for track, person in best_pairs(similarity, lowest=lowest):
                ids[people[person]] = self.table.ids[tracks[track]]
            free_tracks = free_tracks[~np.isin(self.table.ids[free_tracks], ids)]

        likeness = self.similarity(free_tracks, boxes[sure], joints[sure])
        match(free_tracks, sure, likeness * np.where(seen_before, 1, HIDDEN_DISCOUNT)[:, None], self.min_overlap)
        unsure = np.flatnonzero((sureness >= self.unsure) & (sureness < self.sure))
        in_sight = free_tracks[seen_before[free_tracks]]
        match(in_sight, unsure, self.similarity(in_sight, boxes[unsure], joints[unsure]), UNSURE_OVERLAP)
        rest = sure[ids[sure] == NOBODY]
        match(free_tracks, rest, self.wide_similarity(free_tracks, boxes[rest]), WIDE_OVERLAP)

        self.forget(free_tracks)
        known = ids != NOBODY
        self.absorb(ids[known], boxes[known], sureness[known], joints[known])
        fresh = sure[ids[sure] == NOBODY]
        ids[fresh] = self.start(boxes[fresh], sureness[fresh], joints[fresh])
        return ids

    def predict(self, steps: float = 1.0) -> Tracks:
        """Move on without looking, and return where the people in sight should be."""
        in_sight = self.table.hidden <= 0
        self.move(steps)
        self.table.hidden[in_sight] = 0
        boxes = corners(self.table.places[in_sight]).astype(np.float32)
        return Tracks(self.table.ids[in_sight].copy(), boxes, self.table.scores[in_sight].astype(np.float32))

    def correct(self, ids: ArrayLike, boxes_xyxy: ArrayLike, keypoints: ArrayLike | None = None) -> None:
        """Tell where known people [P] really are in this frame, for instance around their keypoints."""
        people = np.asarray(ids, np.int64)
        boxes, _, joints = checked_people(boxes_xyxy, np.ones(len(people)), keypoints)
        known = np.isin(people, self.table.ids)
        self.fit_joints(joints)
        rows = self.rows_of(people[known])
        self.absorb(people[known], boxes[known], self.table.scores[rows], joints[known], sightings=0)

    def reset(self) -> None:
        """Forget everyone, as after a cut; identities are not given twice."""
        self.table = TrackTable.empty()

    def state(self) -> dict[str, NDArray[Any]]:
        """Return all memory as arrays, for `restore`."""
        table = {field.name: getattr(self.table, field.name).copy() for field in fields(self.table)}
        return table | {"next_id": np.array(self.next_id)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.table = TrackTable(**{field.name: np.array(state[field.name]) for field in fields(TrackTable)})
        self.next_id = int(state["next_id"])

    # ------------------------------------------------------------------------------------------------ the table

    def move(self, steps: float) -> None:
        """Let every track go on with its speed, and grow less sure of it."""
        table = self.table
        # Hidden people seem to grow or shrink just before they vanish: their size is held.
        table.speeds[:, 2:] = np.where(table.hidden[:, None] > 0, 0, table.speeds[:, 2:])
        shift = table.speeds * steps
        table.places = table.places + shift
        table.places[:, 2:] = np.maximum(table.places[:, 2:], 1)
        table.joints = table.joints + shift[:, None, :2]
        height = table.places[:, 3:]  # [T, 1]
        place, both, speed = np.moveaxis(table.spread, -1, 0)  # [T, 4] each
        table.spread = np.stack(
            (
                place + 2 * steps * both + steps**2 * speed + steps * (PLACE_NOISE * height) ** 2,
                both + steps * speed,
                speed + steps * (SPEED_NOISE * height) ** 2,
            ),
            axis=-1,
        )  # [T, 4, 3]
        table.hidden = table.hidden + steps

    def absorb(self, ids: Ids, boxes: Floats, scores: Floats, joints: Floats, sightings: int = 1) -> None:
        """Correct tracks with the boxes that were found for them."""
        table, rows = self.table, self.rows_of(ids)
        measured = centres(boxes)  # [P, 4]
        place, both, speed = np.moveaxis(table.spread[rows], -1, 0)  # [P, 4] each
        total = place + (BOX_NOISE * measured[:, 3:]) ** 2
        surprise = measured - table.places[rows]
        table.places[rows] += place / total * surprise
        table.speeds[rows] += both / total * surprise
        left = 1 - place / total
        table.spread[rows] = np.stack((place * left, both * left, speed - both**2 / total), axis=-1)
        table.scores[rows], table.hidden[rows] = scores, 0
        table.sightings[rows] += sightings
        if joints.shape[1]:
            table.joints[rows] = joints

    def start(self, boxes: Floats, scores: Floats, joints: Floats) -> Ids:
        """Begin a track for each box, and return their identities [P]."""
        count, table = len(boxes), self.table
        height = (boxes[:, 3] - boxes[:, 1])[:, None, None]  # [P, 1, 1]
        # A place as sure as the box, a speed that can be anything a person does.
        spread = np.array([2 * BOX_NOISE, 0, 5 * SPEED_NOISE]) * np.broadcast_to(height, (count, 4, 1))  # [P, 4, 3]
        new = TrackTable(
            ids=self.next_id + np.arange(count),
            places=centres(boxes),
            speeds=np.zeros((count, 4)),
            spread=spread**2,
            scores=scores,
            hidden=np.zeros(count),
            sightings=np.ones(count, np.int64),
            joints=joints if joints.shape[1] else np.full((count, *table.joints.shape[1:]), np.nan),
        )
        self.next_id += count
        self.table = TrackTable(
            **{f.name: np.concatenate((getattr(table, f.name), getattr(new, f.name))) for f in fields(table)}
        )
        return new.ids

    def forget(self, unmatched: NDArray[Any]) -> None:
        """Drop those of the tracks in these rows that were hidden too long, and of the rest all beyond a number."""
        table = self.table
        glimpse = min(GLIMPSE_PATIENCE, self.patience)
        lasting = table.hidden[unmatched] <= np.where(table.sightings[unmatched] < 2, glimpse, self.patience)
        newest = unmatched[lasting][np.argsort(table.hidden[unmatched[lasting]], kind="stable")][: self.max_hidden]
        kept = np.ones(len(table.ids), np.bool_)
        kept[unmatched] = False
        kept[newest] = True
        table.keep(kept)

    def rows_of(self, ids: Ids) -> NDArray[np.intp]:
        """Return the rows of identities that are in the table."""
        order = np.argsort(self.table.ids)
        return order[np.searchsorted(self.table.ids, ids, sorter=order)]

    def fit_joints(self, joints: Floats) -> None:
        """Make room for as many joints as the newest people have."""
        if joints.shape[1] not in (0, self.table.joints.shape[1]):
            self.table.joints = np.full((len(self.table.ids), joints.shape[1], 2), np.nan)

    # ------------------------------------------------------------------------------------------------ likeness

    def similarity(self, tracks: NDArray[Any], boxes: Floats, joints: Floats) -> Floats:
        """Return how well tracks [T] and boxes [P, 4] with joints [P, J, 2] fit: [T, P], from 0 to 1."""
        overlap = box_overlaps(corners(self.table.places[tracks]), boxes)  # [T, P]
        if joints.shape[1] == 0:  # the people of this frame have none
            return overlap
        size = np.sqrt(np.prod(self.table.places[tracks, 2:], axis=1))[:, None, None]  # [T, 1, 1]
        distance = np.linalg.norm(self.table.joints[tracks][:, None] - joints[None], axis=-1) / size  # [T, P, J]
        known = np.isfinite(distance)
        nearness = np.exp(-0.5 * (np.where(known, distance, 0) / JOINT_REACH) ** 2) * known
        alike = nearness.sum(-1) / np.maximum(known.sum(-1), 1)  # [T, P]
        return np.where(known.any(-1), (overlap + alike) / 2, overlap)

    def wide_similarity(self, tracks: NDArray[Any], boxes: Floats) -> Floats:
        """Return overlaps [T, P] of widened boxes, zero where sizes differ too much to be one person."""
        places, measured = self.table.places[tracks].copy(), centres(boxes)
        ratio = places[:, None, 3] / measured[None, :, 3]  # [T, P]
        places[:, 2:] *= 1 + 2 * WIDENING
        measured[:, 2:] *= 1 + 2 * WIDENING
        overlap = box_overlaps(corners(places), corners(measured))
        return np.where((ratio > 0.5) & (ratio < 2), overlap, 0)


def best_pairs(similarity: Floats, *, lowest: float) -> list[tuple[int, int]]:
    """Pair rows and columns [T, P] so that likeness adds up to the most; pairs below `lowest` are left out."""
    costs = np.where(similarity >= lowest, 1 - similarity, NEVER)
    return [(row, column) for row, column in assign(costs) if similarity[row, column] >= lowest]


def assign(costs: Floats) -> list[tuple[int, int]]:
    """Pair each row with a column, or each column with a row where these are fewer, at least total cost [n, m].

    Rows join one at a time, each along the cheapest chain of changes to the pairs so far: n searches of m steps.
    """
    if costs.shape[0] > costs.shape[1]:
        return [(row, column) for column, row in assign(costs.T)]
    rows, columns = costs.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    owner = np.full(columns, -1)  # the row that has each column
    for row in range(rows):
        reached = np.zeros(columns, np.bool_)
        length = np.full(columns, np.inf)  # of the cheapest chain to each column
        came_from = np.full(columns, -1)  # the column before it on that chain
        current, previous, so_far = row, -1, 0.0
        while True:
            through = so_far + costs[current] - row_price[current] - column_price
            shorter = ~reached & (through < length)
            length[shorter], came_from[shorter] = through[shorter], previous
            column = int(np.argmin(np.where(reached, np.inf, length)))
            so_far = float(length[column])
            reached[column] = True
            if owner[column] < 0:
                break
            current, previous = int(owner[column]), column
        inner = reached & (owner >= 0)
        row_price[row] += so_far
        row_price[owner[inner]] += so_far - length[inner]
        column_price[inner] -= so_far - length[inner]
        while column >= 0:
            before = int(came_from[column])
            owner[column] = owner[before] if before >= 0 else row
            column = before
    return [(int(row), column) for column, row in enumerate(owner) if row >= 0]


def box_overlaps(one: Floats, other: Floats) -> Floats:
    """Return the IoU of every two boxes: [T, 4], [P, 4] -> [T, P]."""
    low = np.maximum(one[:, None, :2], other[None, :, :2])  # [T, P, 2]
    high = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=-1)  # [T, P]
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=-1) for boxes in (one, other)]
    union: Floats = areas[0][:, None] + areas[1][None] - shared
    overlaps: Floats = shared / np.maximum(union, 1e-9)
    return overlaps


def centres(boxes_xyxy: Floats) -> Floats:
    """Turn corners into centre x, centre y, width and height: [P, 4] -> [P, 4]."""
    return np.concatenate(((boxes_xyxy[:, :2] + boxes_xyxy[:, 2:]) / 2, boxes_xyxy[:, 2:] - boxes_xyxy[:, :2]), axis=1)


def corners(places: Floats) -> Floats:
    """Turn centre x, centre y, width and height into corners: [P, 4] -> [P, 4]."""
    return np.concatenate((places[:, :2] - places[:, 2:] / 2, places[:, :2] + places[:, 2:] / 2), axis=1)


def checked_people(
    boxes_xyxy: ArrayLike, scores: ArrayLike, keypoints: ArrayLike | None
) -> tuple[Floats, Floats, Floats]:
    """Check the people of a frame: boxes [P, 4], scores [P] and joints [P, J, 2], none of them where not given."""
    boxes, sureness = np.asarray(boxes_xyxy, np.float64), np.asarray(scores, np.float64)
    boxes = boxes.reshape(0, 4) if boxes.size == 0 else boxes
    if boxes.ndim != 2 or boxes.shape[1] != 4 or sureness.shape != (len(boxes),):
        raise InputError(
            f"boxes_xyxy, scores: expected the shapes [P, 4], [P], got {list(boxes.shape)} and {list(sureness.shape)}."
        )
    if not np.isfinite(boxes).all() or not np.isfinite(sureness).all() or not (boxes[:, 2:] > boxes[:, :2]).all():
        raise InputError("boxes_xyxy, scores: expected finite boxes with some area. Drop the others first.")
    joints = np.zeros((len(boxes), 0, 2)) if keypoints is None else np.asarray(keypoints, np.float64)
    if joints.ndim != 3 or joints.shape[0] != len(boxes) or joints.shape[2] != 2:
        raise InputError(f"keypoints: expected the shape [{len(boxes)}, J, 2], got {list(joints.shape)}.")
    return boxes, sureness, joints
