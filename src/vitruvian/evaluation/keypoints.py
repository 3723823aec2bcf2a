"""Groups and sigmas of the layouts of keypoints, and lengths to measure errors of keypoints by."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import torch

from vitruvian.errors import InputError, near_matches
from vitruvian.evaluation.arrays import Floats
from vitruvian.human import COCO_WHOLEBODY_133, KEYPOINT_INDEX, KEYPOINTS, LAYOUTS, SIGMAS, Layout

MPII_HEAD_FACTOR = 0.6

# What COCO-WholeBody measured and the 308 points do not have: the jaw and the roots of the hands, and finer numbers for
# the face, in the order of its 68 points.
WHOLEBODY_FACE_SIGMAS: Final[tuple[float, ...]] = (
    0.042, 0.043, 0.044, 0.043, 0.040, 0.035, 0.031, 0.025, 0.020, 0.023, 0.029, 0.032, 0.037, 0.038, 0.043, 0.041,
    0.045, 0.013, 0.012, 0.011, 0.011, 0.012, 0.012, 0.011, 0.011, 0.013, 0.015, 0.009, 0.007, 0.007, 0.007, 0.012,
    0.009, 0.008, 0.016, 0.010, 0.017, 0.011, 0.009, 0.011, 0.009, 0.007, 0.013, 0.008, 0.011, 0.012, 0.010, 0.034,
    0.008, 0.008, 0.009, 0.008, 0.008, 0.007, 0.010, 0.008, 0.009, 0.009, 0.009, 0.007, 0.007, 0.008, 0.011, 0.008,
    0.008, 0.008, 0.010, 0.008,
)  # fmt: skip
WHOLEBODY_HAND_ROOT_SIGMA: Final = 0.029
WHOLEBODY_GROUPS: Final[dict[str, tuple[int, ...]]] = {
    "body": tuple(range(17)),
    "feet": tuple(range(17, 23)),
    "face": tuple(range(23, 91)),
    "left_hand": tuple(range(91, 112)),
    "right_hand": tuple(range(112, 133)),
}


def find_layout(layout: Layout | str) -> Layout:
    """Return a layout by its name: sapiens308, coco17, wholebody133 or body25."""
    if isinstance(layout, Layout):
        return layout
    if layout not in LAYOUTS:
        raise InputError(
            f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}.{near_matches(layout, LAYOUTS)}"
        )
    return LAYOUTS[layout]


def layout_sigmas(layout: Layout | str) -> tuple[float, ...]:
    """Return the annotation spread of each point of a layout [J], for object keypoint similarity.

    Those of COCO's 17 and COCO-WholeBody's 133 are the official ones; midpoints take the mean of their ends.
    """
    layout = find_layout(layout)
    if layout.name == COCO_WHOLEBODY_133.name:
        special = dict(zip(WHOLEBODY_GROUPS["face"], WHOLEBODY_FACE_SIGMAS, strict=True))
        special |= {WHOLEBODY_GROUPS[f"{side}_hand"][0]: WHOLEBODY_HAND_ROOT_SIGMA for side in ("left", "right")}
    else:
        special = {}
    unknown = [layout.names[i] for i in layout.undefined if i not in special]
    if unknown:
        raise InputError(
            f"{layout.name} layout: expected sigmas for all points, got none for {', '.join(unknown)}. "
            "Pass sigmas of your own."
        )
    return tuple(
        special[i] if i in special else float(np.mean([SIGMAS[source] for source in ids]))
        for i, ids in enumerate(layout.sources)
    )


def layout_groups(layout: Layout | str) -> dict[str, tuple[int, ...]]:
    """Return the indices of the points of each group of a layout: body, feet, left_hand … as far as it has them."""
    layout = find_layout(layout)
    if layout.name == COCO_WHOLEBODY_133.name:
        return dict(WHOLEBODY_GROUPS)
    groups: dict[str, list[int]] = {}
    for i, ids in enumerate(layout.sources):
        if ids:
            groups.setdefault(KEYPOINTS[ids[0]].group, []).append(i)
    return {name: tuple(members) for name, members in groups.items()}


def as_points(name: str, values: Any, count: int) -> Floats:
    """Return keypoints as float64 [N, J, 2] from [..., J, 2] with J = `count`."""
    points = torch.as_tensor(values).detach().cpu().double().numpy()
    if points.size == 0:
        return np.zeros((0, count, 2))
    if points.ndim < 2 or points.shape[-2:] != (count, 2):
        raise InputError(
            f"{name}: expected the shape [..., {count}, 2], got {list(points.shape)}. "
            "Convert keypoints to the layout that is scored, and leave scores out."
        )
    return points.reshape(-1, count, 2)


def box_length(
    boxes_xyxy: Any,
    *,
    side: Literal["larger", "smaller", "width", "height", "diagonal"] = "larger",
    factor: float = 1.0,
) -> Floats:
    """Return a length of each box, times a factor: [..., 4] -> [...]."""
    boxes = torch.as_tensor(boxes_xyxy).detach().cpu().double().numpy()
    if boxes.shape[-1:] != (4,):
        raise InputError(f"boxes_xyxy: expected the shape [..., 4], got {list(boxes.shape)}.")
    width, height = np.moveaxis(boxes[..., 2:] - boxes[..., :2], -1, 0)
    lengths: dict[str, npt.NDArray[Any]] = {
        "larger": np.maximum(width, height),
        "smaller": np.minimum(width, height),
        "width": width,
        "height": height,
        "diagonal": np.hypot(width, height),
    }
    if side not in lengths:
        raise InputError(f"side: expected one of {', '.join(lengths)}, got {side!r}.")
    return np.asarray(factor * lengths[side])


def head_length(head_boxes_xyxy: Any) -> Floats:
    """Return the length of the head as PCKh takes it, 0.6 of the diagonal of the head's box: [..., 4] -> [...]."""
    return box_length(head_boxes_xyxy, side="diagonal", factor=MPII_HEAD_FACTOR)


def torso_length(keypoints: Any, *, layout: Layout | str) -> Floats:
    """Return the distance from the left shoulder to the right hip: [..., J, 2] -> [...]; NaN where either is."""
    return segment_length(keypoints, start=point_place(layout, "left_shoulder"), end=point_place(layout, "right_hip"))


def point_place(layout: Layout | str, name: str) -> int:
    """Return the index in a layout of one of the 308 points, by its name there."""
    layout = find_layout(layout)
    source = (KEYPOINT_INDEX[name],)
    if source not in layout.sources:
        raise InputError(f"{layout.name} layout: expected the point {name}, got a layout without it.")
    return layout.sources.index(source)


def segment_length(keypoints: Any, *, start: int, end: int) -> Floats:
    """Return the distance between two points: [..., J, 2] -> [...]."""
    points = torch.as_tensor(keypoints).detach().cpu().double().numpy()
    return np.asarray(np.linalg.norm(points[..., start, :] - points[..., end, :], axis=-1))
