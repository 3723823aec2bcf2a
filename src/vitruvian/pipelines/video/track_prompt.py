"""`TrackPrompt`: points, a box or a mask that mark an object in one frame of a video."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitruvian.errors import PromptError, one_line
from vitruvian.files.video import SequenceReader, VideoReader
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession

MAX_OBJECT_ID = 65535  # of a 16-bit map of ids


@dataclass(frozen=True, kw_only=True, eq=False)
class TrackPrompt:
    """What marks an object in one frame, in pixels of the upright frame.

    Args:
        object_id: Identity of the object, a number from 1 to 65535.
        frame: Number of the frame, from 0; the `frame` of results.
        points: [[x, y], …]. They are added to earlier points of the object in this frame.
        labels: For each point 1 or True on the object (the default), 0 or False off it.
        box: x1, y1, x2, y2. It replaces earlier points and boxes of the object in this frame.
        mask: bool [H, W], alone.

    Raises:
        PromptError: Something is missing, has the wrong shape or is not a finite number.
    """

    object_id: int
    frame: int = 0
    points: ArrayLike | None = None
    labels: ArrayLike | None = None
    box: ArrayLike | None = None
    mask: ArrayLike | None = None

    def __post_init__(self) -> None:
        object_id, frame = _whole_number(self.object_id), _whole_number(self.frame)
        if not 1 <= object_id <= MAX_OBJECT_ID:
            raise PromptError(f"object_id: expected a number from 1 to {MAX_OBJECT_ID}, got {self.object_id!r}.")
        if frame < 0:
            raise PromptError(f"frame: expected a number from 0, got {self.frame!r} for object {object_id}.")
        self._set(object_id=object_id, frame=frame)
        given = [name for name in ("points", "box", "mask") if getattr(self, name) is not None]
        if not given or (self.mask is not None and len(given) > 1):
            got = " and ".join(given) or "none"
            raise PromptError(f"prompts: expected points, a box or both, or a mask, got {got} for {self.name}.")
        if self.labels is not None and self.points is None:
            raise PromptError(f"labels: expected points too for {self.name}.")
        if self.points is not None:
            self._check_points()
        if self.box is not None:
            box = self._array("box")
            if box.shape != (4,) or not (box[:2] < box[2:]).all():
                raise self._error("box", "x1, y1, x2, y2 with x1 < x2 and y1 < y2")
            self._set(box=box.astype(np.float64))
        if self.mask is not None:
            mask = self._array("mask", kinds="biuf")
            if mask.ndim != 2:
                raise PromptError(f"mask: expected [H, W] for {self.name}, got {list(mask.shape)}.")
            if not mask.any():
                raise PromptError(f"mask: expected pixels of {self.name}, got an empty mask. Leave the prompt out.")
            self._set(mask=mask.astype(bool))

    @property
    def name(self) -> str:
        """The object and the frame, for messages."""
        return f"object {self.object_id} in frame {self.frame}"

    def check_fits(self, size_hw: tuple[int, int]) -> None:
        """Raise `PromptError` for points or a box outside of a frame of this size, and for a mask of another size."""
        height, width = size_hw
        if self.points is not None:
            points = np.asarray(self.points)  # [N, 2]
            outside = points[((points < 0) | (points > (width, height))).any(axis=1)].tolist()
            if outside:
                expected = f"x in 0…{width} and y in 0…{height}"
                raise PromptError(f"points: expected {expected} for {self.name}, got {outside}.")
        if self.box is not None:
            x1, y1, x2, y2 = np.asarray(self.box).tolist()
            if x2 <= 0 or y2 <= 0 or x1 >= width or y1 >= height:
                raise self._error("box", f"a box that meets the frame ({width} × {height} pixels)")
        if self.mask is not None and np.shape(self.mask) != size_hw:
            got = list(np.shape(self.mask))
            raise PromptError(f"mask: expected {height}×{width} pixels for {self.name}, got {got}.")

    def add_to(
        self,
        session: Sam2VideoInferenceSession,
        processor: Sam2VideoProcessor,
        frame_idx: int,
        size_hw: tuple[int, int],
    ) -> None:
        """Add this prompt to a frame of a session; `size_hw` is the size of the frame."""
        self.check_fits(size_hw)
        inputs: dict[str, Any] = {"clear_old_inputs": self.box is not None}
        if self.points is not None:
            points = np.asarray(self.points)  # [N, 2]
            labels = np.ones(len(points), int) if self.labels is None else np.asarray(self.labels)
            inputs |= {"input_points": [[points.tolist()]], "input_labels": [[labels.tolist()]]}
        if self.box is not None:
            inputs["input_boxes"] = [[np.asarray(self.box).tolist()]]
        if self.mask is not None:
            inputs = {"input_masks": [np.asarray(self.mask)]}
        try:
            processor.add_inputs_to_inference_session(
                session, frame_idx, self.object_id, original_size=size_hw, **inputs
            )
        except ValueError as error:
            raise PromptError(f"prompts: expected what fits {self.name}, got an error: {error}") from error

    def _check_points(self) -> None:
        points = np.atleast_2d(self._array("points"))  # [N, 2]
        if points.ndim != 2 or points.shape[1] != 2 or not len(points):
            raise self._error("points", "[[x, y], …]")
        self._set(points=points.astype(np.float64))
        if self.labels is not None:
            labels = np.atleast_1d(self._array("labels", kinds="biuf"))
            if labels.shape != (len(points),) or not np.isin(labels, (0, 1)).all():
                raise self._error("labels", f"0 or 1 for each of {len(points)} points")
            self._set(labels=labels.astype(np.int64))

    def _array(self, field: str, *, kinds: str = "iuf") -> NDArray[Any]:
        """Copy a field to an array of finite numbers, whose data type is one of `kinds`."""
        value = getattr(self, field)
        try:
            array = np.array(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        except (TypeError, ValueError):  # lists of different lengths
            raise self._error(field, "an array of numbers") from None
        if array.size and not (array.dtype.kind in kinds and np.isfinite(array).all()):
            raise self._error(field, "finite numbers")
        return array

    def _error(self, field: str, expected: str) -> PromptError:
        return PromptError(f"{field}: expected {expected} for {self.name}, got {one_line(getattr(self, field))}.")

    def _set(self, **fields: object) -> None:
        for field, value in fields.items():
            object.__setattr__(self, field, value)


def check_together(prompts: Iterable[TrackPrompt]) -> None:
    """Raise `PromptError` for prompts of an object in a frame of which one is a mask: it would replace the others."""
    by_name: dict[str, list[TrackPrompt]] = {}
    for prompt in prompts:
        by_name.setdefault(prompt.name, []).append(prompt)
    for name, group in by_name.items():
        if len(group) > 1 and any(prompt.mask is not None for prompt in group):
            raise PromptError(
                f"prompts: expected a mask alone for {name}, got {len(group)} prompts. Refine its result with points."
            )


def check_prompts(prompts: Iterable[TrackPrompt], video: VideoReader | SequenceReader) -> None:
    """Raise `PromptError` for prompts that do not fit the frames of a video, or are on frames that it does not have."""
    prompts = list(prompts)
    for prompt in prompts:
        prompt.check_fits(video.size_hw)
    if not all(video.count is not None and prompt.frame < video.count for prompt in prompts):
        check_frames(prompts, video.count_packets())  # headers may be wrong


def check_frames(prompts: Iterable[TrackPrompt], count: int) -> None:
    """Raise `PromptError` for prompts on frames from `count` on, which the video does not have."""
    if got := ", ".join(f"{one.frame} for object {one.object_id}" for one in prompts if one.frame >= count):
        raise PromptError(f"prompts: expected frames of the video, which ends with frame {count - 1}, got {got}.")


def _whole_number(value: Any) -> int:
    """Return an integer of any type, such as those of NumPy, as `int`, and anything else as -1."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return -1
