"""TODO"""

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


_SIDE_COLOURS: Final[dict[str, Colour]] = {"left": (0, 255, 0), "right": (255, 128, 0), "middle": (51, 153, 255)}


@dataclass(frozen=True)
class Layout:
    """A set of keypoints that the 308 can be converted to.

    Attributes:
        name: What the layout is called, for instance "coco17".
        names: Names of its J points, in its own order.
        sources: For each point the ids among the 308 it is made of: one, two (their midpoint) or none (undefined).
        skeleton: Its bones; `start` and `end` count in this layout.
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
        """Mirrored pairs of this layout's own indices, the smaller first."""
        return [[i, swap] for i, swap in enumerate(self.flip_permutation) if i < swap]

    @overload
    def convert(self, keypoints: NDArray[Any], scores: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]: ...
    @overload
    def convert(self, keypoints: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]: ...
    def convert(self, keypoints: Any, scores: Any) -> tuple[Any, Any]:
        """Convert 308 keypoints and their scores to this layout.

        A midpoint gets the lower of its two scores: it is as good as the worse of its ends. A point without a
        counterpart (`undefined`) gets coordinates NaN and score 0.

        Args:
            keypoints: [..., 308, 2] or [..., 308, 3]; floating point, numpy array or torch tensor. All columns are
                coordinates: pass scores on their own.
            scores: [..., 308], of the same kind and on the same device.

        Returns:
            keypoints [..., J, 2 or 3] and scores [..., J]: new arrays of the kind and precision that came in.
        """
        _check_points(keypoints, scores)
        first = [ids[0] if ids else 0 for ids in self.sources]
        last = [ids[-1] if ids else 0 for ids in self.sources]
        missing = list(self.undefined)
        xy = (keypoints[..., first, :] + keypoints[..., last, :]) / 2  # [..., J, 2|3]
        low = _lower(scores[..., first], scores[..., last])  # [..., J]
        if missing:
            xy[..., missing, :] = float("nan")
            low[..., missing] = 0
        return xy, low


def _lower(a: Any, b: Any) -> Any:
    if isinstance(a, np.ndarray):
        return np.minimum(a, b)
    import torch

    return torch.minimum(a, b)


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


def sources_by_name(names: Sequence[str | tuple[str, str] | None]) -> tuple[tuple[int, ...], ...]:
    """Turn names of the 308 into `Layout.sources`: one name, a pair (its midpoint), or None (undefined)."""
    return tuple(
        () if name is None else tuple(KEYPOINT_INDEX[part] for part in ((name,) if isinstance(name, str) else name))
        for name in names
    )


def bones_between(sources: Sequence[tuple[int, ...]], *, start: int = 0) -> tuple[Bone, ...]:
    """Take over the bones of the 308 whose two ends are single sources here; the first source has index `start`."""
    index = {ids[0]: start + i for i, ids in enumerate(sources) if len(ids) == 1}
    return tuple(
        replace(bone, start=index[bone.start], end=index[bone.end])
        for bone in SKELETON
        if bone.start in index and bone.end in index
    )


def mirror_by_name(names: Sequence[str]) -> tuple[int, ...]:
    """Return each point's mirror image for names that say ``left_`` and ``right_``; others map to themselves."""
    index = {name: i for i, name in enumerate(names)}
    swapped = {"left_": "right_", "right_": "left_"}
    return tuple(
        next((index[theirs + name.removeprefix(ours)] for ours, theirs in swapped.items() if name.startswith(ours)), i)
        for i, name in enumerate(names)
    )


COCO_17_NAMES: Final[tuple[str, ...]] = (
    "nose",
    *(f"{side}_{point}" for point in ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
      for side in ("left", "right")),
)  # fmt: skip

SAPIENS_308: Final[Layout] = Layout(
    name="sapiens308",
    names=KEYPOINT_NAMES,
    sources=tuple((i,) for i in range(len(KEYPOINTS))),
    skeleton=SKELETON,
    flip_permutation=FLIP_PERMUTATION,
)
"""All 308 points as they are."""

COCO_17: Final[Layout] = Layout(
    name="coco17",
    names=COCO_17_NAMES,
    sources=sources_by_name(COCO_17_NAMES),
    skeleton=bones_between(sources_by_name(COCO_17_NAMES)),
    flip_permutation=mirror_by_name(COCO_17_NAMES),
)
"""The 17 body points of COCO; every one is a point of the 308."""

_BODY_25_POINTS: Final[tuple[tuple[str, str | tuple[str, str]], ...]] = (
    ("Nose", "nose"),
    ("Neck", ("left_shoulder", "right_shoulder")),
    ("RShoulder", "right_shoulder"),
    ("RElbow", "right_elbow"),
    ("RWrist", "right_wrist"),
    ("LShoulder", "left_shoulder"),
    ("LElbow", "left_elbow"),
    ("LWrist", "left_wrist"),
    ("MidHip", ("left_hip", "right_hip")),
    ("RHip", "right_hip"),
    ("RKnee", "right_knee"),
    ("RAnkle", "right_ankle"),
    ("LHip", "left_hip"),
    ("LKnee", "left_knee"),
    ("LAnkle", "left_ankle"),
    ("REye", "right_eye"),
    ("LEye", "left_eye"),
    ("REar", "right_ear"),
    ("LEar", "left_ear"),
    ("LBigToe", "left_big_toe"),
    ("LSmallToe", "left_small_toe"),
    ("LHeel", "left_heel"),
    ("RBigToe", "right_big_toe"),
    ("RSmallToe", "right_small_toe"),
    ("RHeel", "right_heel"),
)
_BODY_25_LINKS: Final[tuple[tuple[str, int, int], ...]] = (
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


def _body_25_mirror() -> tuple[int, ...]:
    names = [name for name, _ in _BODY_25_POINTS]
    other = {"L": "R", "R": "L"}
    swapped = (other[name[0]] + name[1:] if name[0] in other and name[1].isupper() else name for name in names)
    return tuple(names.index(name) for name in swapped)


BODY_25: Final[Layout] = Layout(
    name="body25",
    names=tuple(name for name, _ in _BODY_25_POINTS),
    sources=sources_by_name([source for _, source in _BODY_25_POINTS]),
    skeleton=tuple(
        Bone(name=name, start=start, end=end, colour=_SIDE_COLOURS[side_of(name)])
        for name, start, end in _BODY_25_LINKS
    ),
    flip_permutation=_body_25_mirror(),
)
"""The 25 body and foot points of OpenPose; the neck and the middle of the hips are midpoints."""


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
