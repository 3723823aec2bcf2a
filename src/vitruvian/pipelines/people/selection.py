"""Which people a task processes: `PeopleOptions`, the detector that they select, and the boxes that a user passes.

boxes            the people in them
detect           the people that this detector finds; "whole" for the whole image
neither          the people that the model itself detects if it can, else those of the built-in detector
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.errors import InputError, near_matches
from vitruvian.hub import BUILTIN, has_builtin
from vitruvian.images.download import is_url, redacted_url
from vitruvian.limits import get_limits
from vitruvian.pipelines.options import Options, nesting_depth
from vitruvian.pipelines.people.detectors import BoxFormat, DetectorSpec, OnEmpty, people_from_boxes
from vitruvian.pipelines.sources import Frame
from vitruvian.results.base import People

DEFAULT_DETECTOR_NOTE = "people were detected by the built-in detector, the default"
_NO_DETECTOR_NOTE = "no boxes were passed and no detector is installed; processed the whole image"


@dataclass(frozen=True, kw_only=True)
class PeopleOptions(Options):
    """Which people a task about people processes.

    Args:
        boxes: Bounding boxes of people: [P, 4] for one image or for all, a list of those (one per image), or a mapping
            of file name → boxes. Coordinates are pixels of the upright image.
        box_format: The four numbers of a box: "xyxy" (corners) or "xywh" (corner, width and height, as in COCO).
        detect: The people detector: whatever `vitruvian.pipelines.people.open_detector` takes, such as "builtin"; or
            "whole" to process the whole image without detection. By default the model itself if it detects people,
            else the built-in detector.
        detect_threshold: Lowest score of a person; by default the detector's. Ignored for detectors that are open.
        on_empty: What to do if the detector returns no one: "whole" processes the whole image, "none" returns an empty
            result, "error" raises. By default "none" for poses, "whole" for maps. See `people.note` of the result.
        max_people: Maximum number of people, by score.
    """

    aliases: ClassVar[dict[str, str]] = Options.aliases | {
        "people": "detect",
        "finder": "detect",
        "nobody": "on_empty",
        "box_form": "box_format",
    }
    exclusive: ClassVar[tuple[str, ...]] = ("boxes", "detect")

    boxes: ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike] | None = None
    box_format: BoxFormat = "xyxy"
    detect: DetectorSpec | None = None
    detect_threshold: float | None = None
    on_empty: OnEmpty | None = None
    max_people: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.detect, str) and self.detect == "crop":  # what people="crop" was: the default detector
            object.__setattr__(self, "detect", None)
        if self.box_format not in ("xyxy", "xywh"):
            raise InputError(f'box_format: expected "xyxy" or "xywh", got {self.box_format!r}.')
        if self.on_empty not in (None, "whole", "none", "error"):
            raise InputError(f'on_empty: expected "whole", "none" or "error", got {self.on_empty!r}.')
        if self.max_people is not None and self.max_people < 1:
            raise InputError(f"max_people: expected at least 1, got {self.max_people}. Leave it out to keep everyone.")
        if self.processes_whole_image and self.boxes is not None:
            raise InputError('boxes: cannot be combined with detect="whole". Drop one of them.')

    @property
    def processes_whole_image(self) -> bool:
        """Whether `detect` asks for the whole image."""
        return isinstance(self.detect, str) and self.detect == "whole"

    @property
    def whole_image_note(self) -> str | None:
        """What the results of a whole image say about it: nothing if that was asked for."""
        return None if self.processes_whole_image else _NO_DETECTOR_NOTE


def detector_spec(options: PeopleOptions, own: str | None) -> DetectorSpec | None:
    """Return what `open_detector` opens for these options; None if no one is to be detected.

    Args:
        options: The options.
        own: The checkpoint of the task, if it detects people itself.
    """
    if options.processes_whole_image or options.boxes is not None:
        return None
    if options.detect is not None:
        return options.detect
    return own or (BUILTIN if has_builtin() else None)


def people_to_crop(frame: Frame, detected: People | None, options: PeopleOptions) -> People | None:
    """Return the people to crop: detected ones, or those of the option `boxes`; None to process the whole image."""
    people = detected
    if people is None and options.boxes is not None:
        people = people_from_boxes(_boxes_of_image(options.boxes, frame), frame.size_hw, form=options.box_format)
        limit = options.max_people
        people = dataclasses.replace(people, boxes_xyxy=people.boxes_xyxy[:limit], scores=people.scores[:limit])
    if people is not None:
        get_limits().check("people", len(people), subject=frame.name)
        return people
    return None


def _boxes_of_image(boxes: ArrayLike | Sequence[ArrayLike] | Mapping[str, ArrayLike], frame: Frame) -> ArrayLike:
    """Return the boxes of one image: from a mapping by name, from a list by index, or those for all images."""
    if isinstance(boxes, Mapping):
        names = [frame.name, *([] if frame.path is None else [str(frame.path), frame.path.name, frame.path.stem])]
        key = next((name for name in names if name in boxes), None)
        if key is None:  # names of URLs are redacted
            key = next((name for name in boxes if is_url(name) and redacted_url(name) == frame.name), None)
        if key is None:
            raise InputError(f"boxes: no entry for {frame.name}.{near_matches(names[-1], boxes)}")
        return boxes[key]
    if nesting_depth(boxes) < 3:
        return boxes  # type: ignore[return-value]  # one level less than a list of them
    assert isinstance(boxes, Sequence | np.ndarray | Tensor)
    if frame.index >= len(boxes):
        raise InputError(f"boxes: expected a list for each image, got {len(boxes)}, none for {frame.name}.")
    return boxes[frame.index]
