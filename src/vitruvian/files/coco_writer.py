"""`CocoWriter`: the results of many pictures as one COCO dataset."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.arrays import json_text
from vitruvian.files.atomic import replacing
from vitruvian.files.coco import image_record
from vitruvian.files.output_paths import output_path, safe_name
from vitruvian.files.pictures import write_png
from vitruvian.version import __version__


class CocoResult(Protocol):
    """What a result needs to become part of a dataset."""

    @property
    def size_hw(self) -> tuple[int, int]:
        """Height and width of the picture."""

    @property
    def source(self) -> str | None:
        """Name of the picture."""

    @property
    def frame(self) -> int | None:
        """Number of the frame in a video."""

    @property
    def time(self) -> float | None:
        """Its time in seconds."""

    def to_coco(self, *, image_id: int, first_id: int) -> list[dict[str, Any]]:
        """Records of its annotations, numbered from `first_id`."""

    def coco_categories(self) -> list[dict[str, Any]]:
        """The categories that the records may name."""


@runtime_checkable
class PanopticResult(Protocol):
    """A result whose annotation is a picture of segment numbers."""

    def id_picture(self) -> NDArray[np.uint8]:
        """Segment numbers as colours, uint8 [H, W, 3]."""


class CocoWriter:
    """Gather results and write one dataset: ``images``, ``annotations`` and ``categories``.

    Records wait in temporary files, so memory stays the same however many there are; several threads may add. The
    file appears when the writer is closed. Panoptic results also get their PNG of segment numbers, at once, in a
    folder named like the file without its ending, as COCO lays them out. Pictures and annotations count from 1.

        with CocoWriter("people.json") as writer:
            for result in results:
                writer.add(result)
    """

    def __init__(self, path: str | Path, *, description: str | None = None) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() != ".json":
            raise InputError(f"{self.path.name}: expected a name that ends in .json, got {self.path.suffix!r}.")
        self.images = self.annotations = 0
        self._info = {"description": description or "Results of vitruvian", "version": __version__}
        self._categories: dict[int, dict[str, Any]] = {}
        self._spools: dict[str, IO[str]] = {
            name: tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed in _release
            for name in ("images", "annotations")
        }
        self._lock = threading.Lock()
        self._open = True

    def add(self, result: CocoResult, *, file_name: str | None = None) -> int:
        """Add a result, and return the number of its picture. `file_name` is `result.source` unless given."""
        with self._lock:
            if not self._open:
                raise InputError(f"{self.path.name}: expected an open writer, got a closed one. Open a new one.")
            categories = self._merged(result.coco_categories())
            image_id = self.images + 1
            name = file_name or result.source or f"{image_id:012d}"
            records = result.to_coco(image_id=image_id, first_id=self.annotations + 1)
            if isinstance(result, PanopticResult):
                path = output_path(self.path.with_suffix(""), safe_name(Path(name).stem), f"_{image_id:06d}.png")
                write_png(path, result.id_picture())
                records = [record | {"file_name": path.name} for record in records]
            image = image_record(
                image_id=image_id, file_name=name, size_hw=result.size_hw, frame=result.frame, time=result.time
            )
            lines = [json_text(record) for record in records]
            self._put("images", self.images, [json_text(image)])
            self._put("annotations", self.annotations, lines)
            self._categories, self.images = categories, image_id
            self.annotations += len(records)
            return image_id

    def close(self) -> Path:
        """Write the file, and return its path; closing again does nothing."""
        with self._lock:
            if not self._open:
                return self.path
            with replacing(self.path) as temporary, temporary.open("w", encoding="utf-8") as file:
                file.write(f'{{"info":{json_text(self._info)}')
                for name, spool in self._spools.items():
                    file.write(f',\n"{name}":[')
                    spool.seek(0)
                    file.writelines(spool)
                    file.write("]")
                file.write(f',\n"categories":{json.dumps(list(self._categories.values()), ensure_ascii=False)}}}\n')
            self._release()
            return self.path

    def discard(self) -> None:
        """Give up without writing the file."""
        with self._lock:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _put(self, name: str, already: int, lines: list[str]) -> None:
        if lines:
            self._spools[name].write((",\n" if already else "\n") + ",\n".join(lines))

    def _merged(self, categories: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        merged = dict(self._categories)
        for category in categories:
            known = merged.setdefault(category["id"], category)
            if known != category:
                raise InputError(
                    f"category {category['id']}: expected {known['name']!r} as in the results before, "
                    f"got {category['name']!r} or other keypoints. Write each kind of result to its own file."
                )
        return merged

    def _release(self) -> None:
        self._open = False
        for spool in self._spools.values():
            spool.close()
