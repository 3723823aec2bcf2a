"""Which people a task processes, by `PeopleOptions`.

boxes            the people in them
detect           the people that this detector returns; "whole" for the whole image
neither          the people that the model itself detects if it can, else those that the built-in detector returns
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.errors import InputError, near_matches
from vitruvian.filesystem.media_files import is_url
from vitruvian.hub import BUILTIN
from vitruvian.images.download import redacted_url
from vitruvian.limits import get_limits
from vitruvian.pipelines.options import PeopleOptions, nesting_depth
from vitruvian.pipelines.people.detectors import DetectorSpec, people_from_boxes
from vitruvian.pipelines.sources import Frame
from vitruvian.results.base import People

DEFAULT_DETECTOR_NOTE = "people were detected by the built-in detector, the default"


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
    return own or BUILTIN


def people_to_crop(frame: Frame, detected: People | None, options: PeopleOptions) -> People | None:
    """Return the people to crop: detected ones, or those of the option `boxes`; None to process the whole image."""
    people = detected
    if people is None and options.boxes is not None:
        people = people_from_boxes(_boxes_of_image(options.boxes, frame), frame.size_hw, box_format=options.box_format)
        limit = options.max_people
        people = dataclasses.replace(people, boxes_xyxy=people.boxes_xyxy[:limit], scores=people.scores[:limit])
    if people is not None:
        get_limits().check("people", len(people), subject=frame.name)
    return people


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
