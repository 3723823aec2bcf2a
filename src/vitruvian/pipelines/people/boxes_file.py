"""Boxes of people from a file: COCO annotations, COCO detections, {file: boxes} or CSV.

    {"images": [{"id": 1, "file_name": "a.jpg"}], "annotations": [{"image_id": 1, "bbox": [x, y, w, h], …}]}
    [{"image_id": 139, "category_id": 1, "bbox": [x, y, w, h], "score": 0.9}, …]         000000000139.jpg
    {"a.jpg": [[x, y, w, h], [x, y, w, h, score]], "clip.mp4": {"0": [[x, y, w, h]]}}    videos: a frame's boxes
    file,frame,x,y,w,h,score                                                             frame and score may be missing

Images are matched by as much of their path as the file states: `a/1.jpg` and `b/1.jpg` are different, and `1.jpg` alone
matches the only image of that name.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from vitruvian.errors import InputError
from vitruvian.results.base import People, Picture

# Our name of a column -> names in CSV files.
_COLUMNS = {
    "file": ("file", "file_name", "filename", "image", "image_path", "path", "name"),
    "frame": ("frame", "frame_id", "frame_index"),
    "x": ("x", "left"),
    "y": ("y", "top"),
    "w": ("w", "width"),
    "h": ("h", "height"),
    "x1": ("x1", "xmin"),
    "y1": ("y1", "ymin"),
    "x2": ("x2", "xmax", "right"),
    "y2": ("y2", "ymax", "bottom"),
    "score": ("score", "confidence", "conf"),
}
_EVERY_FRAME = -1


class Row(NamedTuple):
    """One entry of any format: a box, or None for a file that is listed without people."""

    file: str
    frame: int
    box_xyxy: tuple[float, float, float, float] | None
    score: float = 1.0


class BoxesFile:
    """A people detector that reads boxes from a file.

    Args:
        path: A .json or .csv file, see above. Boxes are in pixels of the upright images.
        threshold: Lowest score of a box.
    """

    def __init__(self, path: str | Path, *, threshold: float = 0.0) -> None:
        self.path = Path(path)
        self.name = self.path.name
        # file name -> path in the file -> frame -> rows
        self._images: dict[str, dict[PurePosixPath, dict[int, list[Row]]]] = defaultdict(dict)
        for row in _read_rows(self.path):
            listed = _plain_path(row.file)
            rows = self._images[listed.name].setdefault(listed, {}).setdefault(row.frame, [])
            if row.box_xyxy is not None and row.score >= threshold:
                rows.append(row)

    def find(self, image: Picture, /) -> People:
        """Return the people of the only image that the file lists."""
        listed = [path for same_name in self._images.values() for path in same_name]
        if len(listed) != 1:
            raise InputError(
                f"{self.name}: lists {len(listed)} pictures, so the picture's name is needed. Pass a file or a folder."
            )
        return self.find_in(image, source=str(listed[0]), frame=None)

    def find_in(self, image: Picture, /, *, source: str, frame: int | None) -> People:
        """Return the people of an image or frame, with a note if the file does not list it."""
        frames = self._look_up(source)
        if frames is None:
            return self._people([], note=f"{_plain_path(source).name or 'picture'} is not listed in {self.name}")
        rows = frames.get(_EVERY_FRAME, []) + ([] if frame is None else frames.get(frame, []))
        return self._people(rows)

    def _look_up(self, source: str) -> dict[int, list[Row]] | None:
        """Return the rows of the image whose path shares the longest suffix with `source`."""
        wanted = _plain_path(source)
        listed = self._images.get(wanted.name)
        if listed is None:
            # COCO detections identify images by number, other files omit the suffix.
            by_stem = self._images.get(wanted.stem) or self._images.get(wanted.stem.lstrip("0") or "0")
            if by_stem is None:
                return None
            listed = by_stem
        shared = {path: _common_suffix(path, wanted) for path in listed}
        best = max(shared.values())
        matches = [path for path, length in shared.items() if length == best]
        if len(matches) > 1:
            raise InputError(
                f"{source}: fits {matches[0]} and {matches[1]} in {self.name} alike. Give the picture with its folder."
            )
        return listed[matches[0]]

    def _people(self, rows: Sequence[Row], note: str | None = None) -> People:
        boxes = np.array([row.box_xyxy for row in rows], np.float32).reshape(-1, 4)  # [P, 4]
        scores = np.array([row.score for row in rows], np.float32)  # [P]
        return People(boxes_xyxy=boxes, scores=scores, finder=self.name, note=note)


def _plain_path(text: str) -> PurePosixPath:
    """Return a path with forward slashes, normalized."""
    return PurePosixPath(text.replace("\\", "/"))


def _common_suffix(one: PurePosixPath, other: PurePosixPath) -> int:
    """Return how many last parts two paths share."""
    pairs = zip(reversed(one.parts), reversed(other.parts), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _read_rows(path: Path) -> Iterator[Row]:
    """Read a file of boxes in any format."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: expected a file of boxes, got no such file. Check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path}: expected a text file of boxes, got {type(error).__name__}. Check the file."
        ) from error
    if path.suffix.lower() == ".csv":
        return _csv_rows(text, path.name)
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path.name}: expected JSON, got a mistake in line {error.lineno}. Check the file."
        ) from error
    if isinstance(values, dict) and isinstance(values.get("annotations"), list):
        return _coco_rows(values, path.name)
    if isinstance(values, list):
        return _detection_rows(values, path.name)
    if isinstance(values, dict):
        return _table_rows(values, path.name)
    raise InputError(f"{path.name}: expected COCO annotations or a table of boxes, got {type(values).__name__}.")


def _coco_rows(values: Mapping[str, Any], name: str) -> Iterator[Row]:
    """Read COCO annotations, without crowds."""
    categories = values.get("categories") or []
    people = {entry.get("id") for entry in categories if str(entry.get("name", "")).lower() == "person"}
    if categories and not people:
        raise InputError(f"{name}: expected a category named person, got {[e.get('name') for e in categories][:8]}.")
    files: dict[object, str] = {}
    for entry in values.get("images") or []:
        if "id" not in entry or "file_name" not in entry:
            raise InputError(f"{name}: expected images with id and file_name, got {sorted(entry)[:8]}.")
        files[entry["id"]] = str(entry["file_name"])
        yield Row(files[entry["id"]], _EVERY_FRAME, None)
    for entry in values["annotations"]:
        if entry.get("iscrowd") or (people and entry.get("category_id") not in people) or _is_empty(entry.get("bbox")):
            continue
        if entry.get("image_id") not in files:
            raise InputError(
                f"{name}: has a box for image_id {entry.get('image_id')!r}, which is not among its images."
            )
        yield _make_row(files[entry["image_id"]], _EVERY_FRAME, [*entry["bbox"], entry.get("score", 1.0)], name)


def _detection_rows(values: Sequence[object], name: str) -> Iterator[Row]:
    """Read COCO detections, whose images have numbers instead of names."""
    for entry in values:
        if not isinstance(entry, dict) or "image_id" not in entry or "bbox" not in entry:
            raise InputError(
                f"{name}: expected a list of detections with image_id and bbox, got {str(entry)[:60]}. "
                "A table has the form {file: [[x, y, w, h]]}."
            )
        if entry.get("category_id", 1) == 1 and not _is_empty(entry["bbox"]):
            yield _make_row(str(entry["image_id"]), _EVERY_FRAME, [*entry["bbox"], entry.get("score", 1.0)], name)


def _is_empty(box: object) -> bool:
    """Return whether an annotation has no box or one without area; large datasets have a few."""
    return box is None or (isinstance(box, list) and len(box) == 4 and (box[2] == 0 or box[3] == 0))


def _table_rows(values: Mapping[str, Any], name: str) -> Iterator[Row]:
    """Read {file: boxes} and {video: {frame: boxes}}."""
    for file, given in values.items():
        frames: dict[str, object] = given if isinstance(given, dict) else {str(_EVERY_FRAME): given}
        for frame, boxes in frames.items():
            if not isinstance(boxes, list) or not frame.lstrip("-").isdigit():
                raise InputError(f"{name}: expected a list of boxes for {file!r}, got {str(given)[:60]}.")
            yield Row(file, int(frame), None)
            for box in [boxes] if boxes and not isinstance(boxes[0], list) else boxes:
                yield _make_row(file, int(frame), box, name)


def _csv_rows(text: str, name: str) -> Iterator[Row]:
    """Read CSV with a header."""
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    known = {other: ours for ours, others in _COLUMNS.items() for other in others}
    header = [known.get(str(column).strip().lower(), "") for column in reader.fieldnames or []]
    corners = {"x1", "y1", "x2", "y2"} <= set(header)
    if "file" not in header or not (corners or {"x", "y", "w", "h"} <= set(header)):
        raise InputError(
            f"{name}: expected the columns file, x, y, w, h or file, x1, y1, x2, y2, got {reader.fieldnames}. "
            "Add a first line with the names of the columns."
        )
    for number, entry in enumerate(reader, start=2):
        cells = {ours: (value or "").strip() for ours, value in zip(header, entry.values(), strict=False) if ours}
        try:
            numbers = [float(cells[side]) for side in (("x1", "y1", "x2", "y2") if corners else ("x", "y", "w", "h"))]
            frame = int(cells["frame"]) if cells.get("frame") else _EVERY_FRAME
            score = float(cells["score"]) if cells.get("score") else 1.0
        except (KeyError, ValueError) as error:
            raise InputError(f"{name}, line {number}: expected numbers, got {list(entry.values())}.") from error
        if corners:
            numbers[2:] = [numbers[2] - numbers[0], numbers[3] - numbers[1]]
        yield _make_row(cells["file"], frame, [*numbers, score], name)


def _make_row(file: str, frame: int, box: Any, name: str) -> Row:
    """Check a box x, y, w, h with or without a score."""
    try:
        x, y, w, h, score = (float(value) for value in ([*box, 1.0] if len(box) == 4 else box))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected x, y, w, h (and score) for {file!r}, got {box!r}.") from error
    if not np.isfinite([x, y, w, h, score]).all() or w <= 0 or h <= 0:
        raise InputError(f"{name}: expected a box with some area for {file!r}, got {box!r}. Remove it.")
    return Row(file, frame, (x, y, x + w, y + h), score)
