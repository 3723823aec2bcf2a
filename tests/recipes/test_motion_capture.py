"""Recorded poses: rotations, rules, choice."""

from pathlib import Path

import numpy as np
import pytest
from recipes.build_people_assets.motion_capture import (
    _bvh_rotations,
    _choose_diverse,
    _cmu_rotations,
    _joint_positions,
    _local_quaternions,
    _plausible,
    _remove_heading,
    _to_quaternions,
)
from scipy.spatial.transform import Rotation

from vitruvian.errors import InputError


def rotation_matrices(degrees: np.ndarray, axis: int) -> np.ndarray:
    """Rotations about one coordinate axis: [...] -> [..., 3, 3]."""
    rotation = Rotation.from_euler("xyz"[axis], np.ravel(degrees)[:, None], degrees=True)
    return rotation.as_matrix().reshape(*degrees.shape, 3, 3)


def random_rotations(count: int) -> np.ndarray:
    return Rotation.random(count, np.random.default_rng(0)).as_matrix()


def to_matrices(quaternions: np.ndarray) -> np.ndarray:
    """Quaternions with the real part first: [N, B, 4] -> [N, B, 3, 3]."""
    rotation = Rotation.from_quat(np.roll(quaternions.reshape(-1, 4), -1, axis=1))
    return rotation.as_matrix().reshape(*quaternions.shape[:-1], 3, 3)


def test_quaternions_of_matrices():
    matrices = np.concatenate([random_rotations(200), rotation_matrices(np.array([0.0, 180.0, 179.9]), 1)])
    q = _to_quaternions(matrices)
    assert np.allclose(to_matrices(q), matrices, atol=1e-5)
    assert (q[:, 0] >= 0).all()


def test_local_rotations_without_heading():
    parents = np.array([-1, 0, 1])
    turns = random_rotations(30).reshape(10, 3, 3, 3)
    local = to_matrices(_local_quaternions(_remove_heading(turns), parents))
    first = local[:, 0]
    assert np.allclose(
        first @ local[:, 1] @ local[:, 2], first @ np.swapaxes(turns[:, 0], 1, 2) @ turns[:, 2], atol=1e-5
    )
    heading = rotation_matrices(np.full(10, 77.0), 2)[:, None] @ turns
    assert np.allclose(to_matrices(_local_quaternions(_remove_heading(heading), parents)), local, atol=1e-4)


def test_positions_follow_the_chain():
    heads = np.array([[0, 0, 1], [0, 0, 2], [0, 0, 3]], np.float32)
    turns = np.tile(np.eye(3, dtype=np.float32), (1, 3, 1, 1))
    turns[0, 1] = rotation_matrices(np.array(90.0), 0)
    placed = _joint_positions(turns, heads, np.array([-1, 0, 1]))
    assert np.allclose(placed[0], [[0, 0, 0], [0, 0, 1], [0, -1, 1]], atol=1e-6)


def cmu_table(degrees: float) -> dict[str, np.ndarray]:
    """Two joints; the second turns about x by `degrees`."""
    channels = np.zeros((1, 9), np.float16)
    channels[0, 8] = degrees
    return {
        "channels": channels, "joint_names": np.array(["Hips", "Arm"]), "parents": np.array([-1, 0]),
        "channel_start": np.array([0, 6]),
    }  # fmt: skip


def test_cmu_rules():
    axes = [[1, 0, 0], [0, 0, -1], [0, 1, 0]]
    rules = {"axes_matrix": axes, "offsets": {}, "bones": {"root": {"joint": "Hips"}, "arm": {"joint": "Arm"}}}
    turns = _cmu_rotations(cmu_table(40.0), rules, ("root", "arm", "hand"), np.array([-1, 0, 1]))
    assert np.allclose(turns[0, 0], np.eye(3), atol=1e-6)
    assert np.allclose(turns[0, 1], rotation_matrices(np.array(40.0), 0), atol=1e-3)  # both x axes point right
    assert np.allclose(turns[0, 2], turns[0, 1])  # not listed: follows its parent
    rules["bones"]["arm"] = {"joint": "Arm", "blend": {"other": "Hips", "share": 0.25}}
    turns = _cmu_rotations(cmu_table(40.0), rules, ("root", "arm"), np.array([-1, 0]))
    assert np.allclose(turns[0, 1], rotation_matrices(np.array(30.0), 0), atol=1e-3)
    rules["bones"]["arm"] = {"joint": "Hips", "clamp": {"to": "Arm", "max_deg": 10}}
    turns = _cmu_rotations(cmu_table(40.0), rules, ("root", "arm"), np.array([-1, 0]))
    assert np.allclose(turns[0, 1], rotation_matrices(np.array(10.0), 0), atol=1e-3)
    rules["arm_rest_direction"] = {"Arm": [0, 0, -1]}
    rules["bones"]["arm"] = {"joint": "Hips", "swing": {"of": "Arm", "share": 0.5}}
    turns = _cmu_rotations(cmu_table(40.0), rules, ("root", "arm"), np.array([-1, 0]))
    assert np.allclose(turns[0, 1], rotation_matrices(np.array(20.0), 0), atol=1e-3)


BVH = """HIERARCHY
ROOT root
{
 OFFSET 0 0 0
 CHANNELS 6 Xposition Yposition Zposition Xrotation Yrotation Zrotation
 JOINT arm
 {
  OFFSET 0 0 1
  CHANNELS 3 Xrotation Yrotation Zrotation
  End Site
  {
   OFFSET 0 0 1
  }
 }
}
MOTION
Frames: 1
Frame Time: 0.04
0 0 0 90 0 0 0 0 30
"""


def test_bvh(tmp_path: Path):
    path = tmp_path / "a.bvh"
    path.write_text(BVH)
    turns = _bvh_rotations(path, ("root", "arm", "hand"), np.array([-1, 0, 1]))
    x90, z30 = rotation_matrices(np.array(90.0), 0), rotation_matrices(np.array(30.0), 2)
    assert np.allclose(turns[0], x90, atol=1e-6)
    assert np.allclose(turns[1], x90 @ z30, atol=1e-6)
    assert np.allclose(turns[2], turns[1])
    path.write_text(BVH.replace("0 0 30\n", "0 0\n"))
    with pytest.raises(InputError, match="expected one frame"):
        _bvh_rotations(path, ("root",), np.array([-1]))


NAMES = ("root", "spine01", "neck02", "head", *(
    f"{bone}.{side}" for side in "LR" for bone in ("wrist", "finger3-1", "lowerarm01", "upperleg01", "lowerleg01")
))  # fmt: skip


def standing() -> np.ndarray:
    spots = {"root": (0, 0, 0), "spine01": (0, 0, 0.4), "neck02": (0, 0, 0.5), "head": (0, 0, 0.6)}
    for side, sign in (("L", 1), ("R", -1)):
        spots |= {
            f"wrist.{side}": (0.4 * sign, 0, 0), f"finger3-1.{side}": (0.42 * sign, 0, -0.05),
            f"lowerarm01.{side}": (0.35 * sign, 0, 0.2), f"upperleg01.{side}": (0.1 * sign, 0, -0.05),
            f"lowerleg01.{side}": (0.12 * sign, 0, -0.45),
        }  # fmt: skip
    return np.array([spots[name] for name in NAMES], np.float32)


def test_self_intersecting_poses_are_not_plausible():
    good, bad = standing(), standing()
    bad[NAMES.index("wrist.L")] = (0.05, 0, 0.2)
    assert _plausible(np.stack([good, bad]), NAMES).tolist() == [True, False]


def test_diverse_choice_has_outliers_and_no_repeats():
    features = np.concatenate([np.random.default_rng(0).normal(size=(200, 2)), [[50.0, 0.0], [0.0, 70.0]]])
    chosen = _choose_diverse(features, 20, seed=0)
    assert len(set(chosen.tolist())) == 20
    assert {200, 201} <= set(chosen.tolist())
    assert len(_choose_diverse(features[:5], 20, seed=0)) == 5
