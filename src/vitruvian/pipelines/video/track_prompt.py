"""`TrackPrompt`: points, a box or a mask that mark an object in one frame of a video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vitruvian.errors import InputError, PromptError
from vitruvian.models.sam2.video_processing import Sam2VideoProcessor
from vitruvian.models.sam2.video_session import Sam2VideoInferenceSession


@dataclass(frozen=True, kw_only=True, eq=False)
class TrackPrompt:
    """What marks an object in one frame, in pixels of the upright frame.

    Args:
        object_id: Identity of the object, a number from 1 to 65535.
        frame: Number of the frame, from 0; the `frame` of results.
        points: [[x, y], …]. They are added to earlier points of the object in this frame.
        labels: For each point 1 on the object (the default) or 0 off it.
        box: x1, y1, x2, y2. It replaces earlier points and boxes of the object in this frame.
        mask: bool [H, W], alone.
    """

    object_id: int
    frame: int = 0
    points: ArrayLike | None = None
    labels: ArrayLike | None = None
    box: ArrayLike | None = None
    mask: ArrayLike | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.object_id <= 65535:
            raise PromptError(f"object_id: expected a number from 1 to 65535, got {self.object_id}.")
        if self.frame < 0:
            raise PromptError(f"frame: expected a number from 0, got {self.frame} for object {self.object_id}.")
        given = [name for name in ("points", "box", "mask") if getattr(self, name) is not None]
        if not given or (self.mask is not None and len(given) > 1):
            got = " and ".join(given) or "none"
            raise PromptError(f"prompts: expected points, a box or both, or a mask, got {got} for {self._name}.")
        if self.labels is not None and self.points is None:
            raise PromptError(f"labels: expected points too for {self._name}.")
        if self.mask is not None and not np.any(self.mask):
            raise PromptError(f"mask: expected pixels of {self._name}, got an empty mask. Leave the prompt out.")

    @property
    def _name(self) -> str:
        return f"object {self.object_id} in frame {self.frame}"

    def add_to(
        self,
        session: Sam2VideoInferenceSession,
        processor: Sam2VideoProcessor,
        frame_idx: int,
        size_hw: tuple[int, int],
    ) -> None:
        """Add this prompt to a frame of a session; `size_hw` is the size of the frame."""
        inputs: dict[str, Any] = {"clear_old_inputs": self.box is not None}
        if self.points is not None:
            points: Any = np.asarray(self.points, dtype=float).reshape(-1, 2)  # [N, 2]
            outside = points[((points < 0) | (points > size_hw[::-1])).any(axis=1)].tolist()
            if outside:
                expected = f"x in 0…{size_hw[1]} and y in 0…{size_hw[0]}"
                raise PromptError(f"points: expected {expected} for {self._name}, got {outside}.")
            labels = np.ones(len(points), int) if self.labels is None else np.asarray(self.labels).reshape(-1)
            inputs |= {"input_points": [[points.tolist()]], "input_labels": [[labels.tolist()]]}
        if self.box is not None:
            inputs["input_boxes"] = [[np.asarray(self.box, dtype=float).tolist()]]
        if self.mask is not None:
            mask = np.asarray(self.mask, dtype=bool)
            if mask.shape != size_hw:
                expected = f"{size_hw[0]}×{size_hw[1]} pixels"
                raise PromptError(f"mask: expected {expected} for {self._name}, got {list(mask.shape)}.")
            inputs = {"input_masks": [mask]}
        try:
            processor.add_inputs_to_inference_session(
                session, frame_idx, self.object_id, original_size=size_hw, **inputs
            )
        except (InputError, ValueError) as error:
            raise PromptError(f"prompts: expected what fits {self._name}, got an error: {error}") from error
