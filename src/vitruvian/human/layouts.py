"""Keypoint layouts of other tools, converted from the 308: COCO-17, COCO-WholeBody's 133 and OpenPose BODY_25.

A `Layout` names its points and states which of the 308 each one comes from: one source, two (their midpoint) or none.
It converts NumPy arrays and torch tensors. Left and right are the person's own in every layout.

COCO-17 has points of the same names, in COCO's order. BODY_25 has a neck and a middle of the hips, which are midpoints
of the shoulders and of the hips. Of the 133 points of COCO-WholeBody (17 body, 6 feet, 68 face in iBUG order, 21 left
hand, 21 right hand), 117 have a counterpart: the outline of the jaw has none except for the chin, so `face-0` to
`face-7` and `face-9` to `face-16` become NaN with score 0. Finger joints 1 are the ``*_third_joint`` points: the same
joint, annotated under another rule, so expect a few pixels of difference. The lids, brows and lips of iBUG follow
where its annotations fall along each line of the 308; `_FACE_RIGHT_AND_MIDDLE` lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

from vitruvian.errors import InputError
from vitruvian.human.keypoints import (
    FLIP_PERMUTATION,
    KEYPOINT_INDEX,
    KEYPOINT_NAMES,
    KEYPOINTS,
    SKELETON,
    Bone,
    Colour,
    side_of,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    _Floats = NDArray[np.floating]

_Source = str | tuple[str, str] | None


@dataclass(frozen=True)
class Layout:
    """A set of keypoints that the 308 can be converted to.

    Attributes:
        name: Name of the layout, for instance "coco17".
        names: Names of its J points, in its own order.
        sources: For each point the ids of its sources among the 308: one, two (their midpoint) or none (undefined).
        skeleton: Its bones; `start` and `end` are indices in this layout.
        flip_permutation: Index of each point's mirror image in this layout.
    """

    name: str
    names: tuple[str, ...]
    sources: tuple[tuple[int, ...], ...]
    skeleton: tuple[Bone, ...]
    flip_permutation: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, ids in zip(self.names, self.sources, strict=True):
            if len(ids) > 2 or not all(0 <= i < len(KEYPOINTS) for i in ids):
                raise InputError(
                    f"{self.name} layout, source of {name}: expected at most two ids from 0 to {len(KEYPOINTS) - 1}, "
                    f"got {ids}. Name one of KEYPOINTS, or two to take their midpoint."
                )
        if sorted(self.flip_permutation) != list(range(len(self.names))):
            raise InputError(
                f"{self.name} layout, flip_permutation: expected each of 0 to {len(self.names) - 1} once, "
                f"got {self.flip_permutation}. Points without a partner map to themselves."
            )

    @property
    def undefined(self) -> tuple[int, ...]:
        """Indices of the points that have no counterpart among the 308."""
        return tuple(i for i, ids in enumerate(self.sources) if not ids)

    @property
    def flip_pairs(self) -> list[list[int]]:
        """Mirrored pairs of indices in this layout, the smaller first."""
        return [[i, swap] for i, swap in enumerate(self.flip_permutation) if i < swap]

    @overload
    def convert(self, keypoints: _Floats, scores: _Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    @overload
    def convert(self, keypoints: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]: ...
    def convert(self, keypoints: Any, scores: Any) -> tuple[Any, Any]:
        """Convert 308 keypoints and their scores to this layout.

        A midpoint has the lower of its two scores. A point without a counterpart (`undefined`) is NaN with score 0.

        Args:
            keypoints: [..., 308, 2] or [..., 308, 3]; floating point, NumPy array or torch tensor. All columns are
                coordinates.
            scores: [..., 308], of the same kind and on the same device.

        Returns:
            keypoints [..., J, 2 or 3] and scores [..., J]: new arrays of the same kind and precision.
        """
        _check_points(keypoints, scores)
        first = [ids[0] if ids else 0 for ids in self.sources]
        last = [ids[-1] if ids else 0 for ids in self.sources]
        missing = list(self.undefined)
        xy = (keypoints[..., first, :] + keypoints[..., last, :]) / 2  # [..., J, 2|3]
        low = scores[..., first].clip(max=scores[..., last])  # [..., J]
        if missing:
            xy[..., missing, :] = float("nan")
            low[..., missing] = 0
        return xy, low


def _kind(array: object) -> str:
    if isinstance(array, np.ndarray):
        return "numpy array"
    import torch

    return "torch tensor" if isinstance(array, torch.Tensor) else type(array).__name__


def _check_points(keypoints: Any, scores: Any) -> None:
    kinds = _kind(keypoints), _kind(scores)
    if kinds not in (("numpy array", "numpy array"), ("torch tensor", "torch tensor")):
        raise InputError(
            f"keypoints and scores: expected two numpy arrays or two torch tensors, got {kinds[0]} and {kinds[1]}. "
            "Convert them first, for instance with numpy.asarray(keypoints, dtype=float)."
        )
    if keypoints.ndim < 2 or keypoints.shape[-2] != len(KEYPOINTS) or keypoints.shape[-1] not in (2, 3):
        raise InputError(
            f"keypoints: expected shape [..., {len(KEYPOINTS)}, 2 or 3], got {list(keypoints.shape)}. "
            "Pass all 308 points of Sapiens2, with their scores apart."
        )
    if tuple(scores.shape) != tuple(keypoints.shape[:-1]):
        raise InputError(
            f"scores: expected shape {list(keypoints.shape[:-1])}, got {list(scores.shape)}. One score a keypoint."
        )
    floating = keypoints.dtype.kind == "f" if kinds[0] == "numpy array" else keypoints.is_floating_point()
    if not floating:
        raise InputError(
            f"keypoints: expected floating point, got {keypoints.dtype}. Points without a counterpart become NaN, "
            "and midpoints fall between pixels: convert to float first."
        )


def _sources(names: Sequence[_Source]) -> tuple[tuple[int, ...], ...]:
    """Return `Layout.sources` for names of the 308: one name, a pair (its midpoint), or None (undefined)."""
    return tuple(
        () if name is None else tuple(KEYPOINT_INDEX[part] for part in ((name,) if isinstance(name, str) else name))
        for name in names
    )


def _bones_between(sources: Sequence[tuple[int, ...]], *, start: int = 0) -> tuple[Bone, ...]:
    """Return the bones of the 308 whose two ends are single sources; the first source has index `start`."""
    index = {ids[0]: start + i for i, ids in enumerate(sources) if len(ids) == 1}
    return tuple(
        replace(bone, start=index[bone.start], end=index[bone.end])
        for bone in SKELETON
        if bone.start in index and bone.end in index
    )


def _mirror(names: Sequence[str], left: str = "left_", right: str = "right_") -> list[int]:
    """Return the index of each name with `left` and `right` exchanged; other names map to themselves."""
    swapped = {left + name.removeprefix(right): name for name in names if name.startswith(right)}
    swapped |= {name: other for other, name in swapped.items()}
    return [names.index(swapped.get(name, name)) for name in names]


SAPIENS_308: Final[Layout] = Layout(
    name="sapiens308",
    names=KEYPOINT_NAMES,
    sources=tuple((i,) for i in range(len(KEYPOINTS))),
    skeleton=SKELETON,
    flip_permutation=FLIP_PERMUTATION,
)
"""All 308 points."""

# -------------------------------------------------------------------------------------------------------- COCO-17

_COCO_17_NAMES: Final[tuple[str, ...]] = (
    "nose",
    *(f"{side}_{point}" for point in ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
      for side in ("left", "right")),
)  # fmt: skip

COCO_17: Final[Layout] = Layout(
    name="coco17",
    names=_COCO_17_NAMES,
    sources=_sources(_COCO_17_NAMES),
    skeleton=_bones_between(_sources(_COCO_17_NAMES)),
    flip_permutation=tuple(_mirror(_COCO_17_NAMES)),
)
"""The 17 body points of COCO; every one is a point of the 308."""

# -------------------------------------------------------------------------------------------------------- BODY_25

_BODY_25_POINTS: Final[dict[str, _Source]] = {
    "Nose": "nose", "Neck": ("left_shoulder", "right_shoulder"),
    "RShoulder": "right_shoulder", "RElbow": "right_elbow", "RWrist": "right_wrist",
    "LShoulder": "left_shoulder", "LElbow": "left_elbow", "LWrist": "left_wrist",
    "MidHip": ("left_hip", "right_hip"),
    "RHip": "right_hip", "RKnee": "right_knee", "RAnkle": "right_ankle",
    "LHip": "left_hip", "LKnee": "left_knee", "LAnkle": "left_ankle",
    "REye": "right_eye", "LEye": "left_eye", "REar": "right_ear", "LEar": "left_ear",
    "LBigToe": "left_big_toe", "LSmallToe": "left_small_toe", "LHeel": "left_heel",
    "RBigToe": "right_big_toe", "RSmallToe": "right_small_toe", "RHeel": "right_heel",
}  # fmt: skip
_BODY_25_BONES: Final[tuple[tuple[str, int, int], ...]] = (
    ("spine", 1, 8),
    ("right_collar", 1, 2), ("right_upper_arm", 2, 3), ("right_forearm", 3, 4),
    ("left_collar", 1, 5), ("left_upper_arm", 5, 6), ("left_forearm", 6, 7),
    ("right_pelvis", 8, 9), ("right_thigh", 9, 10), ("right_shin", 10, 11),
    ("left_pelvis", 8, 12), ("left_thigh", 12, 13), ("left_shin", 13, 14),
    ("neck", 1, 0),
    ("right_nose_to_eye", 0, 15), ("right_temple", 15, 17),
    ("left_nose_to_eye", 0, 16), ("left_temple", 16, 18),
    ("left_big_toe", 14, 19), ("left_toes", 19, 20), ("left_heel", 14, 21),
    ("right_big_toe", 11, 22), ("right_toes", 22, 23), ("right_heel", 11, 24),
)  # fmt: skip
_SIDE_COLOURS: Final[dict[str, Colour]] = {"left": (0, 255, 0), "right": (255, 128, 0), "middle": (51, 153, 255)}

BODY_25: Final[Layout] = Layout(
    name="body25",
    names=tuple(_BODY_25_POINTS),
    sources=_sources(list(_BODY_25_POINTS.values())),
    skeleton=tuple(Bone(name, start, end, _SIDE_COLOURS[side_of(name)]) for name, start, end in _BODY_25_BONES),
    flip_permutation=tuple(_mirror(list(_BODY_25_POINTS), "L", "R")),
)
"""The 25 body and foot points of OpenPose; the neck and the middle of the hips are midpoints."""

# ------------------------------------------------------------------------------------------------- COCO-WholeBody

_FINGERS = ("thumb", "forefinger", "middle_finger", "ring_finger", "pinky_finger")
_FEET: Final[tuple[str, ...]] = tuple(
    f"{side}_{point}" for side in ("left", "right") for point in ("big_toe", "small_toe", "heel")
)
# The middle and the person's right, by number within the 68 of iBUG; the person's left mirrors it.
_FACE_RIGHT_AND_MIDDLE: Final[dict[int, _Source]] = {
    8: "tip_of_chin",  # iBUG's point is a little lower, on the outline
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
_FACE_MIRROR_RUNS: Final = ((0, 16), (17, 26), (31, 35), (48, 54), (55, 59), (60, 64))
_FACE_MIRROR_PAIRS: Final = ((36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46), (65, 67))


def _face_mirror() -> list[int]:
    mirror = list(range(68))
    for first, last in _FACE_MIRROR_RUNS:
        mirror[first : last + 1] = range(last, first - 1, -1)
    for a, b in _FACE_MIRROR_PAIRS:
        mirror[a], mirror[b] = b, a
    return mirror


def _face_sources() -> list[tuple[int, ...]]:
    known = dict(zip(_FACE_RIGHT_AND_MIDDLE, _sources(list(_FACE_RIGHT_AND_MIDDLE.values())), strict=True))
    return [
        known[i] if i in known else tuple(FLIP_PERMUTATION[source] for source in known.get(swap, ()))
        for i, swap in enumerate(_face_mirror())
    ]


def _wholebody() -> Layout:
    body = [*_COCO_17_NAMES, *_FEET]
    names, sources, skeleton = [*body], [*_sources(body)], [*_bones_between(_sources(body))]
    face = len(names)
    names += [f"face-{i}" for i in range(68)]
    sources += _face_sources()
    for side in ("left", "right"):
        joints = [f"{side}_{finger}{n}" for finger in _FINGERS for n in ("_third_joint", "2", "3", "4")]
        hand = _sources([f"{side}_wrist", *joints])
        skeleton += _bones_between(hand, start=len(names))
        names += [f"{side}_hand_root", *(f"{side}_{finger}{n}" for finger in _FINGERS for n in (1, 2, 3, 4))]
        sources += hand
    mirror = _mirror(names)
    mirror[face : face + 68] = [face + i for i in _face_mirror()]
    return Layout("wholebody133", tuple(names), tuple(sources), tuple(skeleton), tuple(mirror))


COCO_WHOLEBODY_133: Final[Layout] = _wholebody()
"""The 133 points of COCO-WholeBody. Hands start at their own roots."""

LAYOUTS: Final[dict[str, Layout]] = {
    layout.name: layout for layout in (SAPIENS_308, COCO_17, COCO_WHOLEBODY_133, BODY_25)
}
"""Every layout by its name: sapiens308, coco17, wholebody133, body25."""
