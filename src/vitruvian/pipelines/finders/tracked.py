"""The finder for videos: looks every so many frames, follows people in between, and tells who is who."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.pipelines.people import PeopleFinder, SourceFinder
from vitruvian.pipelines.smoothing import SceneCuts
from vitruvian.pipelines.tracking import NOBODY, Tracker
from vitruvian.results.base import People, Picture

State = dict[str, NDArray[Any]]
GROWTH = 0.03  # of a box for each frame since it was found: people may turn where no one looks


class TrackedFinder:
    """Finds people in the frames of one video, which must come in order, and gives them identities.

    Args:
        finder: Who looks. Let it return unsure people too: the tracker knows what to do with them.
        every: Look in every so many frames; in between, people go on as they moved. A cut of the scene is looked at
            at once.
        tracker: Who tells people apart.
        marks: Keep what was known before each frame whose number is a multiple of this, for `taken_mark`; 0 for none.
    """

    def __init__(self, finder: PeopleFinder, *, every: int = 1, tracker: Tracker | None = None, marks: int = 0) -> None:
        if every < 1 or marks < 0:
            raise InputError(f"every, marks: expected at least 1 and 0, got {every} and {marks}.")
        self.finder, self.every, self.marks = finder, every, marks
        self.name = finder.name
        self.tracker = tracker or Tracker()
        self.cuts = SceneCuts()
        self.since = every  # frames since the last look; a look is due at first
        self.number = 0
        self.kept_marks: dict[int, State] = {}

    def find(self, picture: Picture) -> People:
        """Return the people in the next frame."""
        return self.find_in(picture, source="", frame=self.number)

    def find_in(self, picture: Picture, *, source: str, frame: int | None) -> People:
        """Return the people in a frame, which follows the one before."""
        self.number = self.number if frame is None else frame
        if self.marks and self.number % self.marks == 0:
            self.kept_marks[self.number] = self.state()
        if self.cuts(picture):
            self.tracker.reset()
            self.since = self.every
        people = self.look(picture, source) if self.since >= self.every else self.follow()
        self.since += 1
        self.number += 1
        return people

    def look(self, picture: Picture, source: str) -> People:
        """Let the finder look, and tell who is who."""
        if isinstance(self.finder, SourceFinder):
            found = self.finder.find_in(picture, source=source, frame=self.number)
        else:
            found = self.finder.find(picture)
        sides = found.boxes_xyxy[:, 2:] - found.boxes_xyxy[:, :2]  # [P, 2]
        usable = np.isfinite(found.boxes_xyxy).all(1) & np.isfinite(found.scores) & (sides > 0).all(1)  # [P]
        boxes, scores = found.boxes_xyxy[usable], found.scores[usable]
        ids = self.tracker.update(boxes, scores)
        self.since = 0
        known = ids != NOBODY
        return People(boxes_xyxy=boxes[known], scores=scores[known], ids=ids[known], finder=self.name, note=found.note)

    def follow(self) -> People:
        """Say where people should be by now."""
        tracks = self.tracker.predict()
        centre = (tracks.boxes_xyxy[:, :2] + tracks.boxes_xyxy[:, 2:]) / 2  # [P, 2]
        half = (tracks.boxes_xyxy[:, 2:] - centre) * (1 + GROWTH * self.since)
        boxes = np.concatenate((centre - half, centre + half), axis=1).astype(np.float32)
        return People(boxes_xyxy=boxes, scores=tracks.scores, ids=tracks.ids, finder=self.name)

    def taken_mark(self, frame: int) -> State:
        """Return what was known before a marked frame, and forget older marks."""
        found = self.kept_marks.get(frame, self.state())
        self.kept_marks = {number: state for number, state in self.kept_marks.items() if number > frame}
        return found

    def state(self) -> State:
        """Return all memory as arrays, for `restore`."""
        tracker = {f"tracker_{name}": value for name, value in self.tracker.state().items()}
        cuts = {f"cuts_{name}": value for name, value in self.cuts.state().items()}
        return tracker | cuts | {"since": np.array(self.since), "number": np.array(self.number)}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what `state` returned."""
        self.tracker.restore(part_of(state, "tracker_"))
        self.cuts.restore(part_of(state, "cuts_"))
        self.since, self.number = int(state["since"]), int(state["number"])


def part_of(state: Mapping[str, NDArray[Any]], prefix: str) -> State:
    """Return the entries whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
