"""`--coco`: one COCO dataset of all results, which later runs add to."""

from __future__ import annotations

from collections import defaultdict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError
from vitruvian.files import CocoWriter
from vitruvian.json_files import read_json
from vitruvian.results import Result

_Record = dict[str, Any]  # of JSON

_MAX_PENDING = 4  # results that wait to be added


@dataclass(frozen=True)
class _RecordedImage:
    """An image of a dataset that was written before, in the form in which `CocoWriter` takes results."""

    source: str
    size_hw: tuple[int, int]
    frame: int | None
    time: float | None
    annotations: list[_Record]
    categories: list[_Record]

    def to_coco(self, *, image_id: int, first_id: int) -> list[_Record]:
        """Return the annotations with new numbers; panoptic ones have none of their own."""
        return [
            record | {"image_id": image_id} | ({"id": first_id + index} if "id" in record else {})
            for index, record in enumerate(self.annotations)
        ]

    def coco_categories(self) -> list[_Record]:
        """Return the categories of the dataset."""
        return self.categories


class Dataset:
    """A COCO dataset; results are added in order by a background thread, to those that are in the file.

    Attributes:
        names: The images in it.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self.names: set[str] = set()
        self._writer = CocoWriter(path, results=path.with_name(f"{path.stem}_results.json"))
        self._added = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="coco")
        self._pending: deque[Future[int]] = deque()
        for one in _read_dataset(path) if path.exists() and not overwrite else ():
            self._writer.add(one)
            self.names.add(one.source)

    def add(self, result: Result, name: str) -> None:
        """Add a result; frames of a video share a name."""
        self.names.add(name)
        self._added += 1
        while len(self._pending) >= _MAX_PENDING:
            self._pending.popleft().result()
        coco: Any = result.without_image()
        self._pending.append(self._worker.submit(self._writer.add, coco, file_name=name))

    def close(self) -> None:
        """Write the file, unless nothing was added."""
        try:
            for future in self._pending:
                future.result()
        finally:
            self._worker.shutdown()
        if self._added:
            self._writer.close()
        else:
            self._writer.discard()


def _read_dataset(path: Path) -> list[_RecordedImage]:
    """Read a dataset that was written before."""
    values = read_json(path)
    try:
        categories = {category["id"]: category for category in values["categories"] if category["name"]}
        annotations: dict[int, list[_Record]] = defaultdict(list)
        for record in values["annotations"]:
            annotations[record["image_id"]].append(record)
        return [
            _RecordedImage(
                source=str(image["file_name"]),
                size_hw=(int(image["height"]), int(image["width"])),
                frame=image.get("frame"),
                time=image.get("time"),
                annotations=annotations[image["id"]],
                categories=list(categories.values()),
            )
            for image in values["images"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path}: is not a COCO dataset, so nothing can be added. Choose another --coco file, or add --overwrite."
        ) from error
