"""Where crops of people lie, worked out in numpy: the numbers of `crop_params` and its samples, bit for bit.

Threads that feed a GPU take turns at Python's lock. A call of torch costs a few microseconds of it even for four
numbers, and a picture's boxes take a hundred calls; the same sums in numpy are a dozen, of a microsecond each.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray

from vitruvian.images.crop import _check_boxes, _check_output

Floats = NDArray[np.float32]


def lay_windows(boxes_xywh: Floats, output_hw: tuple[int, int], *, padding: float = 1.25) -> tuple[Floats, Floats]:
    """Lay windows around boxes [N, 4]: their centres [N, 2] (x, y) and sizes [N, 2] (width, height) in pixels."""
    boxes = np.asarray(boxes_xywh, np.float32)
    if boxes.ndim != 2 or boxes.shape[1] != 4 or not np.isfinite(boxes).all() or not (boxes[:, 2:] > 0).all():
        _check_boxes(torch.tensor(boxes))  # says what is wrong
    height, width = _check_output(output_hw)
    center_xy: Floats = boxes[:, :2] + np.float32(0.5) * boxes[:, 2:]  # [N, 2]
    box_width, box_height = (boxes[:, 2:] * np.float32(padding)).T  # [N], [N]
    aspect = np.float32(width / height)
    sides = np.maximum(box_width, box_height * aspect), np.maximum(box_height, box_width / aspect)
    return center_xy, np.stack(sides, axis=1)  # [N, 2]


def sample_places(boxes_xywh: Floats, output_hw: tuple[int, int], *, padding: float = 1.25) -> Floats:
    """Return where the crops of boxes [N, 4] look: [N, 1 + w + h].

    A row is 1 where a crop is enlarged and 0 where not, then the place of each column of samples, then of each row.
    """
    height, width = output_hw
    center_xy, size_wh = lay_windows(boxes_xywh, output_hw, padding=padding)
    table: Floats = np.empty((len(size_wh), 1 + width + height), np.float32)
    shares = np.float32(1) / size_wh * np.array([width - 1, height - 1], np.float32)  # [N, 2]
    table[:, 0] = shares.min(axis=1) >= 1
    for axis, (start, count) in enumerate(((1, width), (1 + width, height))):
        table[:, start : start + count] = center_xy[:, axis, None] + _steps(count) * size_wh[:, axis, None]
    return table


@functools.lru_cache(maxsize=16)
def _steps(count: int) -> Floats:
    """Places of `count` samples in a window, from −½ to ½: [n]."""
    if count == 1:
        return np.zeros(1, np.float32)
    return np.arange(count, dtype=np.float32) / np.float32(count - 1) - np.float32(0.5)
