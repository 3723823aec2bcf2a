"""What detectors return, read by shape: boxes in pixels of the input and how sure each is a person.

YOLOX           [1, N, 5 + K]                 cx, cy, w, h, object, classes: on the grids of 3 or 4 strides (raw), or
                                              in pixels (decoded in the graph)
with NMS        [1, N, 5] and labels [1, N]   x1, y1, x2, y2, score (mmdeploy: RTMDet, YOLOX)
with NMS        [1, N, 4], [1, N], labels [1, N], and how many count (mmyolo)
without NMS     [1, N, 4] and [1, N, K]       corners and scores of all classes
RTMDet, bare    L × [1, K, h, w], L × [1, 4, h, w]   class logits, and distances to left, top, right, bottom in
                                              pixels from the corner of each cell (mmdetection)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError

Floats = NDArray[np.float32]
YOLOX_STRIDES: tuple[tuple[int, ...], ...] = ((8, 16, 32), (8, 16, 32, 64))


class Detections(NamedTuple):
    """Candidates of one picture in pixels of the input."""

    boxes_xyxy: Floats  # [N, 4]
    scores: Floats  # [N]
    suppressed: bool  # whether overlapping ones are gone


def detector_outputs(
    outputs: Mapping[str, NDArray[Any]], size_hw: tuple[int, int], person: int, *, subject: str
) -> Detections:
    """Read a detector's outputs for one picture; `person` is the number of that class."""
    arrays = [value[0] for value in outputs.values() if value.ndim >= 2 and value.shape[0] == 1]
    tables = [array for array in arrays if array.ndim == 2]
    rows = [array for array in arrays if array.ndim == 1]
    maps = [array.astype(np.float32) for array in arrays if array.ndim == 3]
    packed = [table for table in tables if table.shape[1] == 5]
    corners = [table for table in tables if table.shape[1] == 4]
    found: Detections | None = None
    if len(packed) == 1 and len(tables) == 1:
        found = packed_detections(packed[0].astype(np.float32), rows, person)
    elif len(corners) == 1 and len(tables) == 1 and rows:
        found = listed_detections(corners[0].astype(np.float32), rows, person)
    elif len(corners) == 1 and len(tables) == 2:
        scores = next(table for table in tables if table is not corners[0])
        if len(scores) == len(corners[0]) and person < scores.shape[1]:
            found = Detections(corners[0].astype(np.float32), scores[:, person].astype(np.float32), False)
    elif len(tables) == 1 and len(arrays) == 1 and tables[0].shape[1] > 5 + person:
        found = yolox_detections(tables[0].astype(np.float32), size_hw, person)
    elif maps and len(maps) == len(arrays):
        found = map_detections(maps, size_hw, person)
    if found is None:
        shapes = {name: list(value.shape) for name, value in outputs.items()}
        raise InputError(
            f"{subject}: expected the outputs of YOLOX or RTMDet, got {shapes} for an input of "
            f"{size_hw[0]}×{size_hw[1]}. Export it with mmdeploy or YOLOX's own tool, or write a finder for it."
        )
    return found


def packed_detections(table: Floats, rows: Sequence[NDArray[Any]], person: int) -> Detections | None:
    """Read rows of corners and score [N, 5] with labels [N], or of a model that knows only people."""
    labels = [row for row in rows if len(row) == len(table)]
    if len(labels) > 1 or len(labels) != len(rows):
        return None
    keep = np.isfinite(table).all(1) & (labels[0] == person if labels else True)  # [N]
    return Detections(table[keep, :4], table[keep, 4], True)


def listed_detections(corners: Floats, rows: Sequence[NDArray[Any]], person: int) -> Detections | None:
    """Read corners [N, 4] with scores [N], perhaps labels [N] and how many count [1]."""
    long = [row for row in rows if len(row) == len(corners)]
    counts = [row for row in rows if len(row) == 1 != len(corners) and np.issubdtype(row.dtype, np.integer)]
    scores = [row for row in long if np.issubdtype(row.dtype, np.floating)]
    labels = [row for row in long if np.issubdtype(row.dtype, np.integer)]
    if len(scores) != 1 or len(labels) > 1:
        return None
    keep = labels[0] == person if labels else np.ones(len(corners), np.bool_)  # [N]
    if counts:
        keep &= np.arange(len(corners)) < int(counts[0][0])
    return Detections(corners[keep], scores[0][keep].astype(np.float32), True)


def yolox_detections(table: Floats, size_hw: tuple[int, int], person: int) -> Detections | None:
    """Read YOLOX's [N, 5 + K], decoding it where the graph has not."""
    grid = next((g for g in (yolox_grid(size_hw, s) for s in YOLOX_STRIDES) if len(g) == len(table)), None)
    if grid is None:
        return None
    center_xy, size_wh = table[:, :2], table[:, 2:4]
    # Sides as logarithms never reach this; sides in pixels always do somewhere on the grids.
    if size_wh.max() < math.log(10 * max(size_hw)):
        strides = grid[:, 2:]  # [N, 1]
        center_xy = (center_xy + grid[:, :2]) * strides
        size_wh = np.exp(size_wh) * strides
    boxes = np.concatenate((center_xy - size_wh / 2, center_xy + size_wh / 2), axis=1)  # [N, 4]
    return Detections(boxes.astype(np.float32), table[:, 4] * table[:, 5 + person], False)


def yolox_grid(size_hw: tuple[int, int], strides: Sequence[int]) -> Floats:
    """Return column, row and stride of every cell, level by level: [N, 3]."""
    levels = []
    for stride in strides:
        rows, columns = np.indices((size_hw[0] // stride, size_hw[1] // stride), dtype=np.float32)  # [h, w] each
        levels.append(np.stack((columns, rows, np.full_like(rows, stride)), axis=-1).reshape(-1, 3))
    return np.concatenate(levels)


def map_detections(maps: Sequence[Floats], size_hw: tuple[int, int], person: int) -> Detections | None:
    """Read maps of class logits [K, h, w] and of distances [4, h, w], a pair a level in any order."""
    boxes, scores = [], []
    for grid_hw in dict.fromkeys(one.shape[1:] for one in maps):
        pair = [one for one in maps if one.shape[1:] == grid_hw]
        if len(pair) != 2 or 4 not in (pair[0].shape[0], pair[1].shape[0]):
            return None
        # Class logits come first where both have four channels.
        classes, distances = pair if pair[1].shape[0] == 4 else pair[::-1]
        if person >= len(classes):
            return None
        rows, columns = np.indices(grid_hw, dtype=np.float32)
        center_xy = np.stack((columns * (size_hw[1] / grid_hw[1]), rows * (size_hw[0] / grid_hw[0])))  # [2, h, w]
        level = np.concatenate((center_xy - distances[:2], center_xy + distances[2:]))  # [4, h, w]
        boxes.append(level.reshape(4, -1).T)  # [h·w, 4]
        scores.append(1 / (1 + np.exp(-classes[person].reshape(-1))))  # [h·w]
    return Detections(np.concatenate(boxes), np.concatenate(scores).astype(np.float32), False)
