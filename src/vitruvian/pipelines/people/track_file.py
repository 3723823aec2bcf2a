"""People from the records of a tracked video: what `vitruvian track --save json` writes, a line for a frame."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from vitruvian.errors import InputError
from vitruvian.images.types import RgbImage
from vitruvian.limits import get_limits
from vitruvian.results.base import People

_Row = tuple[int, list[float], float]  # id, x1, y1, x2, y2, and presence


class TrackFile:
    """A people detector that reads the tracked objects of a video, with their identities.

    Args:
        path: A .jsonl file of the track task. Every object of it counts as a person.
        threshold: Lowest probability that the object is visible.
    """

    def __init__(self, path: str | Path, *, threshold: float = 0.5) -> None:
        self.path = Path(path)
        self.name = self.path.name
        self._frames: dict[int, list[_Row]] = {}
        limits = get_limits()
        try:
            with self.path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(limits.json_bytes + 1), b""), 1):
                    limits.check("json_bytes", len(line), subject=f"{self.path}, line {number}", error=InputError)
                    self._read(line, number, threshold)
        except FileNotFoundError:
            raise InputError(f"{self.path}: file not found. Check the path of the tracked objects.") from None
        except OSError as error:
            raise InputError(f"{self.path}: expected records of tracked objects, got {error.strerror}.") from error

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in the first frame."""
        return self.detect_in(image, source="", frame=0)

    def detect_in(self, image: RgbImage, /, *, source: str, frame: int | None) -> People:
        """Return the people of a frame; none where the file does not list it."""
        rows = self._frames.get(frame or 0, [])
        return People(
            boxes_xyxy=np.array([box for _, box, _ in rows], np.float32).reshape(-1, 4),
            scores=np.array([presence for _, _, presence in rows], np.float32),
            ids=np.array([object_id for object_id, _, _ in rows], np.int64),
            detector=self.name,
        )

    def _read(self, line: bytes, number: int, threshold: float) -> None:
        """Read the record of a frame. Frames that failed have no objects."""
        try:
            record: dict[str, Any] = json.loads(line)
            rows = [
                (int(tracked["id"]), [float(value) for value in tracked["box_xyxy"]], float(tracked["presence"]))
                for tracked in record.get("objects", ())
            ]
            frame = int(record["frame"])
            if any(len(box) != 4 or not np.isfinite(box).all() for _, box, _ in rows):
                raise ValueError("a box")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise InputError(
                f"{self.path}, line {number}: expected a record of vitruvian track --save json, got {error!r}."
            ) from error
        self._frames[frame] = [
            row for row in rows if row[2] >= threshold and row[1][2] > row[1][0] and row[1][3] > row[1][1]
        ]
