"""People detectors, and what pipelines do with their boxes.

    image ── detector ──▶ boxes ── detect_people ──▶ People: clipped to the image, by score, with a note if empty

A detector is any object with a `name` and a method `detect(image) -> People`. If its answer depends on the file, it has
`detect_in` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitruvian.devices import Device, DType
from vitruvian.errors import InputError
from vitruvian.hub import is_builtin
from vitruvian.images.types import RgbImage, SizeHW
from vitruvian.pipelines.options import BoxFormat, OnEmpty
from vitruvian.results.base import People

_WHOLE_IMAGE = "whole image"  # name of the detector in results; saved files have it


@runtime_checkable
class PeopleDetector(Protocol):
    """Detects people in an image.

    Attributes:
        name: Its name in results.
    """

    name: str

    def detect(self, image: RgbImage, /) -> People:
        """Return the people in an image [H, W, 3]; possibly none."""
        ...


@runtime_checkable
class SourceDetector(PeopleDetector, Protocol):
    """A detector whose answer depends on the file of the image."""

    def detect_in(self, image: RgbImage, /, *, source: str, frame: int | None) -> People:
        """Return the people in an image [H, W, 3] of a file, or in one frame of a video."""
        ...


DetectorSpec: TypeAlias = str | Path | PeopleDetector | Callable[[RgbImage], object]


class FunctionDetector:
    """Wraps a function that takes an image [H, W, 3] and returns boxes [P, 4], or with scores [P, 5].

    Args:
        function: The function; boxes are x1, y1, x2, y2.
        name: Its name in results; by default the name of the function.
    """

    def __init__(self, function: Callable[[RgbImage], object], *, name: str | None = None) -> None:
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", type(function).__name__))

    def detect(self, image: RgbImage, /) -> People:
        """Return what the function returns, checked."""
        detected = self.function(image)
        if isinstance(detected, People):
            return detected
        table = np.asarray(detected, dtype=np.float32)
        table = table.reshape(0, 4) if table.size == 0 else table  # [P, 4 or 5]
        if table.ndim != 2 or table.shape[1] not in (4, 5):
            raise InputError(
                f"{self.name}: expected boxes [P, 4] or boxes with scores [P, 5], got {list(table.shape)}. "
                "Return one row x1, y1, x2, y2 (and score) per person."
            )
        scores = table[:, 4] if table.shape[1] == 5 else np.ones(len(table), np.float32)  # [P]
        return People(boxes_xyxy=table[:, :4].copy(), scores=scores.copy(), detector=self.name)


def open_detector(
    spec: DetectorSpec | None,
    *,
    device: Device = None,
    dtype: DType = None,
    threshold: float | None = None,
) -> PeopleDetector:
    """Open a people detector.

    Args:
        spec: ``None`` or ``"whole"`` for the whole image; ``"builtin"`` for the built-in model, or a
            folder of the same format; a file of boxes (.json, .csv); the records of tracked objects (.jsonl); an
            ONNX detector (.onnx: YOLOX, RTMDet); a folder or Hub name of a Mask2Former or MaskFormer with the class
            person; a function image → boxes; or a detector.
        device: Device of its model; by default the best one available.
        dtype: Data type of its weights; by default the checkpoint's.
        threshold: Lowest score of a person; by default the detector's.
    """
    if spec is None or (isinstance(spec, str) and spec.lower() == "whole"):
        return FunctionDetector(lambda image: whole_image((image.shape[0], image.shape[1])), name=_WHOLE_IMAGE)
    if not isinstance(spec, str | Path):
        if isinstance(spec, PeopleDetector):
            return spec
        if callable(spec):
            return FunctionDetector(spec)
        raise InputError(
            f"detect: expected a name, a path, a function or an object with detect(image), got {type(spec).__name__}. "
            "See open_detector."
        )
    if not str(spec).strip():
        raise InputError('detect: expected a name or a path, got an empty string. Use "whole" for the whole image.')
    suffix = Path(spec).suffix.lower()
    options: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    if suffix == ".onnx":
        from vitruvian.pipelines.people.onnx_detector import OnnxDetector

        return OnnxDetector(spec, device=device, **options)
    if suffix in (".json", ".csv"):
        from vitruvian.pipelines.people.boxes_file import BoxesFile

        return BoxesFile(spec, **options)
    if suffix == ".jsonl":
        from vitruvian.pipelines.people.track_file import TrackFile

        return TrackFile(spec, **options)
    from vitruvian.models.sapiens2.multitask_checkpoint import local_heads

    if is_builtin(spec) or local_heads(spec):
        from vitruvian.pipelines.people.sapiens2_detector import Sapiens2Detector

        return Sapiens2Detector.open(spec, device=device, dtype=dtype, **options)
    from vitruvian.pipelines.people.segmentation_detector import SegmentationDetector

    return SegmentationDetector.open(spec, device=device, dtype=dtype, **options)


def run_detector(detector: PeopleDetector, image: RgbImage, *, source: str, frame: int | None) -> People:
    """Run a detector of either kind on an image [H, W, 3]."""
    if isinstance(detector, SourceDetector):
        return detector.detect_in(image, source=source, frame=frame)
    return detector.detect(image)


def detect_people(
    detector: PeopleDetector,
    image: RgbImage,
    *,
    source: str = "",
    frame: int | None = None,
    on_empty: OnEmpty = "whole",
    max_people: int | None = None,
) -> People:
    """Detect the people of an image: boxes clipped to it, those below one pixel dropped, sorted by score.

    Args:
        detector: The detector.
        image: RGB [H, W, 3].
        source: Name or path of the file, for detectors that look boxes up by it.
        frame: Frame number in a video.
        on_empty: What to return if there is no one: one person as large as the image, no one, or an error. The note of
            the result states it.
        max_people: Maximum number of people, by score.
    """
    detected = run_detector(detector, image, source=source, frame=frame)
    size_hw = image.shape[0], image.shape[1]
    boxes = _clip_boxes(detected.boxes_xyxy, size_hw)  # [P, 4]
    with np.errstate(invalid="ignore"):
        valid = np.isfinite(boxes).all(1) & np.isfinite(detected.scores)  # [P]
        valid &= (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
    order = np.flatnonzero(valid)
    order = order[np.argsort(-detected.scores[order], kind="stable")][:max_people]
    people = replace(
        detected,
        boxes_xyxy=boxes[order],
        scores=detected.scores[order],
        ids=None if detected.ids is None else detected.ids[order],
    )
    if len(people):
        return people
    if on_empty == "error":
        raise InputError(f"{source or 'image'}: expected people, but {detected.detector} detected no one. Pass boxes.")
    note = f"{detected.note}: no person detected" if detected.note else "no person detected"
    if on_empty == "none":
        return replace(people, note=note)
    whole = whole_image(size_hw, detector=detected.detector, score=0.0, note=f"{note}; processed the whole image")
    return replace(whole, fallback=True)


def _clip_boxes(boxes_xyxy: NDArray[np.float32], size_hw: SizeHW) -> NDArray[np.float32]:
    """Clip boxes [P, 4] to an image."""
    height, width = size_hw
    clipped: NDArray[np.float32] = np.clip(boxes_xyxy, 0, np.array([width, height] * 2, np.float32)).astype(np.float32)
    return clipped


def whole_image(
    size_hw: SizeHW, *, detector: str = _WHOLE_IMAGE, score: float = 1.0, note: str | None = None
) -> People:
    """Return one person as large as the image."""
    height, width = size_hw
    return People(
        boxes_xyxy=np.array([[0, 0, width, height]], np.float32),
        scores=np.array([score], np.float32),
        detector=detector,
        note=note,
    )


def people_from_boxes(boxes: ArrayLike, size_hw: SizeHW, *, box_format: BoxFormat = "xywh") -> People:
    """Check boxes [P, 4] (or one box [4]) that a user passed for an image; return them in their order.

    A box may extend beyond the image, but must overlap it.
    """
    try:
        table = np.array(boxes, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"boxes: expected rows of four numbers, got {type(boxes).__name__}.") from error
    table = table.reshape(0, 4) if table.size == 0 else table
    table = table[None] if table.ndim == 1 else table
    if table.ndim != 2 or table.shape[1] != 4:
        raise InputError(f"boxes: expected the shape [P, 4], got {list(table.shape)}. Pass four numbers per person.")
    corners = table.copy()  # [P, 4]
    if box_format == "xywh":
        corners[:, 2:] += corners[:, :2]
    words = "x, y, width, height" if box_format == "xywh" else "x1, y1, x2, y2"
    clipped = _clip_boxes(corners, size_hw)  # [P, 4]
    for number, (row, box, inside) in enumerate(zip(table.tolist(), corners, clipped, strict=True)):
        problem = None
        if not np.isfinite(box).all():
            problem = f"finite numbers, got {row}."
        elif not (box[2:] > box[:2]).all():
            problem = f"a box with some area, got {row}. Check the order of its numbers."
        elif not (inside[2:] > inside[:2]).all():
            problem = f"a box in the {size_hw[1]}×{size_hw[0]} image, got {row}, which is outside. Use source pixels."
        if problem is not None:
            raise InputError(f"boxes[{number}]: expected {words} of {problem}")
    return People(boxes_xyxy=corners, scores=np.ones(len(corners), np.float32), detector="given")
