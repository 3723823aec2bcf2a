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
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from vitruvian.errors import InputError
from vitruvian.filesystem.json_files import read_json, read_text
from vitruvian.images.types import RgbImage
from vitruvian.results.base import People

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
_FRAME = re.compile(r"-?\d{1,18}", re.ASCII)
# An entry of any format: file, frame, and x, y, w, h with or without a score; None lists a file without people.
_Row = tuple[str, int, Sequence[Any] | None]


class BoxesFile:
    """A people detector that reads boxes from a file.

    Args:
        path: A .json or .csv file, see above. Boxes are in pixels of the upright images.
        threshold: Lowest score of a box.
    """

    def __init__(self, path: str | Path, *, threshold: float = 0.0) -> None:
        self.path = Path(path)
        self.name = self.path.name
        # file name -> path in the file -> frame -> rows of x1, y1, x2, y2, score
        self._images: dict[str, dict[PurePosixPath, dict[int, list[list[float]]]]] = defaultdict(dict)
        for file, frame, box in _read_rows(self.path):
            listed = _posix_path(file)
            rows = self._images[listed.name].setdefault(listed, {}).setdefault(frame, [])
            if box is not None:
                row = _checked_row(
                    box, f"{self.name}: expected a box x, y, w, h (and score) with some area for {file!r}"
                )
                rows += [row] if row[4] >= threshold else []

    def detect(self, image: RgbImage, /) -> People:
        """Return the people of the only image that the file lists."""
        listed = [path for same_name in self._images.values() for path in same_name]
        if len(listed) != 1:
            raise InputError(
                f"{self.name}: lists {len(listed)} images, so the name of the image is needed. Pass a file or a folder."
            )
        return self.detect_in(image, source=str(listed[0]), frame=None)

    def detect_in(self, image: RgbImage, /, *, source: str, frame: int | None) -> People:
        """Return the people of an image or frame, with a note if the file does not list it."""
        frames, note = self._look_up(source), None
        if frames is None:
            frames, note = {}, f"{_posix_path(source).name or 'image'} is not listed in {self.name}"
        rows = frames.get(_EVERY_FRAME, []) + ([] if frame is None else frames.get(frame, []))
        table = np.array(rows, np.float32).reshape(-1, 5)  # [P, 5]
        return People(boxes_xyxy=table[:, :4], scores=table[:, 4], detector=self.name, note=note)

    def _look_up(self, source: str) -> dict[int, list[list[float]]] | None:
        """Return the rows of the image whose path shares the longest suffix with `source`."""
        wanted = _posix_path(source)
        # COCO detections identify images by number, other files omit the suffix.
        names = (wanted.name, wanted.stem, wanted.stem.lstrip("0") or "0")
        listed = next((self._images[name] for name in names if name in self._images), None)
        if listed is None:
            return None
        shared = {path: _common_suffix(path, wanted) for path in listed}
        matches = [path for path, length in shared.items() if length == max(shared.values())]
        if len(matches) > 1:
            raise InputError(
                f"{source}: matches both {matches[0]} and {matches[1]} in {self.name}. Pass the image with its folder."
            )
        return listed[matches[0]]


def _posix_path(text: str) -> PurePosixPath:
    return PurePosixPath(text.replace("\\", "/"))


def _common_suffix(path: PurePosixPath, other: PurePosixPath) -> int:
    """Return how many last parts two paths share."""
    pairs = zip(reversed(path.parts), reversed(other.parts), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _checked_row(box: Sequence[Any], expected: str) -> list[float]:
    """Return x1, y1, x2, y2 and score of x, y, w, h with or without a score."""
    try:
        x, y, w, h, score = (float(value) for value in ([*box, 1.0] if len(box) == 4 else box))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{expected}, got {box!r}.") from error
    if not np.isfinite([x, y, w, h, score]).all() or w <= 0 or h <= 0:
        raise InputError(f"{expected}, got {box!r}. Remove it.")
    return [x, y, x + w, y + h, score]


def _read_rows(path: Path) -> Iterator[_Row]:
    """Read a file of boxes in any format."""
    try:
        if path.suffix.lower() == ".csv":
            return _csv_rows(read_text(path, encoding="utf-8-sig"), path.name)
        values = read_json(path, encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: file not found. Check the path of the boxes.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: expected a text file of boxes, got {type(error).__name__}.") from error
    if isinstance(values, list):
        return _detection_rows(values, path.name)
    if isinstance(values, dict):
        coco = isinstance(values.get("annotations"), list)
        return _coco_rows(values, path.name) if coco else _table_rows(values, path.name)
    raise InputError(f"{path.name}: expected COCO annotations or a table of boxes, got {type(values).__name__}.")


def _coco_rows(values: Mapping[str, Any], name: str) -> Iterator[_Row]:
    """Read COCO annotations, without crowds."""
    categories = _records(values, "categories", name)
    people = {entry.get("id") for entry in categories if str(entry.get("name", "")).lower() == "person"}
    if categories and not people:
        raise InputError(f"{name}: expected a category named person, got {[e.get('name') for e in categories][:8]}.")
    files: dict[object, str] = {}
    for entry in _records(values, "images", name):
        if "id" not in entry or "file_name" not in entry:
            raise InputError(f"{name}: expected images with id and file_name, got {sorted(entry)[:8]}.")
        files[entry["id"]] = str(entry["file_name"])
        yield files[entry["id"]], _EVERY_FRAME, None
    for entry in _records(values, "annotations", name):
        if entry.get("iscrowd") or (people and entry.get("category_id") not in people) or _is_empty(entry.get("bbox")):
            continue
        if entry.get("image_id") not in files:
            raise InputError(
                f"{name}: has a box for image_id {entry.get('image_id')!r}, which is not among its images."
            )
        yield files[entry["image_id"]], _EVERY_FRAME, _box_and_score(entry)


def _records(values: Mapping[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    """Return a list of COCO, which may be missing: objects whose ids are numbers or text."""
    entries = values.get(key) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(f"{name}: expected a list of objects as {key}, got {str(entries)[:60]}. Check the file.")
    for entry in entries:
        if any(isinstance(entry.get(field), list | dict) for field in ("id", "image_id", "category_id")):
            raise InputError(f"{name}: expected numbers or text as ids in {key}, got {str(entry)[:60]}.")
    return entries


def _box_and_score(entry: Mapping[str, Any]) -> Any:
    """Return the box of an entry with its score; what is no list of numbers is left to the check of boxes."""
    box = entry["bbox"]
    return [*box, entry.get("score", 1.0)] if isinstance(box, list) else box


def _detection_rows(values: Sequence[object], name: str) -> Iterator[_Row]:
    """Read COCO detections, whose images have numbers instead of names."""
    for entry in values:
        if not isinstance(entry, dict) or "image_id" not in entry or "bbox" not in entry:
            raise InputError(
                f"{name}: expected a list of detections with image_id and bbox, got {str(entry)[:60]}. "
                "A table has the form {file: [[x, y, w, h]]}."
            )
        if entry.get("category_id", 1) == 1 and not _is_empty(entry["bbox"]):
            yield str(entry["image_id"]), _EVERY_FRAME, _box_and_score(entry)


def _is_empty(box: object) -> bool:
    """Return whether an annotation has no box or one without area; large datasets have a few."""
    return box is None or (isinstance(box, list) and len(box) == 4 and (box[2] == 0 or box[3] == 0))


def _table_rows(values: Mapping[str, Any], name: str) -> Iterator[_Row]:
    """Read {file: boxes} and {video: {frame: boxes}}."""
    for file, content in values.items():
        frames: dict[str, object] = content if isinstance(content, dict) else {str(_EVERY_FRAME): content}
        for frame, boxes in frames.items():
            if not isinstance(boxes, list) or not _FRAME.fullmatch(frame):
                raise InputError(f"{name}: expected a list of boxes for {file!r}, got {str(content)[:60]}.")
            yield file, int(frame), None
            for box in [boxes] if boxes and not isinstance(boxes[0], list) else boxes:
                yield file, int(frame), box


def _csv_rows(text: str, name: str) -> Iterator[_Row]:
    """Read CSV with a header."""
    lines = _csv_lines(text, name)
    _, columns = next(lines, (1, []))
    known = {other: ours for ours, others in _COLUMNS.items() for other in others}
    header = [known.get(column.strip().lower(), "") for column in columns]
    corners = {"x1", "y1", "x2", "y2"} <= set(header)
    if "file" not in header or not (corners or {"x", "y", "w", "h"} <= set(header)):
        raise InputError(
            f"{name}: expected the columns file, x, y, w, h or file, x1, y1, x2, y2, got {columns}. "
            "Add a first line with the names of the columns."
        )
    if repeated := [column for column, ours in zip(columns, header, strict=True) if ours and columns.count(column) > 1]:
        raise InputError(f"{name}: expected one column {repeated[0]!r}, got {len(repeated)}. Rename the others.")
    for number, entry in lines:
        cells = {ours: value.strip() for ours, value in zip(header, entry, strict=False) if ours}
        try:
            x, y, w, h = (
                float(cells[side]) for side in (("x1", "y1", "x2", "y2") if corners else ("x", "y", "w", "h"))
            )
            frame, score = int(cells.get("frame") or _EVERY_FRAME), float(cells.get("score") or 1.0)
        except (KeyError, ValueError) as error:
            raise InputError(f"{name}, line {number}: expected numbers, got {entry}.") from error
        yield cells["file"], frame, [x, y, w - x, h - y, score] if corners else [x, y, w, h, score]


def _csv_lines(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of CSV that are not empty, by number."""
    reader = csv.reader(text.splitlines(), skipinitialspace=True)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: expected CSV, got {error}.") from error
