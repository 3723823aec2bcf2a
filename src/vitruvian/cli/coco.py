"""`--coco`: one COCO dataset of all results, which later runs add to."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError
from vitruvian.files import CocoWriter
from vitruvian.results import Result

Record = dict[str, Any]  # of JSON

MAX_PENDING = 4  # results that wait to be added


@dataclass(frozen=True)
class RecordedImage:
    """An image of a dataset that was written before, in the form in which `CocoWriter` takes results."""

    image: Record
    annotations: list[Record]
    categories: list[Record]

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.image["height"]), int(self.image["width"])

    @property
    def source(self) -> str:
        """Name of the image."""
        return str(self.image["file_name"])

    @property
    def frame(self) -> int | None:
        """Number in a video."""
        return self.image.get("frame")

    @property
    def time(self) -> float | None:
        """Time in a video."""
        return self.image.get("time")

    def to_coco(self, *, image_id: int, first_id: int) -> list[Record]:
        """Return the annotations with new numbers; panoptic ones have none of their own."""
        return [
            record | {"image_id": image_id} | ({"id": first_id + index} if "id" in record else {})
            for index, record in enumerate(self.annotations)
        ]

    def coco_categories(self) -> list[Record]:
        """Return the categories of the dataset."""
        return self.categories


class Dataset:
    """A COCO dataset; results are added in order by a background thread.

    Attributes:
        names: The images in it.
    """

    def __init__(self, path: Path, before: list[RecordedImage]) -> None:
        self.names: set[str] = set()
        self._writer = CocoWriter(path)
        self._added = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="coco")
        self._pending: list[Future[int]] = []
        for one in before:
            self._writer.add(one)
            self.names.add(one.source)

    @classmethod
    def open(cls, path: Path, *, overwrite: bool) -> Dataset:
        """Open a dataset; one that is there already is added to, unless it is to be overwritten."""
        return cls(path, [] if overwrite or not path.exists() else list(_read_dataset(path)))

    def add(self, result: Result, name: str) -> None:
        """Add a result; frames of a video share a name."""
        self.names.add(name)
        self._added += 1
        while len(self._pending) >= MAX_PENDING:
            self._pending.pop(0).result()
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


def _read_dataset(path: Path) -> Iterator[RecordedImage]:
    """Read a dataset that was written before, an image at a time."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        images, annotations, categories = values["images"], values["annotations"], values["categories"]
        by_image: dict[int, list[Record]] = defaultdict(list)
        for record in annotations:
            by_image[record["image_id"]].append(record)
        found = [RecordedImage(image, by_image[image["id"]], categories) for image in images]
        _ = [one.size_hw for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: expected a COCO dataset to add to, got another file. Choose another --coco, or --overwrite it."
        ) from error
    yield from found
