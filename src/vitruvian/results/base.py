"""What every result has: the size and name of its image, the detected people, `plot()`, `save()` and `to_dict()`.

All arrays are NumPy on the CPU, in the pixels of the source image after EXIF rotation. The center of the pixel in
column x and row y is the point (x, y). P people, H W pixels.
"""

from __future__ import annotations

import base64
import html
import io
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any, ClassVar, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from vitruvian.errors import InputError
from vitruvian.files.arrays import write_npz
from vitruvian.files.images import write_image, write_png_zip
from vitruvian.filesystem.json_files import JsonObject, json_text, write_json
from vitruvian.images.types import RgbImage, SizeHW

SCHEMA_VERSION = 1  # version of the JSON of results, see docs/schemas/result-1.json
_NOTEBOOK_SIDE = 1024  # longer side of drawings in notebooks, in pixels
T = TypeVar("T")


def array_of(dtype: type[np.generic], *shape: int | str) -> dict[str, tuple[type[np.generic], tuple[int | str, ...]]]:
    """Return metadata of a dataclass field that is an array of this data type and shape, for `_check_arrays`.

    A letter in `shape` stands for a length that is the same in all fields; H and W are those of the source image.
    """
    return {"array": (dtype, shape)}


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """The people that a task was run on.

    Attributes:
        boxes_xyxy: Corners in source pixels, float32 [P, 4].
        scores: Confidence of the detector, float32 [P]; 1 for boxes of the caller.
        ids: Identities in a video, int64 [P].
        detector: "given", "whole image", or the name of the detector.
        note: A note for the reader, for example that no person was detected and the whole image was used.
        fallback: Whether no one was detected, and the only person is the whole image instead.
    """

    boxes_xyxy: NDArray[np.float32] = field(metadata=array_of(np.float32, "P", 4))
    scores: NDArray[np.float32] = field(metadata=array_of(np.float32, "P"))
    ids: NDArray[np.int64] | None = field(default=None, metadata=array_of(np.int64, "P"))
    detector: str
    note: str | None = None
    fallback: bool = False

    def __post_init__(self) -> None:
        _check_arrays(self, {}, prefix="people.")

    def __len__(self) -> int:
        return len(self.boxes_xyxy)

    @property
    def boxes_xywh(self) -> NDArray[np.float32]:
        """The boxes as x, y, width and height: [P, 4]."""
        boxes = self.boxes_xyxy.copy()
        boxes[:, 2:] -= boxes[:, :2]
        return boxes

    def to_dict(self) -> JsonObject:
        """Return everything as plain lists and numbers."""
        return {
            "boxes_xyxy": rounded_list(self.boxes_xyxy, digits=2),
            "scores": rounded_list(self.scores),
            "ids": None if self.ids is None else self.ids.tolist(),
            "detector": self.detector,
            "note": self.note,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """Base of all results.

    Attributes:
        task: Name of the task that returns this result.
        extensions: File extensions that `save` accepts.
        refused_extensions: Advice for common extensions that it does not accept.
        info_fields: Fields that are not arrays and that `info` adds.
        size_hw: Height and width of the source image.
        image: The source image, for `plot`; `without_image` drops it.
        source: File name, URL or "array".
        model: Name of the model.
        people: The people that the task was run on, for tasks about people.
        frame: Number of the frame in a video, from 0.
        time: Its time in seconds.
    """

    task: ClassVar[str] = ""
    extensions: ClassVar[tuple[str, ...]] = ()
    refused_extensions: ClassVar[dict[str, str]] = {}
    info_fields: ClassVar[tuple[str, ...]] = ()

    size_hw: SizeHW
    image: RgbImage | None = field(default=None, metadata=array_of(np.uint8, "H", "W", 3))
    source: str | None = None
    model: str | None = None
    people: People | None = None
    frame: int | None = None
    time: float | None = None

    def __post_init__(self) -> None:
        size: object = self.size_hw
        if not (isinstance(size, tuple) and len(size) == 2 and all(isinstance(v, int) and v > 0 for v in size)):
            raise InputError(f"size_hw: expected (height, width) of at least 1×1 as whole numbers, got {size!r}.")
        self._convert_fields()
        _check_arrays(self, {"H": self.size_hw[0], "W": self.size_hw[1], **self._array_lengths()})

    def _convert_fields(self) -> None:
        """Convert what the constructor accepts to what the fields hold. Subclasses override it."""

    def _array_lengths(self) -> dict[str, int]:
        """Return the lengths that letters in `array_of` stand for, where other fields define them."""
        return {}

    def plot(self) -> Image:
        """Draw the result, over its image where that helps, at the size of the source."""
        raise NotImplementedError

    def plot_frame(self, **options: Any) -> Image:
        """Draw the result as `plot` does with these options, but always at the size of the source: without a legend."""
        plot: Callable[..., Image] = self.plot
        return plot(**options)

    @overload
    def save(self, path: str | Path, format: str | None = None) -> Path: ...
    @overload
    def save(self, path: IO[bytes], format: str | None = None) -> None: ...
    def save(self, path: str | Path | IO[bytes], format: str | None = None) -> Path | None:
        """Write the result in the format of the file name's suffix, see `extensions`. Returns the path.

        The file is written atomically. Missing folders are created.

        Args:
            path: File name; or a binary file object such as `io.BytesIO`, for which `format` is needed.
            format: An extension such as ``"png"``, if the name has none.
        """
        if not isinstance(path, str | os.PathLike):
            self._save_to_stream(path, format)
            return None
        target = with_format(path, format)
        name = target.name.lower()
        matching = [extension for extension in self.extensions if name.endswith(extension) and name != extension]
        if not matching:
            advice = self.refused_extensions.get(target.suffix.lower(), "")
            raise InputError(
                f"{target.name}: expected a name that ends in {', '.join(self.extensions)} for {self.task}, "
                f"got {target.suffix or 'no extension'!r}.{advice}"
            )
        self.write(target, max(matching, key=len))
        return target

    def _save_to_stream(self, stream: IO[bytes], format: str | None, **options: Any) -> None:
        """Write the file, with options of `save`, in a temporary folder, and copy it into a binary file object."""
        if not hasattr(stream, "write"):
            raise InputError(f"path: expected a file name or a file object, got {type(stream).__name__}.")
        if format is None:
            known = ", ".join(extension.lstrip(".") for extension in self.extensions)
            raise InputError(f"format: required for a file object: {known}. Pass format=…")
        with tempfile.TemporaryDirectory(prefix="vitruvian-") as folder:
            stream.write(self.save(Path(folder) / "result", format, **options).read_bytes())

    def show(self) -> None:
        """Show the drawing: below the cell in a notebook, in the viewer of the system elsewhere."""
        notebook = sys.modules.get("IPython")
        if notebook is not None and notebook.get_ipython() is not None:
            notebook.display.display(self.plot())
        else:
            self.plot().show()

    def _repr_png_(self) -> bytes:
        """Return the drawing for notebooks, at most 1024 pixels wide or high."""
        image, stream = self.plot(), io.BytesIO()
        image.thumbnail((_NOTEBOOK_SIDE, _NOTEBOOK_SIDE))
        image.save(stream, format="png")
        return stream.getvalue()

    def _repr_html_(self) -> str:
        """Return the drawing and what it is about for notebooks."""
        image = base64.b64encode(self._repr_png_()).decode()
        details = [self.task, self.source, self.model, f"{self.size_hw[1]}×{self.size_hw[0]}"]
        if self.people is not None:
            details += [f"{len(self.people)} {'person' if len(self.people) == 1 else 'people'}", self.people.note]
        text = html.escape(" · ".join(detail for detail in details if detail))
        return f'<figure><img src="data:image/png;base64,{image}" alt="{text}"><figcaption>{text}</figcaption></figure>'

    def write(self, path: Path, extension: str) -> None:
        """Write the result as `extension`, one of `extensions`. Called by `save`.

        This base class writes NPZ (every array by its name, all else as JSON in the text ``info``), JSON of `to_dict`,
        and other extensions as an image of `plot`.
        """
        if extension == ".crops.zip":
            write_png_zip(path, {f"{number:02d}": image for number, image in enumerate(self.crops(), 1) if image.size})
        elif extension == ".npz":
            write_npz(path, {**self.arrays(), "info": np.array(json_text(self.info()))})
        elif extension == ".json":
            write_json(path, self.to_dict())
        else:
            write_image(path, np.asarray(self.plot()))

    def to_dict(self) -> JsonObject:
        """Return the result as plain lists, numbers and text, ready for JSON; dense maps are summarized."""
        return self.info()

    def info(self) -> JsonObject:
        """Return everything but the arrays, ready for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "task": self.task,
            "source": self.source,
            "model": self.model,
            "size_hw": list(self.size_hw),
            "frame": self.frame,
            "time": self.time,
            "people": None if self.people is None else self.people.to_dict(),
            **{
                name: list(value) if isinstance(value := getattr(self, name), tuple) else value
                for name in self.info_fields
            },
        }

    def crops(self) -> list[NDArray[np.uint8]]:
        """Return the part of the source image in the bounding box of each person: uint8 [h, w, 3]."""
        boxes = () if self.people is None else self.people.boxes_xyxy
        return [self.canvas()[box_window(box, self.size_hw)] for box in boxes]

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


def box_window(box_xyxy: NDArray[np.float32], size_hw: SizeHW) -> tuple[slice, slice]:
    """Return the rows and columns of an image that a box touches; empty for a box without area."""
    height, width = size_hw
    left, top = np.floor(box_xyxy[:2]).clip(0).astype(int).tolist()
    right, bottom = np.ceil(box_xyxy[2:]).clip(0, [width, height]).astype(int).tolist()
    return slice(top, max(top, bottom)), slice(left, max(left, right))


def with_format(path: str | Path, format: str | None) -> Path:
    """Return a file name with the extension of a format such as "png", unless it has that already."""
    extension = "" if format is None else f".{format.lstrip('.').lower()}"
    return Path(path if str(path).lower().endswith(extension) else f"{path}{extension}")


def rounded_list(values: NDArray[np.floating], *, digits: int = 4) -> list[object]:
    """Return an array of numbers as nested lists for JSON: rounded, and None for what is not finite."""
    rounded = np.round(values.astype(np.float64), digits)
    finite = np.isfinite(rounded)
    if finite.all():  # much faster than through objects
        return list(rounded.tolist())
    listed = rounded.astype(object)
    listed[~finite] = None
    return list(listed.tolist())


def _check_arrays(result: People | Result, lengths: dict[str, int], *, prefix: str = "") -> None:
    """Raise `InputError` unless all fields with `array_of` are such arrays, or None where that is the default."""
    for item in fields(result):
        value = getattr(result, item.name)
        if "array" in item.metadata and not (value is None and item.default is None):
            dtype, shape = item.metadata["array"]
            shape = tuple(lengths.get(side, side) for side in shape)
            check_array(prefix + item.name, value, dtype=dtype, shape=shape)
            lengths |= {side: length for side, length in zip(shape, value.shape, strict=True) if isinstance(side, str)}


def check_array(name: str, value: object, *, dtype: type[np.generic], shape: tuple[int | str, ...]) -> None:
    """Raise `InputError` unless `value` is a NumPy array of this data type and shape; a letter is any length."""
    wanted = f"a numpy array of {np.dtype(dtype).name} and shape [{', '.join(map(str, shape))}]"
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name}: expected {wanted}, got {type(value).__name__}. Convert it with numpy.asarray.")
    if value.dtype != dtype:
        raise InputError(
            f"{name}: expected {wanted}, got {value.dtype.name} {list(value.shape)}. "
            f"Convert it with {name}.astype(numpy.{np.dtype(dtype).name})."
        )
    if value.ndim != len(shape) or any(
        isinstance(side, int) and side != length for side, length in zip(shape, value.shape, strict=True)
    ):
        raise InputError(f"{name}: expected {wanted}, got the shape {list(value.shape)}. Does it belong to this image?")
