"""The 308 keypoints of Sapiens2: names, sides, groups, flips and bones.

The id of a keypoint is the channel of its heatmap. Left and right are always the person's own. The table is
``keypoints308.json``: name, group, side, mirror partner, sigma and color of each point, and the bones by the names of
their ends.

Names:

- A finger is numbered from the palm to the tip: ``*_third_joint`` (the knuckle; for the thumb the joint at the wrist),
  ``*2``, ``*3``, ``*4`` (the tip). The bones run in that order from the wrist.
- Numbered midpoints of a line on the face run from image left to image right for a person who faces the camera: on a
  line with a center point 1 and 2 are the quarters and 3 to 6 the eighths; on a line without one (brows, bridge of the
  nose) 1 is the middle and 2, 3 are the quarters. The mirror partner of a numbered point therefore often has another
  number: ``r_midpoint_1_of_upper_lash_line`` and ``l_midpoint_2_of_upper_lash_line`` are both the outer quarter.
- ``border_of_iris_3``, ``_6``, ``_9``, ``_12`` are hours of a clock face as the image shows it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Literal, get_args

Side = Literal["left", "right", "middle"]
Group = Literal["body", "feet", "left_hand", "right_hand", "face", "irises", "ears"]
Color = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class KeypointInfo:
    """One of the 308 points.

    Attributes:
        id: Heatmap channel, 0 to 307.
        name: Name in the Sapiens2 convention.
        group: The one group it belongs to, see `GROUPS`.
        side: The person's own side; "middle" for points on the line of symmetry.
        swap: Id of its mirror image; its own id for points in the middle.
        sigma: Standard deviation of human annotation relative to the person's size, as in COCO's OKS.
        color: RGB, 0 to 255.
    """

    id: int
    name: str
    group: Group
    side: Side
    swap: int
    sigma: float
    color: Color


@dataclass(frozen=True, slots=True)
class Bone:
    """A line of a skeleton between two points, by their ids in the layout."""

    name: str
    start: int
    end: int
    color: Color


def read_table(name: str) -> Any:
    """Read a JSON file of this folder."""
    return json.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


_TABLE = read_table("keypoints308.json")

KEYPOINTS: Final[tuple[KeypointInfo, ...]] = tuple(
    KeypointInfo(i, name, group, side, swap, sigma, (r, g, b))
    for i, (name, group, side, swap, sigma, (r, g, b)) in enumerate(_TABLE["keypoints"])
)
"""All 308 points in the order of the heatmaps."""

KEYPOINT_NAMES: Final[tuple[str, ...]] = tuple(point.name for point in KEYPOINTS)
"""Names in the order of the heatmaps."""

KEYPOINT_INDEX: Final[dict[str, int]] = {point.name: point.id for point in KEYPOINTS}
"""Name to id."""

SIGMAS: Final[tuple[float, ...]] = tuple(point.sigma for point in KEYPOINTS)
"""Standard deviation of the annotation of each point, for OKS."""

FLIP_PERMUTATION: Final[tuple[int, ...]] = tuple(point.swap for point in KEYPOINTS)
"""After a horizontal flip of the image, channel i holds what channel FLIP_PERMUTATION[i] held before."""

FLIP_PAIRS: Final[list[list[int]]] = [
    [point.id, point.swap] if point.side == "left" else [point.swap, point.id]
    for point in KEYPOINTS
    if point.id < point.swap
]
"""The 146 mirrored pairs as [left, right], in the form of ``Sapiens2Config.flip_pairs``."""

SKELETON: Final[tuple[Bone, ...]] = tuple(
    Bone(name, KEYPOINT_INDEX[start], KEYPOINT_INDEX[end], (r, g, b)) for name, start, end, (r, g, b) in _TABLE["bones"]
)
"""The 65 bones of body, feet and fingers."""

GROUPS: Final[dict[Group, tuple[int, ...]]] = {
    group: tuple(point.id for point in KEYPOINTS if point.group == group) for group in get_args(Group)
}
"""Ids of each group; every point is in exactly one. ``irises`` holds irises and pupils, ``face`` brows, lids, nose,
mouth and chin, ``body`` the 17 points of COCO (eyes and ears of the head among them), both sides of the elbow, the
tops of the shoulders and the neck."""
