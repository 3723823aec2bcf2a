"""Bounding boxes: areas and overlaps as NumPy arrays, and the boxes of masks."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.images.types import Float64Array


def box_areas(boxes_xyxy: Float64Array) -> Float64Array:
    """Return the areas of boxes: [N, 4] -> [N]."""
    areas: Float64Array = np.prod(boxes_xyxy[:, 2:] - boxes_xyxy[:, :2], axis=-1)
    return areas


def box_iou(
    boxes_xyxy: Float64Array, others_xyxy: Float64Array, crowd: NDArray[np.bool_] | None = None
) -> Float64Array:
    """Return the intersection over union of every two boxes: [N, 4], [M, 4] -> [N, M].

    Where another box is a `crowd` [M], it is the intersection over the area of the box, as COCO defines it.
    """
    low = np.maximum(boxes_xyxy[:, None, :2], others_xyxy[None, :, :2])  # [N, M, 2]
    high = np.minimum(boxes_xyxy[:, None, 2:], others_xyxy[None, :, 2:])
    intersection = np.prod(np.maximum(high - low, 0), axis=-1)  # [N, M]
    areas = box_areas(boxes_xyxy)[:, None]  # [N, 1]
    union = areas + box_areas(others_xyxy)[None] - intersection
    if crowd is not None:
        union = np.where(crowd[None], areas, union)
    iou: Float64Array = intersection / np.where(union > 0, union, 1)
    return iou


def mask_boxes(masks: Tensor) -> Tensor:
    """Return the bounding boxes x1, y1, x2, y2 of masks [..., H, W], with exclusive ends: int64 [..., 4].

    Empty masks have zeros.
    """
    sides = []
    for line in (masks.any(dim=-2), masks.any(dim=-1)):  # columns [..., W], rows [..., H]
        marks = line.to(torch.uint8)
        first = marks.argmax(dim=-1)
        last = marks.shape[-1] - marks.flip(-1).argmax(dim=-1)
        has_pixels = line.any(dim=-1)
        sides.append((first * has_pixels, last * has_pixels))
    (left, right), (top, bottom) = sides
    return torch.stack((left, top, right, bottom), dim=-1)  # [..., 4]
