"""Crops of people: the regions of an image that the model sees, from their bounding boxes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.ops.crop import crop_params
from vitruvian.pipelines.canvas import Region
from vitruvian.results.base import People


def boxes_xywh(people: People) -> NDArray[np.float32]:
    """Return the boxes of people as x, y, width and height: [P, 4]."""
    boxes: NDArray[np.float32] = people.boxes_xyxy.copy()
    boxes[:, 2:] -= boxes[:, :2]
    return boxes


def crop_regions(people: People, input_hw: tuple[int, int], *, padding: float = 1.25) -> list[Region]:
    """Return the regions [P] that `vitruvian.images.crop_boxes` samples for inputs of `input_hw`."""
    if not len(people):
        return []
    boxes = boxes_xywh(people)
    if not np.isfinite(boxes).all() or not (boxes[:, 2:] > 0).all():
        raise InputError("boxes_xyxy: expected finite boxes with some area. Drop the others first.")
    center_xy, size_wh = crop_params(torch.from_numpy(boxes), input_hw, padding)
    regions = []
    for center, size in zip(center_xy.tolist(), size_wh.tolist(), strict=True):
        # The first and last samples are on the edges of the crop, in coordinates where pixel x has its centre at x;
        # the areas around these samples extend half a step further.
        steps = [length / max(1, count - 1) for length, count in zip(size, reversed(input_hw), strict=True)]
        left, top = (c - s / 2 - step / 2 + 0.5 for c, s, step in zip(center, size, steps, strict=True))
        regions.append(Region(top, left, steps[1] * input_hw[0], steps[0] * input_hw[1]))
    return regions
