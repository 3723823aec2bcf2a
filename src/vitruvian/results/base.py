"""What every result has: the size and name of its picture, who was looked at, `plot()`, `save()` and `to_dict()`.

All arrays are numpy on the CPU, in the pixels of the source after its EXIF rotation. The centre of the pixel in column
x and row y is the point (x, y). A *picture* is RGB, uint8 [H, W, 3]. P people, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.results.checks import check_array, check_size

if TYPE_CHECKING:
    from PIL.Image import Image

Picture = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """Who was looked at.

    Attributes:
        boxes_xyxy: Corners in source pixels, float32 [P, 4].
        scores: How sure the finder was, float32 [P]; 1 for given boxes.
        ids: Identities in a video, int64 [P].
        finder: "given", "whole picture", or the name of what found them.
        note: What a reader should know, for instance that nobody was found and the whole picture was looked at.
    """

    boxes_xyxy: NDArray[np.float32]
    scores: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None
    finder: str
    note: str | None = None

    def __post_init__(self) -> None:
        check_array("people.boxes_xyxy", self.boxes_xyxy, dtype=np.float32, shape=("P", 4))
        check_array("people.scores", self.scores, dtype=np.float32, shape=(len(self.boxes_xyxy),))
        if self.ids is not None:
            check_array("people.ids", self.ids, dtype=np.int64, shape=(len(self.boxes_xyxy),))

    def __len__(self) -> int:
        return len(self.boxes_xyxy)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain lists and numbers."""
        return {
            "boxes_xyxy": plain(self.boxes_xyxy, digits=2),
            "scores": plain(self.scores),
            "ids": None if self.ids is None else self.ids.tolist(),
            "finder": self.finder,
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """Base of all results.

    Attributes:
        task: Name of the task that gives this result.
        endings: Endings of file names that `save` takes.
        size_hw: Height and width of the source picture.
        image: The source picture, for `plot`; `without_image` drops it.
        source: File name, URL or "array".
        model: Name of the model.
        people: Who was looked at, where the task looks at people.
        frame: Number of the frame in a video, from 0.
        time: Its time in seconds.
    """

    task: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()

    size_hw: tuple[int, int]
    image: Picture | None = None
    source: str | None = None
    model: str | None = None
    people: People | None = None
    frame: int | None = None
    time: float | None = None

    def __post_init__(self) -> None:
        check_size(self.size_hw)
        if self.image is not None:
            check_array("image", self.image, dtype=np.uint8, shape=(*self.size_hw, 3))

    def plot(self) -> Image:
        """Draw the result, on its picture where that helps, at the size of the source."""
        raise NotImplementedError

    def save(self, path: str | Path) -> Path:
        """Write the result; the ending of the name says how, see `endings`. Returns the path.

        The file appears whole or not at all. Folders that are missing are made.
        """
        target = Path(path)
        name = target.name.lower()
        fitting = [ending for ending in self.endings if name.endswith(ending) and name != ending]
        if not fitting:
            raise InputError(
                f"{target.name}: expected a name that ends in {', '.join(self.endings)} for {self.task}, "
                f"got {target.suffix or 'no ending'!r}.{self.why_not(target.suffix.lower())}"
            )
        self.write(target, max(fitting, key=len))
        return target

    def write(self, path: Path, ending: str) -> None:
        """Write the result as `ending`, one of `endings`; `save` is the way in.

        Here: NPZ with every array by its name and all else as JSON in the text ``info``, and JSON of `to_dict`.
        """
        from vitruvian.files.arrays import json_text, write_json, write_npz

        if ending == ".npz":
            write_npz(path, {**self.arrays(), "info": np.array(json_text(self.info()))})
        elif ending == ".json":
            write_json(path, self.to_dict())
        else:
            raise NotImplementedError(f"{type(self).__name__}: {ending} is in endings, and nothing writes it")

    def why_not(self, ending: str) -> str:
        """Say why this result does not come as `ending`, where there is a reason worth telling."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain lists, numbers and text, ready for JSON; maps of pixels are summed up."""
        return self.info()

    def info(self) -> dict[str, Any]:
        """Return what there is beside arrays, ready for JSON."""
        return {
            "task": self.task,
            "source": self.source,
            "model": self.model,
            "size_hw": list(self.size_hw),
            "frame": self.frame,
            "time": self.time,
            "people": None if self.people is None else self.people.to_dict(),
        }

    def without_image(self) -> Self:
        """Return the same result without its source picture, to save memory."""
        return replace(self, image=None)

    def canvas(self) -> Picture:
        """Return the source picture to draw on, black where it is not there: uint8 [H, W, 3]."""
        return np.zeros((*self.size_hw, 3), np.uint8) if self.image is None else self.image

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of this result and of `people` by name, without the source picture, for NPZ files."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "image"}
        found = {name: value for name, value in own.items() if isinstance(value, np.ndarray)}
        if self.people is not None:
            found["people_boxes_xyxy"], found["people_scores"] = self.people.boxes_xyxy, self.people.scores
            if self.people.ids is not None:
                found["people_ids"] = self.people.ids
        return found

    def __repr__(self) -> str:
        maps = ", ".join(f"{name} {list(value.shape)}" for name, value in self.arrays().items())
        return f"{type(self).__name__}({self.source or 'array'}, {self.size_hw[0]}×{self.size_hw[1]}: {maps})"


def plain(values: NDArray[Any], *, digits: int = 4) -> Any:
    """Return an array of numbers as nested lists for JSON: rounded, and None for what is not finite."""
    rounded = np.round(values.astype(np.float64), digits)
    if np.isfinite(rounded).all():
        return rounded.tolist()
    listed = rounded.astype(object)
    listed[~np.isfinite(rounded)] = None
    return listed.tolist()
