"""From 308 keypoints to COCO-WholeBody's 133: 17 body, 6 feet, 68 face (iBUG order), 21 left hand, 21 right hand.

117 of the 133 points have a counterpart. The outline of the jaw does not, except for the chin: `face-0` to `face-7`
and `face-9` to `face-16`, which are indices 23-30 and 32-39 of the 133. They come out as NaN with score 0.

| 133 | what | source among the 308 |
|---|---|---|
| 0-16 | body | the point of that name |
| 17-22 | big toe, small toe, heel; left, then right | the point of that name |
| 23-30, 32-39 | jaw (face-0…7, 9…16) | none |
| 31 | chin (face-8) | tip_of_chin; iBUG's point sits a little lower, on the outline |
| 40-44 | right brow, outer to inner (face-17…21) | upper edge: end, midpoints 2, 1, 3, upper startpoint |
| 45-49 | left brow, inner to outer (face-22…26) | mirror images of these |
| 50 | top of the nose (face-27) | center_of_nose_root |
| 51, 52 | bridge (face-28, 29), one and two thirds down | between midpoints 2 and 1 of the bridge; between 1 and tip |
| 53 | tip (face-30) | tip_of_nose |
| 54-58 | under the nose, right to left (face-31…35) | outer corner, between the nostril's corners, bottom centre, … |
| 59, 62 | right eye, outer and inner corner (face-36, 39) | between the ends of upper and lower lash line |
| 60, 61 | upper lid at one and two thirds (face-37, 38) | between the lash line's points at 2/8 and 3/8; 5/8 and 6/8 |
| 63, 64 | lower lid, inner then outer (face-40, 41) | the same on the lower lash line |
| 65-70 | left eye, inner corner first (face-42…47) | mirror images of these |
| 71, 77 | corners of the mouth (face-48, 54) | outer corners of the mouth |
| 72, 73 | upper lip, right (face-49, 50) | between its points at 1/8 and 2/8; the point at 3/8 |
| 74 | (face-51) | center_of_cupid_bow |
| 75, 76 | upper lip, left (face-52, 53) | mirror images of 73, 72 |
| 78-82 | lower lip, left to right (face-55…59) | as the upper lip |
| 83-90 | inner lips, clockwise in the image from the person's right (face-60…67) | corners, quarters, centres |
| 91, 112 | root of the left, right hand | left_wrist, right_wrist, as for 9 and 10 |
| 92-111 | left thumb 1-4, forefinger, middle, ring, pinky | third_joint, 2, 3, 4 (the tip) of that finger |
| 113-132 | the same on the right | the same on the right |

The finger joints 1 (the knuckles; the thumb's joint at the wrist) come from the ``*_third_joint`` points: the same
joint, annotated under another rule, so expect a few pixels between the two conventions. The lids, brows and lips of
iBUG are defined by eye too; the fractions above follow where its annotations fall along each line.
"""

from __future__ import annotations

from typing import Final

from vitruvian.human.keypoints import FLIP_PERMUTATION, KEYPOINT_INDEX, KEYPOINT_NAMES
from vitruvian.human.layouts import (
    BODY_25,
    COCO_17,
    COCO_17_NAMES,
    SAPIENS_308,
    Layout,
    bones_between,
    mirror_by_name,
    sources_by_name,
)

Source = str | tuple[str, str] | None

_FINGERS = ("thumb", "forefinger", "middle_finger", "ring_finger", "pinky_finger")
_FEET: Final[tuple[str, ...]] = tuple(
    f"{side}_{point}" for side in ("left", "right") for point in ("big_toe", "small_toe", "heel")
)

# Points of the image's left half (the person's right) and of the middle, by number within the 68; the others mirror.
_FACE_RIGHT_AND_MIDDLE: Final[dict[int, Source]] = {
    8: "tip_of_chin",
    17: "end_of_r_eyebrow",
    18: "upper_midpoint_2_of_r_eyebrow",
    19: "upper_midpoint_1_of_r_eyebrow",
    20: "upper_midpoint_3_of_r_eyebrow",
    21: "upper_startpoint_of_r_eyebrow",
    27: "center_of_nose_root",
    28: ("midpoint_2_of_nose_bridge", "midpoint_1_of_nose_bridge"),
    29: ("midpoint_1_of_nose_bridge", "tip_of_nose"),
    30: "tip_of_nose",
    31: "r_outer_corner_of_nose",
    32: ("inner_corner_of_r_nostril", "outer_corner_of_r_nostril"),
    33: "bottom_center_of_nose",
    36: ("r_outer_end_of_upper_lash_line", "r_outer_end_of_lower_lash_line"),
    37: ("r_midpoint_1_of_upper_lash_line", "r_midpoint_4_of_upper_lash_line"),
    38: ("r_midpoint_5_of_upper_lash_line", "r_midpoint_2_of_upper_lash_line"),
    39: ("r_inner_end_of_upper_lash_line", "r_inner_end_of_lower_lash_line"),
    40: ("r_midpoint_5_of_lower_lash_line", "r_midpoint_2_of_lower_lash_line"),
    41: ("r_midpoint_1_of_lower_lash_line", "r_midpoint_4_of_lower_lash_line"),
    48: "r_outer_corner_of_mouth",
    49: ("midpoint_3_of_upper_outer_lip", "midpoint_1_of_upper_outer_lip"),
    50: "midpoint_4_of_upper_outer_lip",
    51: "center_of_cupid_bow",
    57: "center_of_lower_outer_lip",
    58: "midpoint_4_of_lower_outer_lip",
    59: ("midpoint_3_of_lower_outer_lip", "midpoint_1_of_lower_outer_lip"),
    60: "r_inner_corner_of_mouth",
    61: "midpoint_1_of_upper_inner_lip",
    62: "center_of_upper_inner_lip",
    66: "center_of_lower_inner_lip",
    67: "midpoint_1_of_lower_inner_lip",
}

# iBUG lists each symmetric line from one side to the other: first and last number of what mirrors end to end.
_FACE_MIRROR_RUNS: Final[tuple[tuple[int, int], ...]] = ((0, 16), (17, 26), (31, 35), (48, 54), (55, 59), (60, 64))
_FACE_MIRROR_PAIRS: Final[tuple[tuple[int, int], ...]] = (
    (36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46), (65, 67),
)  # fmt: skip


def _face_mirror() -> tuple[int, ...]:
    mirror = list(range(68))
    for first, last in _FACE_MIRROR_RUNS:
        mirror[first : last + 1] = range(last, first - 1, -1)
    for a, b in _FACE_MIRROR_PAIRS:
        mirror[a], mirror[b] = b, a
    return tuple(mirror)


def _mirror_source(source: Source) -> Source:
    if source is None:
        return None
    if isinstance(source, str):
        return KEYPOINT_NAMES[FLIP_PERMUTATION[KEYPOINT_INDEX[source]]]
    a, b = (KEYPOINT_NAMES[FLIP_PERMUTATION[KEYPOINT_INDEX[name]]] for name in source)
    return a, b


def _face_sources() -> list[Source]:
    known = _FACE_RIGHT_AND_MIDDLE
    return [known[i] if i in known else _mirror_source(known.get(swap)) for i, swap in enumerate(_face_mirror())]


def _hand_names(side: str) -> list[str]:
    return [f"{side}_hand_root", *(f"{side}_{finger}{joint}" for finger in _FINGERS for joint in (1, 2, 3, 4))]


def _hand_sources(side: str) -> list[Source]:
    joints = ("_third_joint", "2", "3", "4")
    return [f"{side}_wrist", *(f"{side}_{finger}{joint}" for finger in _FINGERS for joint in joints)]


WHOLEBODY_NAMES: Final[tuple[str, ...]] = (
    *COCO_17_NAMES,
    *_FEET,
    *(f"face-{i}" for i in range(68)),
    *_hand_names("left"),
    *_hand_names("right"),
)
_FACE_START: Final = len(COCO_17_NAMES) + len(_FEET)


def _mirror() -> tuple[int, ...]:
    mirror = list(mirror_by_name(WHOLEBODY_NAMES))
    mirror[_FACE_START : _FACE_START + 68] = [_FACE_START + i for i in _face_mirror()]
    return tuple(mirror)


_BODY_SOURCES: Final = sources_by_name([*COCO_17_NAMES, *_FEET])
_LEFT_HAND_SOURCES: Final = sources_by_name(_hand_sources("left"))
_RIGHT_HAND_SOURCES: Final = sources_by_name(_hand_sources("right"))
_LEFT_HAND_START: Final = _FACE_START + 68
_RIGHT_HAND_START: Final = _LEFT_HAND_START + len(_LEFT_HAND_SOURCES)

COCO_WHOLEBODY_133: Final[Layout] = Layout(
    name="wholebody133",
    names=WHOLEBODY_NAMES,
    sources=(*_BODY_SOURCES, *sources_by_name(_face_sources()), *_LEFT_HAND_SOURCES, *_RIGHT_HAND_SOURCES),
    skeleton=(
        *bones_between(_BODY_SOURCES),
        *bones_between(_LEFT_HAND_SOURCES, start=_LEFT_HAND_START),
        *bones_between(_RIGHT_HAND_SOURCES, start=_RIGHT_HAND_START),
    ),
    flip_permutation=_mirror(),
)
"""COCO-WholeBody's 133 points; see the table above for what each one is made of. Hands hang on their own roots."""

LAYOUTS: Final[dict[str, Layout]] = {
    layout.name: layout for layout in (SAPIENS_308, COCO_17, COCO_WHOLEBODY_133, BODY_25)
}
"""Every layout by its name: sapiens308, coco17, wholebody133, body25."""
