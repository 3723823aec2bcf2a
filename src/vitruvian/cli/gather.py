"""`--coco`: one dataset of all results, which later runs add to."""

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

WAITING = 4  # results that may wait to be added


@dataclass(frozen=True)
class Recorded:
    """The picture of a dataset that was written before, in the form in which `CocoWriter` takes results."""

    image: dict[str, Any]
    annotations: list[dict[str, Any]]
    categories: list[dict[str, Any]]

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.image["height"]), int(self.image["width"])

    @property
    def source(self) -> str:
        """Name of the picture."""
        return str(self.image["file_name"])

    @property
    def frame(self) -> int | None:
        """Number in a video."""
        return self.image.get("frame")

    @property
    def time(self) -> float | None:
        """Time in a video."""
        return self.image.get("time")

    def to_coco(self, *, image_id: int, first_id: int) -> list[dict[str, Any]]:
        """Return the annotations with new numbers; panoptic ones have none of their own."""
        return [
            record | {"image_id": image_id} | ({"id": first_id + index} if "id" in record else {})
            for index, record in enumerate(self.annotations)
        ]

    def coco_categories(self) -> list[dict[str, Any]]:
        """Return the categories of the dataset."""
        return self.categories


class Dataset:
    """A COCO dataset in the making; results are added in order by a thread behind."""

    def __init__(self, path: Path, before: list[Recorded]) -> None:
        self.writer = CocoWriter(path)
        self.names: set[str] = set()
        self.fresh = 0
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="coco")
        self.waiting: list[Future[Any]] = []
        for one in before:
            self.writer.add(one)
            self.names.add(one.source)

    @classmethod
    def open(cls, path: Path, *, overwrite: bool) -> Dataset:
        """Open a dataset; one that is there already is added to, unless it is to be overwritten."""
        return cls(path, [] if overwrite or not path.exists() else list(read_dataset(path)))

    def has(self, name: str) -> bool:
        """Whether the results of a source are in it."""
        return name in self.names

    def add(self, result: Any, name: str) -> None:
        """Add a result; frames of a video share a name."""
        self.names.add(name)
        self.fresh += 1
        while len(self.waiting) >= WAITING:
            self.waiting.pop(0).result()
        self.waiting.append(self.worker.submit(self.writer.add, result.without_image(), file_name=name))

    def close(self) -> None:
        """Write the file, unless nothing is new."""
        try:
            for future in self.waiting:
                future.result()
        finally:
            self.worker.shutdown()
        if self.fresh:
            self.writer.close()
        else:
            self.writer.discard()


def read_dataset(path: Path) -> Iterator[Recorded]:
    """Read a dataset that was written before, a picture at a time."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        images, annotations, categories = values["images"], values["annotations"], values["categories"]
        by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for record in annotations:
            by_image[record["image_id"]].append(record)
        found = [Recorded(image, by_image[image["id"]], categories) for image in images]
        sizes = [one.size_hw for one in found]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: expected a COCO dataset to add to, got another file. Choose another --coco, or --overwrite it."
        ) from error
    assert len(sizes) == len(found)
    yield from found
