"""Which people a task processes: `PeopleOptions`, the detector that they select, and the boxes that a user passes.

boxes            the people in them
finder, people   whom that detector returns
neither          the model's own detections if it has any and the task asks for them, else the whole image
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.errors import InputError, near_matches
from vitruvian.images.download import is_url, redacted_url
from vitruvian.limits import get_limits
from vitruvian.pipelines.options import Options, nesting_depth
from vitruvian.pipelines.people.detectors import BoxFormat, DetectorSpec, OnEmpty, people_from_boxes
from vitruvian.pipelines.sources import Frame
from vitruvian.results.base import People


@dataclass(frozen=True, kw_only=True)
class PeopleOptions(Options):
    """Which people a task about people processes.

    Args:
        boxes: Bounding boxes of people: [P, 4] for one image or for all, a list of those (one per image), or a mapping
            of file name → boxes. Coordinates are pixels of the upright image.
        box_form: The four numbers of a box: "xyxy" (corners) or "xywh" (corner, width and height, as in COCO).
        people: "whole" processes the whole image, "crop" each person separately; or a detector, which means "crop"
            with it. By default "crop" if there are boxes or a detector, and "whole" otherwise.
        finder: The people detector: whatever `vitruvian.pipelines.people.open_detector` takes. If the model itself
            detects people, as the built-in one does, they are detected by default.
        nobody: What to do if the detector returns no one: "whole" processes the whole image, "none" returns an empty
            result, "error" raises. By default "none" for poses, "whole" for maps. See `people.note` of the result.
        max_people: Maximum number of people, by score.
    """

    boxes: ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None
    box_form: BoxFormat = "xyxy"
    people: Literal["whole", "crop"] | DetectorSpec | None = None
    finder: DetectorSpec | None = None
    nobody: OnEmpty | None = None
    max_people: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.box_form not in ("xyxy", "xywh"):
            raise InputError(f'box_form: expected "xyxy" or "xywh", got {self.box_form!r}.')
        if self.nobody not in (None, "whole", "none", "error"):
            raise InputError(f'nobody: expected "whole", "none" or "error", got {self.nobody!r}.')
        if self.max_people is not None and self.max_people < 1:
            raise InputError(f"max_people: expected at least 1, got {self.max_people}. Leave it out to keep everyone.")
        if self.crops_are_disabled and self.boxes is not None:
            raise InputError('boxes and people: expected one of boxes and "whole", got both. Drop one.')

    @property
    def crops_are_disabled(self) -> bool:
        """Whether `people` asks for the whole image."""
        return isinstance(self.people, str) and self.people == "whole"

    @property
    def crops_are_required(self) -> bool:
        """Whether `people` asks for crops, without naming a detector."""
        return isinstance(self.people, str) and self.people == "crop"


def detector_spec(options: PeopleOptions, own: str | None, *, detects_by_default: bool) -> DetectorSpec | None:
    """Return what `open_detector` opens for these options; None if no one is to be detected.

    Args:
        options: The options.
        own: The checkpoint of the task, if it detects people itself.
        detects_by_default: Whether the task detects people if no option says whom to process.
    """
    if options.crops_are_disabled or options.boxes is not None:
        return None
    if options.people is not None and not options.crops_are_required:
        return options.people
    if options.finder is not None or not (options.crops_are_required or detects_by_default):
        return options.finder
    return own


def people_to_crop(frame: Frame, detected: People | None, options: PeopleOptions) -> People | None:
    """Return the people to crop: detected ones, or those of the option `boxes`; None to process the whole image."""
    people = detected
    if people is None and options.boxes is not None:
        people = people_from_boxes(_boxes_of_image(options.boxes, frame), frame.size_hw, form=options.box_form)
        limit = options.max_people
        people = dataclasses.replace(people, boxes_xyxy=people.boxes_xyxy[:limit], scores=people.scores[:limit])
    if people is not None:
        get_limits().check("people", len(people), subject=frame.name)
        return people
    if options.crops_are_required:
        raise InputError("people: expected boxes or a finder for crops, got neither. Pass one of them.")
    return None


def _boxes_of_image(boxes: ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike], frame: Frame) -> ArrayLike:
    """Return the boxes of one image: from a mapping by name, from a list by index, or those for all images."""
    if isinstance(boxes, Mapping):
        names = [frame.name, *([] if frame.path is None else [str(frame.path), frame.path.name, frame.path.stem])]
        key = next((name for name in names if name in boxes), None)
        if key is None:  # names of URLs are redacted
            key = next((name for name in boxes if is_url(name) and redacted_url(name) == frame.name), None)
        if key is None:
            raise InputError(f"boxes: expected an entry for {frame.name}, got none.{near_matches(names[-1], boxes)}")
        return boxes[key]
    if nesting_depth(boxes) < 3:
        return boxes  # type: ignore[return-value]  # one level less than a list of them
    assert isinstance(boxes, Sequence | np.ndarray | Tensor)
    if frame.index >= len(boxes):
        raise InputError(f"boxes: expected a list for each image, got {len(boxes)}, none for {frame.name}.")
    return boxes[frame.index]
