"""`--coco`: one COCO dataset of all results, which later runs add to."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError
from vitruvian.files import CocoWriter
from vitruvian.filesystem.json_files import JsonObject, read_json
from vitruvian.filesystem.locks import OutputLock
from vitruvian.results import Result

_MAX_PENDING = 4  # number of results that wait to be added


@dataclass(frozen=True)
class _RecordedImage:
    """An image of a dataset that was written before, in the form in which `CocoWriter` takes results."""

    source: str
    size_hw: tuple[int, int]
    frame: int | None
    time: float | None
    annotations: list[JsonObject]
    categories: list[JsonObject]
    settings: str | None

    def to_coco(self, *, image_id: int, first_id: int) -> list[JsonObject]:
        """Return the annotations with new numbers; panoptic ones have none of their own."""
        return [
            record | {"image_id": image_id} | ({"id": first_id + index} if "id" in record else {})
            for index, record in enumerate(self.annotations)
        ]

    def coco_categories(self) -> list[JsonObject]:
        """Return the categories of the dataset."""
        return self.categories


class CocoDataset:
    """A COCO dataset that grows from run to run. A background thread adds results, in order.

    The file is locked until the dataset is closed. The record of each image has a digest of the settings that its
    result depends on.

    Args:
        path: The .json file.
        overwrite: Whether to discard what the file has.

    Raises:
        InputError: Another process adds to it, or it is not a dataset.
    """

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        self._writer = CocoWriter(path, results=path.with_name(f"{path.stem}_results.json"))
        self._lock = OutputLock(path.parent, {path.name: path})
        self._added = 0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="coco")
        self._pending: deque[Future[int]] = deque()
        self._settings: dict[str, str | None] = {}
        try:
            for image in _read_dataset(path) if path.exists() and not overwrite else ():
                self._writer.add(image, details={} if image.settings is None else {"settings": image.settings})
                self._settings[image.source] = image.settings
        except BaseException:
            self.release()
            raise

    def has(self, name: str, settings: str) -> bool:
        """Return whether the dataset has the result of an image with these settings."""
        return self._settings.get(name) == settings

    def remove(self, names: Collection[str]) -> None:
        """Remove images whose new results will be added."""
        known = self._settings.keys() & names
        if known:
            self._wait(0)
            self._writer.remove(known)
            for name in known:
                del self._settings[name]

    def add(self, result: Result, name: str, settings: str) -> None:
        """Add a result; frames of a video share a name."""
        self._settings[name] = settings
        self._added += 1
        self._wait(_MAX_PENDING - 1)
        coco: Any = result.without_image()
        details = {"settings": settings}
        self._pending.append(self._worker.submit(self._writer.add, coco, file_name=name, details=details))

    def close(self) -> None:
        """Write the file, unless nothing was added."""
        try:
            self._wait(0)
            if self._added:
                self._writer.close()
        finally:
            self.release()

    def _wait(self, max_pending: int) -> None:
        """Wait until at most this number of results are pending."""
        while len(self._pending) > max_pending:
            self._pending.popleft().result()

    def release(self) -> None:
        """Unlock the file, without writing it."""
        self._worker.shutdown()
        self._writer.discard()
        self._lock.release()


def _read_dataset(path: Path) -> list[_RecordedImage]:
    """Read a dataset that was written before."""
    values = read_json(path)
    try:
        categories = {category["id"]: category for category in values["categories"] if category["name"]}
        annotations: dict[int, list[JsonObject]] = defaultdict(list)
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
                settings=image.get("settings"),
            )
            for image in values["images"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(
            f"{path}: is not a COCO dataset, so nothing can be added. Choose another --coco file, or add --overwrite."
        ) from error
