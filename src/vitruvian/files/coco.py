"""COCO's JSON: records of images, keypoints, masks and panoptic segments, and `CocoWriter` for whole datasets.

Keypoints are x, y, v: v is 2 where the score reaches the threshold and 0 elsewhere. Coordinates are stored either way,
because evaluation of predictions uses all of them; only points that a layout has and the model lacks are 0, 0, 0. The
133 points of COCO-WholeBody are stored as in that dataset: 17 under ``keypoints``, the others under ``foot_kpts``,
``face_kpts``, ``lefthand_kpts`` and ``righthand_kpts``. Boxes are x, y, width, height; masks are RLE with compressed
counts. Every prediction has its ``score``.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import IO, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.images import write_image
from vitruvian.filesystem.atomic import Writer, atomic_write
from vitruvian.filesystem.json_files import JsonObject, json_text
from vitruvian.filesystem.output_paths import output_path, safe_name
from vitruvian.human import COCO_17, COCO_WHOLEBODY_133, Layout
from vitruvian.images.rle import Rle, rle_area, rle_box_xywh
from vitruvian.images.types import SizeHW
from vitruvian.version import __version__

_PERSON_CATEGORY = 1
_RESULT_KEYS = ("image_id", "category_id", "bbox", "segmentation", "keypoints", "score")
# fmt: off
_COCO_NAMES = (  # in the order of their ids, which have gaps
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat", "traffic light",
    "fire hydrant", "", "stop sign", "parking meter", "bench", "bird", "cat", "dog", "horse", "sheep", "cow",
    "elephant", "bear", "zebra", "giraffe", "", "backpack", "umbrella", "", "", "handbag", "tie", "suitcase", "frisbee",
    "skis", "snowboard", "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "", "wine glass", "cup", "fork", "knife", "spoon", "bowl", "banana", "apple", "sandwich",
    "orange", "broccoli", "carrot", "hot dog", "pizza", "donut", "cake", "chair", "couch", "potted plant", "bed", "",
    "dining table", "", "", "toilet", "", "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave",
    "oven", "toaster", "sink", "refrigerator", "", "book", "clock", "vase", "scissors", "teddy bear", "hair drier",
    "toothbrush",
)
# fmt: on
COCO_CATEGORY_IDS = {name: number for number, name in enumerate(_COCO_NAMES, 1) if name}
# Number of the points of COCO-WholeBody beyond the first 17, by the name of their field.
_WHOLEBODY_EXTRAS = {"foot": 6, "face": 68, "lefthand": 21, "righthand": 21}


def keypoint_category(layout: Layout) -> JsonObject:
    """Return the category "person" with the names and bones (counted from 1) of a layout."""
    body = COCO_17 if layout is COCO_WHOLEBODY_133 else layout
    return {
        "id": _PERSON_CATEGORY,
        "name": "person",
        "supercategory": "person",
        "keypoints": list(body.names),
        "skeleton": [[bone.start + 1, bone.end + 1] for bone in body.skeleton],
    }


def keypoint_record(
    keypoints: NDArray[np.float32],
    scores: NDArray[np.float32],
    *,
    layout: Layout,
    box_xyxy: NDArray[np.float32],
    image_id: int,
    annotation_id: int,
    score: float,
    threshold: float = 0.3,
) -> JsonObject:
    """Return the record of one person with keypoints [J, 2] and scores [J] in `layout`."""
    known: NDArray[np.bool_] = np.all(np.isfinite(keypoints), axis=-1)  # [J]
    visible = known & (scores >= threshold)  # [J]
    xy = np.where(known[:, None], np.round(keypoints.astype(np.float64), 2), 0)
    triples = [value for (x, y), v in zip(xy.tolist(), visible.tolist(), strict=True) for value in (x, y, 2 * v)]
    box = box_xywh(box_xyxy)
    record: JsonObject = {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": _PERSON_CATEGORY,
        "bbox": box,
        "area": round(box[2] * box[3], 2),
        "iscrowd": 0,
        "score": round(score, 4),
        "num_keypoints": int(visible.sum()),
        "keypoints": triples,
        "keypoint_scores": np.round(scores.astype(np.float64), 4).tolist(),
    }
    if layout is COCO_WHOLEBODY_133:
        start = len(COCO_17.names)
        record |= {"keypoints": triples[: start * 3], "num_keypoints": int(visible[:start].sum())}
        for part, count in _WHOLEBODY_EXTRAS.items():
            record[f"{part}_kpts"] = triples[start * 3 : (start + count) * 3]
            record[f"{part}_valid"] = bool(visible[start : start + count].any())
            start += count
    return record


def mask_record(
    rle: Rle, *, image_id: int, annotation_id: int, category_id: int, score: float | None = None
) -> JsonObject:
    """Return the record of one mask, an RLE with compressed counts, with its box and area."""
    record: JsonObject = {
        "id": annotation_id,
        "image_id": image_id,
        "category_id": category_id,
        "segmentation": dict(rle),
        "area": rle_area(rle),
        "bbox": rle_box_xywh(rle),
        "iscrowd": 0,
    }
    if score is not None:
        record["score"] = round(score, 4)
    return record


def box_xywh(box_xyxy: Iterable[float]) -> list[float]:
    """Convert corners [4] to x, y, width, height, rounded to a hundredth of a pixel."""
    x1, y1, x2, y2 = (float(value) for value in box_xyxy)
    return [round(value, 2) for value in (x1, y1, x2 - x1, y2 - y1)]


class _CocoResult(Protocol):
    """A result that can be written to a COCO dataset: a `Result` with COCO records, numbered from `first_id`."""

    @property
    def size_hw(self) -> SizeHW: ...
    @property
    def source(self) -> str | None: ...
    @property
    def frame(self) -> int | None: ...
    @property
    def time(self) -> float | None: ...
    def to_coco(self, *, image_id: int, first_id: int) -> list[JsonObject]: ...
    def coco_categories(self) -> list[JsonObject]: ...


@runtime_checkable
class _PanopticResult(Protocol):
    """A result whose annotation is an image of segment numbers as colors, uint8 [H, W, 3]."""

    def panoptic_image(self) -> NDArray[np.uint8]: ...


class CocoWriter(Writer):
    """Write results as one dataset: ``images``, ``annotations`` and ``categories``.

    Records are kept in temporary files, so memory does not grow with their number. Thread-safe. The file is written
    when the writer is closed. PNGs of panoptic results are written immediately, to a folder named like the file
    without its suffix, as in COCO. The id of an image is the number in its file name if that is all the name has, as in
    COCO (000000000139.jpg), and a free number otherwise. Annotations count from 1.

        with CocoWriter("people.json") as writer:
            for result in results:
                writer.add(result)
    """

    def __init__(self, path: str | Path, *, description: str | None = None, results: str | Path | None = None) -> None:
        """Open the writer.

        Args:
            path: The .json file.
            description: Description of the dataset in the file.
            results: A second .json file to write, with the list of predictions that `COCO.loadRes` takes. If all
                categories have names of COCO's 80, their ids are those of COCO.
        """
        self.path = Path(path)
        self._results_path = None if results is None else Path(results)
        if self.path.suffix.lower() != ".json":
            raise InputError(f"{self.path.name}: expected a name that ends in .json, got {self.path.suffix!r}.")
        self.images = self.annotations = 0
        self._info = {"description": description or "Results of vitruvian", "version": __version__}
        self._categories: dict[int, JsonObject] = {}
        self._image_ids: set[int] = set()
        self._is_panoptic = False
        self._last_annotation_id = 0
        self._spools = {name: _open_spool() for name in ("images", "annotations")}  # files with a record in each line
        self._lock = threading.Lock()
        self._open = True

    def add(
        self, result: _CocoResult, *, file_name: str | None = None, details: Mapping[str, object] | None = None
    ) -> int:
        """Add a result and return the id of its image.

        Args:
            result: The result.
            file_name: Name of the image; `result.source` by default.
            details: More values for the record of the image.
        """
        with self._lock:
            if not self._open:
                raise InputError(f"{self.path.name}: expected an open writer, got a closed one. Open a new one.")
            categories = self._merged(result.coco_categories())
            name = file_name or result.source or f"{self.images + 1:012d}"
            image_id = self._new_image_id(name)
            records = result.to_coco(image_id=image_id, first_id=self._last_annotation_id + 1)
            self._is_panoptic = isinstance(result, _PanopticResult)
            if isinstance(result, _PanopticResult):
                png = output_path(self.path.with_suffix(""), safe_name(Path(name).stem), f"_{image_id:06d}.png")
                write_image(png, result.panoptic_image())
                records = [record | {"file_name": png.name} for record in records]
            height, width = result.size_hw
            image: JsonObject = {"id": image_id, "file_name": name, "height": height, "width": width}
            image |= {} if result.frame is None else {"frame": result.frame}
            image |= {} if result.time is None else {"time": round(result.time, 6)}
            image |= details or {}
            lines = [json_text(record) for record in records]
            self._spools["images"].write(json_text(image) + "\n")
            self._spools["annotations"].writelines(line + "\n" for line in lines)
            self._categories = categories
            self._image_ids.add(image_id)
            self.images += 1
            self.annotations += len(records)
            self._last_annotation_id += len(records)
            return image_id

    def remove(self, file_names: Collection[str]) -> None:
        """Remove the images with these names and their annotations. Numbers of other annotations do not change."""
        with self._lock:
            images = map(json.loads, _lines_of(self._spools["images"]))
            removed = {image["id"] for image in images if image["file_name"] in file_names}
            if removed:
                self.images = self._filter("images", lambda image: image["id"] not in removed)
                self.annotations = self._filter("annotations", lambda record: record["image_id"] not in removed)
                self._image_ids -= removed
                if not self.images:
                    self._categories = {}  # those of the next results

    def _filter(self, name: str, keep: Callable[[JsonObject], bool]) -> int:
        """Rewrite a spool with the records to keep, and return their number."""
        before, count = self._spools[name], 0
        self._spools[name] = after = _open_spool()
        for line in _lines_of(before):
            if keep(json.loads(line)):
                after.write(line)
                count += 1
        before.close()
        return count

    def close(self) -> Path:
        """Write the file, and return its path; closing again does nothing."""
        with self._lock:
            if not self._open:
                return self.path
            with atomic_write(self.path) as temporary, temporary.open("w", encoding="utf-8") as file:
                file.write(f'{{"info":{json_text(self._info)}')
                for name, spool in self._spools.items():
                    file.write(f',\n"{name}":[')
                    file.writelines(
                        f"{',' if number else ''}\n{line[:-1]}" for number, line in enumerate(_lines_of(spool))
                    )
                    file.write("]")
                file.write(f',\n"categories":{json.dumps(list(self._categories.values()), ensure_ascii=False)}}}\n')
            if self._results_path is not None and not self._is_panoptic:  # their evaluation reads the dataset
                self._write_results(self._results_path)
            self._release()
            return self.path

    def _new_image_id(self, name: str) -> int:
        """Return the number that a file name consists of, or the next free one."""
        stem = PurePath(name).stem
        if re.fullmatch(r"[0-9]{1,12}", stem) and int(stem) not in self._image_ids:
            return int(stem)
        return max(self._image_ids, default=0) + 1

    def _write_results(self, path: Path) -> None:
        """Write the predictions as a list of records with a score."""
        names = {number: str(category["name"]) for number, category in self._categories.items()}
        known = all(name in COCO_CATEGORY_IDS for name in names.values())
        with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            separator = "[\n"
            for record in map(json.loads, _lines_of(self._spools["annotations"])):
                if "score" in record:
                    category = record["category_id"]
                    fields = {key: record[key] for key in _RESULT_KEYS if key in record}
                    fields["category_id"] = COCO_CATEGORY_IDS[names[category]] if known else category
                    file.write(separator + json_text(fields))
                    separator = ",\n"
            file.write("[]\n" if separator == "[\n" else "]\n")

    def discard(self) -> None:
        """Close without writing the file."""
        with self._lock:
            self._release()

    def _merged(self, categories: list[JsonObject]) -> dict[int, JsonObject]:
        merged = dict(self._categories)
        for category in categories:
            known = merged.setdefault(category["id"], category)
            if known != category:
                raise InputError(
                    f"category {category['id']}: expected {known['name']!r} as in earlier results, "
                    f"got {category['name']!r} or other keypoints. Write each kind of result to its own file."
                )
        return merged

    def _release(self) -> None:
        self._open = False
        for spool in self._spools.values():
            spool.close()


def _open_spool() -> IO[str]:
    """Open an unnamed temporary file for records."""
    return tempfile.TemporaryFile("w+", encoding="utf-8")


def _lines_of(spool: IO[str]) -> Iterator[str]:
    """Yield all lines of a spool; afterwards its position is the end again."""
    spool.seek(0)
    yield from spool


def write_youtube_vis(path: str | Path, records: str | Path, *, name: str) -> None:
    """Write the tracked objects of one video as a YouTube-VIS dataset: one annotation for each object.

    Masks are kept in a temporary file, so that memory does not grow with their size.

    Args:
        path: The JSON file to write.
        records: A file with a line of JSON for each frame, `Track.to_dict`.
        name: Name of the video.
    """
    frames, size_hw = 0, [0, 0]
    masks: dict[int, array[int]] = {}  # object -> frame and position in the file of each of its masks
    with tempfile.TemporaryFile() as spool:
        for record in _read_json_lines(records):
            size_hw = record.get("size_hw", size_hw)
            for entry in record.get("objects", ()):
                places = masks.setdefault(entry["id"], array("q"))
                if entry["area"]:
                    places.extend((frames, spool.tell()))
                    spool.write(json_text(entry).encode() + b"\n")
            frames += 1
        height, width = size_hw
        file_names = [f"{name}/{number:05d}" for number in range(frames)]
        video = {"id": 1, "file_names": file_names, "length": frames, "height": height, "width": width}
        shared = {"video_id": 1, "category_id": 1, "iscrowd": 0, "length": frames, "height": height, "width": width}
        with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            category = {"id": 1, "name": "object", "supercategory": "object"}
            file.write(f'{{"videos":[{json_text(video)}],\n"categories":[{json_text(category)}],\n"annotations":[')
            for number, (object_id, places) in enumerate(sorted(masks.items())):
                annotation = {"id": object_id} | shared | _object_in_time(spool, places, frames)
                file.write((",\n" if number else "\n") + json_text(annotation))
            file.write("]}\n")


def _object_in_time(spool: IO[bytes], places: array[int], frames: int) -> JsonObject:
    """Return the masks, boxes and areas of an object in all frames, None where there is none, and its mean score."""
    found: JsonObject = {name: [None] * frames for name in ("segmentations", "bboxes", "areas")}
    scores = []
    for frame, place in zip(places[::2], places[1::2], strict=True):
        spool.seek(place)
        entry = json.loads(spool.readline())
        found["segmentations"][frame] = entry["rle"]
        found["bboxes"][frame] = rle_box_xywh(entry["rle"])
        found["areas"][frame] = entry["area"]
        scores.append(entry["score"] or 0.0)
    return found | {"score": round(sum(scores) / max(1, len(scores)), 4)}


def _read_json_lines(path: str | Path) -> Iterator[JsonObject]:
    """Read a file with a JSON object in each line."""
    with Path(path).open(encoding="utf-8") as file:
        yield from map(json.loads, file)
