"""Who is in a picture: finders, and what pipelines do with what these find.

    picture ── a finder ──▶ boxes ── find_people ──▶ People: inside the picture, best first, and a note if nobody is

A finder is anything with a `name` and `find(picture) -> People`; one that needs to know the file has `find_in` too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.errors import InputError
from vitruvian.hub import names_builtin
from vitruvian.results.base import People, Picture

NobodyRule = Literal["whole", "none", "error"]
BoxForm = Literal["xyxy", "xywh"]
WHOLE = "whole picture"


@runtime_checkable
class PeopleFinder(Protocol):
    """Finds people in a picture.

    Attributes:
        name: What a result says of who found its people.
    """

    name: str

    def find(self, picture: Picture) -> People:
        """Return the people in a picture [H, W, 3]; there may be none."""
        ...


@runtime_checkable
class SourceFinder(PeopleFinder, Protocol):
    """A finder whose answer depends on which file the picture is from."""

    def find_in(self, picture: Picture, *, source: str, frame: int | None) -> People:
        """Return the people in a picture [H, W, 3] of a file, or in one frame of a video."""
        ...


class FunctionFinder:
    """Makes a finder of a function that takes a picture [H, W, 3] and returns boxes [P, 4], or with scores [P, 5].

    Args:
        function: The function; boxes are x1, y1, x2, y2.
        name: What results call it; by default the function's name.
    """

    def __init__(self, function: Callable[[Picture], Any], *, name: str | None = None) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))

    def find(self, picture: Picture) -> People:
        """Return what the function finds."""
        found = self.function(picture)
        if isinstance(found, People):
            return found
        table = np.asarray(found, dtype=np.float32)
        table = table.reshape(0, 4) if table.size == 0 else table  # [P, 4 or 5]
        if table.ndim != 2 or table.shape[1] not in (4, 5):
            raise InputError(
                f"{self.name}: expected boxes [P, 4] or boxes with scores [P, 5], got {list(table.shape)}. "
                "Return one row x1, y1, x2, y2 (and score) a person."
            )
        scores = table[:, 4] if table.shape[1] == 5 else np.ones(len(table), np.float32)  # [P]
        return People(boxes_xyxy=table[:, :4].copy(), scores=scores.copy(), finder=self.name)


def open_finder(
    spec: str | Path | PeopleFinder | Callable[[Picture], Any] | None,
    *,
    device: Any = None,
    dtype: Any = None,
    threshold: float | None = None,
) -> PeopleFinder:
    """Open a finder.

    Args:
        spec: ``None`` or ``"whole"`` for the whole picture; ``"builtin"`` for the small model inside the package, or a
            folder that is packed like it; a file of boxes (.json, .csv); an ONNX detector (.onnx: YOLOX, RTMDet); a
            folder or Hub name of a Mask2Former or MaskFormer that knows people; a function picture → boxes; or a
            finder.
        device: Where its model runs; by default the best device here.
        dtype: Data type of its weights; by default the checkpoint's.
        threshold: Lowest score of a person; by default the finder's own.
    """
    if spec is None or (isinstance(spec, str) and spec.lower() == "whole"):
        from vitruvian.pipelines.finders.whole import WholePicture

        return WholePicture()
    if not isinstance(spec, str | Path):
        if isinstance(spec, PeopleFinder):
            return spec
        if callable(spec):
            return FunctionFinder(spec)
        raise InputError(
            f"finder: expected a name, a path, a function or an object with find(picture), got {type(spec).__name__}. "
            "See open_finder."
        )
    if not str(spec).strip():
        raise InputError('finder: expected a name or a path, got nothing. Use "whole" for the whole picture.')
    ending = Path(spec).suffix.lower()
    chosen: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    if ending == ".onnx":
        from vitruvian.pipelines.finders.onnx import OnnxFinder

        return OnnxFinder(spec, device=device, **chosen)
    if ending in (".json", ".csv"):
        from vitruvian.pipelines.finders.boxes_file import FileFinder

        return FileFinder(spec, **chosen)
    from vitruvian.auto import packed_tasks

    if names_builtin(spec) or packed_tasks(spec):
        from vitruvian.pipelines.finders.builtin import BuiltinFinder

        return BuiltinFinder.open(spec, device=device, dtype=dtype, **chosen)
    from vitruvian.pipelines.finders.segmenter import SegmenterFinder

    return SegmenterFinder.open(spec, device=device, dtype=dtype, **chosen)


def find_people(
    finder: PeopleFinder,
    picture: Picture,
    *,
    source: str = "",
    frame: int | None = None,
    nobody: NobodyRule = "whole",
    max_people: int | None = None,
) -> People:
    """Find the people of a picture, boxes clipped to it, best first.

    Args:
        finder: Who looks.
        picture: RGB [H, W, 3].
        source: Name or path of the file, for finders that look things up by it.
        frame: Number of the frame, in a video.
        nobody: What to do when nobody is found: look at the whole picture, return no one, or raise. The note of the
            result says which.
        max_people: Keep only so many, the best.
    """
    if nobody not in ("whole", "none", "error"):
        raise InputError(f"nobody: expected whole, none or error, got {nobody!r}.")
    if max_people is not None and max_people < 1:
        raise InputError(f"max_people: expected at least 1, got {max_people}. Leave it out to keep everyone.")
    if isinstance(finder, SourceFinder):
        found = finder.find_in(picture, source=source, frame=frame)
    else:
        found = finder.find(picture)
    height, width = picture.shape[:2]
    kept = tidy(found, size_hw=(height, width), max_people=max_people)
    if len(kept):
        return kept
    if nobody == "error":
        raise InputError(f"{source or 'picture'}: expected people, but {found.finder} found nobody. Give boxes.")
    before = f"{found.note}: " if found.note else ""
    if nobody == "none":
        return replace(kept, note=f"{before}nobody found")
    note = f"{before}nobody found; looked at the whole picture"
    return whole_picture((height, width), finder=found.finder, score=0.0, note=note)


def tidy(people: People, *, size_hw: tuple[int, int], max_people: int | None = None) -> People:
    """Clip boxes to the picture, drop those with less than a pixel in it, and sort by score; ids follow."""
    boxes = clip_boxes(people.boxes_xyxy, size_hw)  # [P, 4]
    sides = boxes[:, 2:] - boxes[:, :2]  # [P, 2]
    with np.errstate(invalid="ignore"):
        usable = np.isfinite(boxes).all(1) & np.isfinite(people.scores) & (sides >= 1).all(1)  # [P]
    order = np.flatnonzero(usable)
    order = order[np.argsort(-people.scores[order], kind="stable")][:max_people]
    return replace(
        people,
        boxes_xyxy=boxes[order],
        scores=people.scores[order],
        ids=None if people.ids is None else people.ids[order],
    )


def clip_boxes(boxes_xyxy: NDArray[np.float32], size_hw: tuple[int, int]) -> NDArray[np.float32]:
    """Cut boxes [P, 4] off at the edges of a picture."""
    height, width = size_hw
    limits = np.array([width, height, width, height], np.float32)
    clipped: NDArray[np.float32] = np.clip(boxes_xyxy, 0, limits).astype(np.float32)
    return clipped


def whole_picture(
    size_hw: tuple[int, int], *, finder: str = WHOLE, score: float = 1.0, note: str | None = None
) -> People:
    """Return one person as large as the picture."""
    height, width = size_hw
    return People(
        boxes_xyxy=np.array([[0, 0, width, height]], np.float32),
        scores=np.array([score], np.float32),
        finder=finder,
        note=note,
    )


def given_people(
    boxes: ArrayLike,
    size_hw: tuple[int, int],
    *,
    form: BoxForm = "xywh",
    scores: Sequence[float] | NDArray[np.float32] | None = None,
) -> People:
    """Check boxes [P, 4] (or one box [4]) that a person gave for a picture and return them, in their order.

    They may reach out of the picture, but each must have some of it.
    """
    if form not in ("xyxy", "xywh"):
        raise InputError(f"form: expected xyxy or xywh, got {form!r}.")
    try:
        table = np.array(boxes, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"boxes: expected rows of four numbers, got {type(boxes).__name__}.") from error
    table = table.reshape(0, 4) if table.size == 0 else table
    table = table[None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] != 4:
        raise InputError(f"boxes: expected the shape [P, 4], got {list(table.shape)}. Pass four numbers a person.")
    corners = table.copy()  # [P, 4]
    if form == "xywh":
        corners[:, 2:] += corners[:, :2]
    words = "x, y, width, height" if form == "xywh" else "x1, y1, x2, y2"
    for number, (row, box) in enumerate(zip(table, corners, strict=True)):
        where = f"boxes[{number}]: expected {words}"
        if not np.isfinite(box).all():
            raise InputError(f"{where} as finite numbers, got {row.tolist()}.")
        if not (box[2:] > box[:2]).all():
            raise InputError(f"{where} of a box with some area, got {row.tolist()}. Is it in another form?")
        inside = clip_boxes(box[None], size_hw)[0]
        if not (inside[2:] > inside[:2]).all():
            raise InputError(
                f"{where} of a box in the {size_hw[1]}×{size_hw[0]} picture, got {row.tolist()}, which lies outside. "
                "Boxes are in pixels of the upright source picture."
            )
    sure = np.ones(len(corners), np.float32) if scores is None else np.asarray(scores, dtype=np.float32)
    if sure.shape != (len(corners),):
        raise InputError(f"scores: expected one for each of {len(corners)} boxes, got the shape {list(sure.shape)}.")
    return People(boxes_xyxy=corners, scores=sure, finder="given")
