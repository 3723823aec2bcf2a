"""The 308 keypoints of Sapiens2: names, sides, groups, flips and bones.

The id of a keypoint is the channel of its heatmap. Left and right are always the person's own. Names, mirror partners,
sigmas, colours and bones are in ``keypoints308.json``; side and group follow from the name.

Names:

- A finger is numbered from the palm to the tip: ``*_third_joint`` (the knuckle; for the thumb the joint at the wrist),
  ``*2``, ``*3``, ``*4`` (the tip). The bones run in that order from the wrist.
- Numbered midpoints of a line on the face run from image left to image right for a person who faces the camera: on a
  line with a centre point 1 and 2 are the quarters and 3 to 6 the eighths; on a line without one (brows, bridge of the
  nose) 1 is the middle and 2, 3 are the quarters. The mirror partner of a numbered point therefore often has another
  number: ``r_midpoint_1_of_upper_lash_line`` and ``l_midpoint_2_of_upper_lash_line`` are both the outer quarter.
- ``border_of_iris_3``, ``_6``, ``_9``, ``_12`` are hours of a clock face as the image shows it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import Final, Literal

Side = Literal["left", "right", "middle"]
Group = Literal["body", "feet", "left_hand", "right_hand", "face", "irises", "ears"]
Colour = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Keypoint:
    """One of the 308 points.

    Attributes:
        id: Heatmap channel, 0 to 307.
        name: Name in the Sapiens2 convention.
        group: The one group it belongs to, see `GROUPS`.
        side: The person's own side; "middle" for points on the line of symmetry.
        swap: Id of its mirror image; its own id for points in the middle.
        sigma: Standard deviation of human annotation relative to the person's size, as in COCO's OKS.
        colour: RGB, 0 to 255.
    """

    id: int
    name: str
    group: Group
    side: Side
    swap: int
    sigma: float
    colour: Colour


@dataclass(frozen=True, slots=True)
class Bone:
    """A line of a skeleton between two points, by their ids in the layout."""

    name: str
    start: int
    end: int
    colour: Colour


_SIDE_WORDS: Final[dict[str, Side]] = {"left": "left", "l": "left", "right": "right", "r": "right"}
_LIP_MIDPOINT = re.compile(r"midpoint_(\d)_of_(?:upper|lower)_(?:inner|outer)_lip")
_LIP_NUMBERS_ON_THE_RIGHT = ("1", "3", "4")  # image left of the centre, which is the person's right

_BODY_WORDS = {
    "eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle", "olecranon", "cubital", "acromion",
}  # fmt: skip
_FOOT_WORDS = {"toe", "heel"}
_FINGER = re.compile(r"(left|right)_(thumb|forefinger|middle_finger|ring_finger|pinky_finger)(\d|_third_joint)")
_EAR_WORDS = {"crus", "antihelix", "helix", "antitragus", "tragus", "concha", "lobe"}

_BONE_NAMES: Final[dict[tuple[str, str], str]] = {
    ("ankle", "knee"): "shin",
    ("knee", "hip"): "thigh",
    ("hip", "hip"): "hips",
    ("shoulder", "hip"): "flank",
    ("shoulder", "shoulder"): "shoulders",
    ("shoulder", "elbow"): "upper_arm",
    ("elbow", "wrist"): "forearm",
    ("eye", "eye"): "eyes",
    ("nose", "eye"): "nose_to_eye",
    ("eye", "ear"): "temple",
    ("ear", "shoulder"): "neck_side",
    ("ankle", "big_toe"): "big_toe",
    ("ankle", "small_toe"): "small_toe",
    ("ankle", "heel"): "heel",
}
_FINGER_BONE: Final[dict[str, str]] = {"_third_joint": "1", "2": "2", "3": "3", "4": "4"}


def side_of(name: str) -> Side:
    """Return the person's own side of a keypoint name."""
    if lip := _LIP_MIDPOINT.fullmatch(name):
        return "right" if lip[1] in _LIP_NUMBERS_ON_THE_RIGHT else "left"
    return next((_SIDE_WORDS[word] for word in name.split("_") if word in _SIDE_WORDS), "middle")


def group_of(name: str) -> Group:
    """Return the group of a keypoint name."""
    if finger := _FINGER.fullmatch(name):
        return "left_hand" if finger[1] == "left" else "right_hand"
    words = name.split("_")
    if _FOOT_WORDS & set(words):
        return "feet"
    if name in ("nose", "neck") or (words[0] in ("left", "right") and words[1] in _BODY_WORDS):
        return "body"
    if "iris" in words or "pupil" in words:
        return "irises"
    if _EAR_WORDS & set(words) or name.endswith("_midpoint_between_22_15"):  # 22 and 15 are points of the ear
        return "ears"
    return "face"


def bone_name(start: str, end: str) -> str:
    """Return the name of a bone, such as ``left_shin``, ``hips`` or ``right_thumb_1`` (wrist to first joint)."""
    if finger := _FINGER.fullmatch(end):
        return f"{finger[1]}_{finger[2]}_{_FINGER_BONE[finger[3]]}"
    sides = {side_of(start), side_of(end)} - {"middle"}
    bare = _BONE_NAMES[_without_side(start), _without_side(end)]
    return f"{sides.pop()}_{bare}" if len(sides) == 1 else bare


def _without_side(name: str) -> str:
    return name.removeprefix("left_").removeprefix("right_")


_TABLE = json.loads(resources.files(__package__).joinpath("keypoints308.json").read_text(encoding="utf-8"))

KEYPOINTS: Final[tuple[Keypoint, ...]] = tuple(
    Keypoint(i, name, group_of(name), side_of(name), swap, sigma, (rgb[0], rgb[1], rgb[2]))
    for i, (name, swap, sigma, rgb) in enumerate(_TABLE["keypoints"])
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
    Bone(bone_name(start, end), KEYPOINT_INDEX[start], KEYPOINT_INDEX[end], (rgb[0], rgb[1], rgb[2]))
    for start, end, rgb in _TABLE["bones"]
)
"""The 65 bones of body, feet and fingers."""

GROUPS: Final[dict[Group, tuple[int, ...]]] = {
    group: tuple(point.id for point in KEYPOINTS if point.group == group)
    for group in ("body", "feet", "left_hand", "right_hand", "face", "irises", "ears")
}
"""Ids of each group; every point is in exactly one. ``irises`` holds irises and pupils, ``face`` brows, lids, nose,
mouth and chin, ``body`` the 17 points of COCO (eyes and ears of the head among them), both sides of the elbow, the
tops of the shoulders and the neck."""
