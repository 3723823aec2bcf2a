"""What every result has: the size and name of its image, the detected people, `plot()`, `save()` and `to_dict()`.

All arrays are NumPy on the CPU, in the pixels of the source image after EXIF rotation. The center of the pixel in
column x and row y is the point (x, y). P people, H W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from vitruvian.draw.canvas import RgbImage
from vitruvian.errors import InputError
from vitruvian.files.arrays import JsonObject, json_text, write_json, write_npz

Picture = RgbImage  # the name that pipelines import


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """The people that a task was run on.

    Attributes:
        boxes_xyxy: Corners in source pixels, float32 [P, 4].
        scores: Confidence of the detector, float32 [P]; 1 for boxes of the caller.
        ids: Identities in a video, int64 [P].
        finder: "given", "whole picture", or the name of the detector.
        note: What a reader should know, for instance that no person was detected and the whole image was used.
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

    def to_dict(self) -> JsonObject:
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
        task: Name of the task that returns this result.
        endings: File name suffixes that `save` accepts.
        size_hw: Height and width of the source image.
        image: The source image, for `plot`; `without_image` drops it.
        source: File name, URL or "array".
        model: Name of the model.
        people: The people that the task was run on, for tasks about people.
        frame: Number of the frame in a video, from 0.
        time: Its time in seconds.
    """

    task: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()

    size_hw: tuple[int, int]
    image: RgbImage | None = None
    source: str | None = None
    model: str | None = None
    people: People | None = None
    frame: int | None = None
    time: float | None = None

    def __post_init__(self) -> None:
        size: object = self.size_hw
        if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(v, int) and v > 0 for v in size)):
            raise InputError(f"size_hw: expected (height, width) of at least 1×1 as whole numbers, got {size!r}.")
        if self.image is not None:
            self.check("image", np.uint8, *self.size_hw, 3)

    def check(self, name: str, dtype: type[np.generic], *shape: int | str) -> None:
        """Raise `InputError` unless a field is an array of this data type and shape, see `check_array`."""
        check_array(name, getattr(self, name), dtype=dtype, shape=shape)

    def plot(self) -> Image:
        """Draw the result, over its image where that helps, at the size of the source."""
        raise NotImplementedError

    def save(self, path: str | Path) -> Path:
        """Write the result in the format of the file name's suffix, see `endings`. Returns the path.

        The file is written atomically. Missing folders are created.
        """
        target = Path(path)
        name = target.name.lower()
        matching = [ending for ending in self.endings if name.endswith(ending) and name != ending]
        if not matching:
            raise InputError(
                f"{target.name}: expected a name that ends in {', '.join(self.endings)} for {self.task}, "
                f"got {target.suffix or 'no ending'!r}.{self.why_not(target.suffix.lower())}"
            )
        self.write(target, max(matching, key=len))
        return target

    def write(self, path: Path, ending: str) -> None:
        """Write the result as `ending`, one of `endings`. Called by `save`.

        This base class writes NPZ (every array by its name, all else as JSON in the text ``info``) and JSON of
        `to_dict`.
        """
        if ending == ".npz":
            write_npz(path, {**self.arrays(), "info": np.array(json_text(self.info()))})
        elif ending == ".json":
            write_json(path, self.to_dict())
        else:
            raise NotImplementedError(f"{type(self).__name__}: {ending} is in endings, and nothing writes it")

    def why_not(self, ending: str) -> str:
        """Return the reason why this result cannot be saved as `ending`, or an empty string."""
        return ""

    def to_dict(self) -> JsonObject:
        """Return the result as plain lists, numbers and text, ready for JSON; dense maps are summarized."""
        return self.info()

    def info(self) -> JsonObject:
        """Return everything but the arrays, ready for JSON."""
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
        """Return the same result without its source image, to save memory."""
        return replace(self, image=None)

    def canvas(self) -> RgbImage:
        """Return the source image to draw on, or a black one: uint8 [H, W, 3]."""
        return np.zeros((*self.size_hw, 3), np.uint8) if self.image is None else self.image

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the arrays of this result and of `people` by name, without the source image, for NPZ files."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "image"}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        if self.people is not None:
            arrays["people_boxes_xyxy"], arrays["people_scores"] = self.people.boxes_xyxy, self.people.scores
            if self.people.ids is not None:
                arrays["people_ids"] = self.people.ids
        return arrays

    def __repr__(self) -> str:
        maps = ", ".join(f"{name} {list(value.shape)}" for name, value in self.arrays().items())
        return f"{type(self).__name__}({self.source or 'array'}, {self.size_hw[0]}×{self.size_hw[1]}: {maps})"


def plain(values: NDArray[np.floating], *, digits: int = 4) -> list[object]:
    """Return an array of numbers as nested lists for JSON: rounded, and None for what is not finite."""
    rounded = np.round(values.astype(np.float64), digits)
    listed = rounded.astype(object)
    listed[~np.isfinite(rounded)] = None
    return list(listed.tolist())


def check_array(name: str, value: object, *, dtype: type[np.generic], shape: tuple[int | str, ...]) -> None:
    """Raise `InputError` unless `value` is a NumPy array of this data type and shape.

    A letter in `shape` stands for any length, the same one wherever it appears.
    """
    wanted = f"a numpy array of {np.dtype(dtype).name} and shape [{', '.join(map(str, shape))}]"
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name}: expected {wanted}, got {type(value).__name__}. Convert it with numpy.asarray.")
    if value.dtype != dtype:
        raise InputError(
            f"{name}: expected {wanted}, got {value.dtype.name} {list(value.shape)}. "
            f"Convert it with {name}.astype(numpy.{np.dtype(dtype).name})."
        )
    lengths: dict[str, int] = {}
    matches = value.ndim == len(shape) and all(
        length == (lengths.setdefault(side, length) if isinstance(side, str) else side)
        for side, length in zip(shape, value.shape, strict=True)
    )
    if not matches:
        raise InputError(f"{name}: expected {wanted}, got the shape {list(value.shape)}. Is it of this image?")


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Raise `InputError` unless `value` is one of `known`."""
    if value not in known:
        raise InputError(f"{name}: expected one of {', '.join(map(repr, known))}, got {value!r}.")
