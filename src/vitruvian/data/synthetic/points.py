"""How the 308 keypoints are found on a body: weighted sums of its vertices, or ends of its bones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.data.synthetic.people import KEYPOINTS
from vitruvian.data.synthetic.pieces import Bools, Floats, Ints
from vitruvian.human import GROUPS, KEYPOINT_INDEX

FINGERS = ("thumb", "forefinger", "middle_finger", "ring_finger", "pinky_finger")


@dataclass(frozen=True)
class KeypointRules:
    """How the 308 points are found: weighted vertices, or the ends of bones."""

    vertices: Ints  # [308, W]
    weights: Floats  # [308, W]
    bone: Ints  # [308], -1: none
    end: Ints  # [308]: 0 head, 1 tail
    known: Bools  # [308]
    depth: Floats  # [308] share of the stature


def keypoint_rules(
    template: Floats, bones: Floats, names: tuple[str, ...], table: dict[str, NDArray[Any]] | None, *, surface: int
) -> KeypointRules:
    """Rules for the 308 points from the table, or, without one, for those that are joints.

    `template` is [N, 3], of which the first `surface` vertices are skin; `bones` [B, 2, 3] with their `names`.
    """
    place = {name: i for i, name in enumerate(names)}
    if table is not None:
        kind = table["kind"].astype(np.int64)
        on_skin = kind == 1
        vertices = np.where(on_skin[:, None], table["vertex_ids"].astype(np.int64), 0)
        weights = np.where(on_skin[:, None], table["vertex_weights"], 0).astype(np.float32)
        bone = np.array([place[name] if k >= 2 else -1 for name, k in zip(table["bone"], kind, strict=True)])
        end, known = (kind == 3).astype(np.int64), kind > 0
    else:
        bone, end = joint_keypoints(place)
        vertices, weights, known = np.zeros((len(bone), 1), np.int64), np.zeros((len(bone), 1), np.float32), bone >= 0
    point = (template[vertices] * weights[..., None]).sum(1)
    point = np.where((bone >= 0)[:, None], bones[np.maximum(bone, 0), end], point)
    body = template[:surface]
    inside = np.array([np.linalg.norm(body - p, axis=1).min() for p in point])
    margin = np.full(len(bone), 0.03)  # clothes over the body do not hide a joint
    margin[[*GROUPS["face"], *GROUPS["irises"], *GROUPS["ears"]]] = 0.007
    margin[[*GROUPS["left_hand"], *GROUPS["right_hand"]]] = 0.012
    stature = float(body[:, 2].max() - body[:, 2].min())
    return KeypointRules(vertices, weights, bone, end, known, (1.35 * inside + margin) / stature)


def joint_keypoints(place: dict[str, int]) -> tuple[Ints, Ints]:
    """The points at the ends of bones: bone [308] (-1: none) and end [308]."""
    bone, end = np.full(KEYPOINTS, -1, np.int64), np.zeros(KEYPOINTS, np.int64)

    def put(name: str, on: str, tail: int = 0) -> None:
        if on in place:
            bone[KEYPOINT_INDEX[name]], end[KEYPOINT_INDEX[name]] = place[on], tail

    put("neck", "neck01")
    for word, side in (("left", "L"), ("right", "R")):
        joints = {"shoulder": "upperarm01", "elbow": "lowerarm01", "wrist": "wrist", "hip": "upperleg01",
                  "knee": "lowerleg01", "ankle": "foot"}  # fmt: skip
        for name, on in joints.items():
            put(f"{word}_{name}", f"{on}.{side}")
        put(f"{word}_big_toe", f"toe1-2.{side}", 1)
        for number, finger in enumerate(FINGERS, 1):
            for joint, suffix in ((1, "_third_joint"), (2, "2"), (3, "3")):
                put(f"{word}_{finger}{suffix}", f"finger{number}-{joint}.{side}")
            put(f"{word}_{finger}4", f"finger{number}-3.{side}", 1)
    return bone, end
