"""Recorded poses (CMU motion capture, MakeHuman .bvh) as rotations of the bones of our skeleton. Used to build packs.

A pose is one rotation per bone, relative to its parent, in the axes of the rest pose: bone b has the rotation
R(b) = R(parent) @ local(b) from rest, so the identity is the rest pose and no bone frames are needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from recipes.build_people_assets.anny_bodies import BodySource
from recipes.build_people_assets.assets import read_table
from vitruvian.errors import InputError
from vitruvian.images.types import BoolArray, IntArray
from vitruvian.training.synthetic.asset_pack import Arrays, FloatArray


def _to_quaternions(matrices: FloatArray) -> FloatArray:
    """Convert rotation matrices [..., 3, 3] to unit quaternions [..., 4] (w, x, y, z), w >= 0."""
    quaternions = Rotation.from_matrix(matrices.reshape(-1, 3, 3)).as_quat(canonical=True)  # x, y, z, w
    return np.asarray(np.roll(quaternions, 1, axis=1), np.float32).reshape(*matrices.shape[:-2], 4)


def _rotate_toward(start: Rotation, end: Rotation, share: FloatArray | float) -> Rotation:
    """Rotate from one rotation toward another by a share of the angle between them."""
    return start * Rotation.from_rotvec((start.inv() * end).as_rotvec() * np.asarray(share)[..., None])


def _cmu_rotations(table: Arrays, rules: dict[str, Any], names: tuple[str, ...], parents: IntArray) -> FloatArray:
    """Return the rotation of every bone from rest [N, B, 3, 3] in every pose, by the rules of `cmu_to_anny.json`."""
    axes = np.array(rules["axes_matrix"])
    rotations: dict[str, Rotation] = {}
    raw: list[Rotation] = []
    for joint, parent, start in zip(table["joint_names"], table["parents"], table["channel_start"], strict=True):
        first = int(start) + (3 if int(parent) < 0 else 0)
        angles = table["channels"][:, first : first + 3].astype(np.float64)  # [N, 3]: z, y, x
        local = Rotation.from_euler("ZYX", angles, degrees=True)
        raw.append(local if int(parent) < 0 else raw[int(parent)] * local)
        offset = np.array(rules["offsets"].get(str(joint), np.eye(3)))
        rotations[str(joint)] = Rotation.from_matrix(axes @ raw[-1].as_matrix() @ axes.T @ offset)
    out = np.zeros((len(table["channels"]), len(names), 3, 3), np.float32)
    for bone, name in enumerate(names):
        rule = rules["bones"].get(name)
        out[:, bone] = out[:, parents[bone]] if rule is None else _apply_rule(rule, rules, rotations).as_matrix()
    return out


def _apply_rule(rule: dict[str, Any], rules: dict[str, Any], rotations: dict[str, Rotation]) -> Rotation:
    """Return the rotation [N] of a bone: that of a joint, blended with others as the rule says."""
    value = rotations[rule["joint"]]
    if "blend" in rule:
        value = _rotate_toward(value, rotations[rule["blend"]["other"]], rule["blend"]["share"])
    if "swing" in rule:  # the smallest rotation that carries one direction to another
        other = rule["swing"]["of"]
        direction = rules["arm_rest_direction"][other]
        a, b = value.apply(direction), rotations[other].apply(direction)  # [N, 3]
        axis = np.cross(a, b)
        axis = axis / np.maximum(np.linalg.norm(axis, axis=-1, keepdims=True), 1e-9)
        angle = np.arccos(np.clip((a * b).sum(-1, keepdims=True), -1, 1))
        value = Rotation.from_rotvec(axis * angle * rule["swing"]["share"]) * value
    if "clamp" in rule:
        target = rotations[rule["clamp"]["to"]]
        angle = (value.inv() * target).magnitude()
        share = np.minimum(1, np.deg2rad(rule["clamp"]["max_deg"]) / np.maximum(angle, 1e-6))
        value = _rotate_toward(value, target, share)
    return value


def _bvh_rotations(path: Path, names: tuple[str, ...], parents: IntArray) -> FloatArray:
    """Return the rotation of every bone from rest [B, 3, 3] in a one-frame .bvh file with the names of our bones."""
    joints: list[tuple[str, int, list[str]]] = []
    stack: list[int] = []
    lines = iter(path.read_text().splitlines())
    for line in lines:
        words = line.split()
        if words[:1] in (["ROOT"], ["JOINT"]):
            joints.append((words[1], stack[-1] if stack else -1, []))
        elif words[:1] == ["End"]:
            joints.append(("", stack[-1], []))
        elif words[:1] == ["{"]:
            stack.append(len(joints) - 1)
        elif words[:1] == ["}"]:
            stack.pop()
        elif words[:1] == ["CHANNELS"]:
            joints[-1][2].extend(words[2:])
        elif words[:1] == ["Frame"]:
            break
    numbers = [float(word) for word in next(lines, "").split()]
    if len(numbers) != sum(len(channels) for _, _, channels in joints):
        raise InputError(
            f"pose {path}: expected one frame for every channel, got {len(numbers)} numbers. Check the file."
        )
    rotations: list[Rotation] = []
    values = iter(numbers)
    for _, parent, channels in joints:
        angles = {channel[0]: value for channel, value in zip(channels, values) if channel.endswith("rotation")}  # noqa: B905
        local = (
            Rotation.from_euler("".join(angles), [*angles.values()], degrees=True) if angles else Rotation.identity()
        )
        rotations.append(local if parent < 0 else rotations[parent] * local)
    by_name = {joint[0]: rotation.as_matrix() for joint, rotation in zip(joints, rotations, strict=True)}
    out = np.zeros((len(names), 3, 3), np.float32)
    for bone, name in enumerate(names):
        out[bone] = by_name.get(name, out[parents[bone]])
    return out


def _remove_heading(rotations: FloatArray) -> FloatArray:
    """Rotate poses [N, B, 3, 3] about the vertical so that the root has no heading."""
    root = _to_quaternions(rotations[:, 0])  # [N, 4]
    heading = Rotation.from_euler("z", -2 * np.arctan2(root[:, 3], root[:, 0])[:, None])
    return np.asarray(heading.as_matrix()[:, None] @ rotations)


def _local_quaternions(rotations: FloatArray, parents: IntArray) -> FloatArray:
    """Convert rotations from rest [N, B, 3, 3] to quaternions relative to the parent [N, B, 4]."""
    above = rotations[:, np.maximum(parents, 0)]
    local = np.where((parents < 0)[:, None, None], rotations, np.swapaxes(above, -1, -2) @ rotations)
    return _to_quaternions(local)


def _joint_positions(rotations: FloatArray, heads: FloatArray, parents: IntArray) -> FloatArray:
    """Return positions of heads: rotations [N, B, 3, 3], rest heads [B, 3] -> [N, B, 3], the root at the origin."""
    out = np.zeros((*rotations.shape[:2], 3), np.float32)
    for bone in range(1, len(parents)):
        parent = parents[bone]
        out[:, bone] = out[:, parent] + rotations[:, parent] @ (heads[bone] - heads[parent])
    return out


def _plausible(positions: FloatArray, names: tuple[str, ...]) -> BoolArray:
    """Return which poses [N, B, 3] keep hands and elbows out of the trunk, the head and the thighs: [N]."""
    at = {name: positions[:, index] for index, name in enumerate(names)}
    trunk, head = (at["root"], at["spine01"]), (at["neck02"], at["head"] + 0.5 * (at["head"] - at["neck02"]))
    good = np.ones(len(positions), bool)
    for side in "LR":
        hand = (at[f"wrist.{side}"] + at[f"finger3-1.{side}"]) / 2
        for point in (hand, at[f"wrist.{side}"], at[f"lowerarm01.{side}"]):
            good &= _segment_distance(point, *trunk) > 0.145
        good &= _segment_distance(hand, *head) > 0.11
        for other in "LR":
            thigh = (at[f"upperleg01.{other}"], at[f"lowerleg01.{other}"])
            good &= _segment_distance(hand, *thigh) > 0.10
        good &= _segment_distance(at[f"lowerleg01.{side}"], *trunk) > 0.16
    return good & (_segment_distance(at["lowerleg01.L"], at["upperleg01.R"], at["lowerleg01.R"]) > 0.09)


def _segment_distance(point: FloatArray, start: FloatArray, end: FloatArray) -> FloatArray:
    """Distance of points to line segments, all [N, 3]: [N]."""
    along = end - start
    share = np.clip(((point - start) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-9), 0, 1)
    return np.asarray(np.linalg.norm(point - start - share[:, None] * along, axis=-1))


def _choose_diverse(features: FloatArray, count: int, seed: int) -> IntArray:
    """Choose `count` rows of [N, D]: half by farthest-point sampling, half at random."""
    count = min(count, len(features))
    generator = np.random.default_rng(seed)
    chosen = [int(generator.integers(len(features)))]
    distance = ((features - features[chosen[0]]) ** 2).sum(1)
    while len(chosen) < (count + 1) // 2:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((features - features[chosen[-1]]) ** 2).sum(1))
    rest = np.setdiff1d(np.arange(len(features)), chosen)
    return np.sort(np.concatenate([chosen, generator.permutation(rest)[: count - len(chosen)]]))


def recorded_poses(source: BodySource, folder: Path | None, count: int, seed: int) -> Arrays:
    """Return the arrays of `Poses`, from the recordings in an assets folder or, without one, of standing people."""
    names, parents = source.bone_names, source.bone_parents
    fingers = [
        names.index(f"finger{finger}-{joint}.{side}") for side in "LR" for finger in range(1, 6) for joint in (1, 2, 3)
    ]
    if folder is None:
        axes = _bending_axes(source, fingers)
        identity = np.zeros((1, len(names), 4), np.float32)
        identity[..., 0] = 1
        quaternions = np.repeat(identity, min(count, 256), 0)
        _set_standing_poses(quaternions, names, seed)
    else:
        rules = json.loads((folder / "poses" / "cmu_to_anny.json").read_text())
        rotations = _cmu_rotations(read_table(folder / "poses" / "cmu.npz"), rules, names, parents)
        heads = source.template_bones[:, 0]
        good = np.flatnonzero(_plausible(_joint_positions(rotations, heads, parents), names))
        rotations = _remove_heading(rotations[good])
        rooted = _joint_positions(rotations, heads, parents)
        joints = [i for i, name in enumerate(names) if not name.startswith(("toe", "finger"))]
        chosen = _choose_poses(rooted, names, joints, count, seed)
        extra = np.stack(
            [_bvh_rotations(path, names, parents) for path in sorted((folder / "poses" / "makehuman").glob("*.bvh"))]
        )
        quaternions = _local_quaternions(np.concatenate([rotations[chosen], _remove_heading(extra)]), parents)
        axes = np.array([rules["finger_flexion_axis"][names[bone]] for bone in fingers], np.float32)
        quaternions[: len(chosen), fingers] = [1, 0, 0, 0]  # the recordings have none
    rotating = np.flatnonzero(np.abs(quaternions[..., 1:]).max((0, 2)) > 1e-3)
    return {
        "rotations": quaternions[:, rotating], "rotated_bones": rotating, "finger_bones": np.array(fingers),
        "finger_axes": axes,
    }  # fmt: skip


def _choose_poses(positions: FloatArray, names: tuple[str, ...], joints: list[int], count: int, seed: int) -> IntArray:
    """Choose poses: nine in ten upright, since that is how people are photographed, the rest in any posture."""
    up = positions[:, names.index("spine01")] - positions[:, 0]
    upright = up[:, 2] > 0.8 * np.linalg.norm(up, axis=1)
    features = positions[:, joints].reshape(len(positions), -1)
    groups = [(np.flatnonzero(upright), round(0.9 * count)), (np.flatnonzero(~upright), count - round(0.9 * count))]
    return np.concatenate(
        [rows[_choose_diverse(features[rows], share, seed)] for rows, share in groups if len(rows) and share]
    )


def _bending_axes(source: BodySource, fingers: list[int]) -> FloatArray:
    """Return the axes that fingers bend about: perpendicular to the finger and to the palm."""
    at = {name: source.template_bones[i, 0] for i, name in enumerate(source.bone_names)}
    axes = []
    for bone in fingers:
        side = source.bone_names[bone][-1]
        head, tail = source.template_bones[bone]
        across = at[f"finger5-1.{side}"] - at[f"finger2-1.{side}"]
        palm = np.cross(at[f"finger3-1.{side}"] - at[f"wrist.{side}"], across) * (1 if side == "L" else -1)
        axis = np.cross(tail - head, palm)
        axes.append(axis / np.linalg.norm(axis))
    return np.array(axes, np.float32)


def _set_standing_poses(quaternions: FloatArray, names: tuple[str, ...], seed: int) -> None:
    """Draw standing poses, in place: arms from hanging to raised, elbows and knees more or less bent."""
    generator = np.random.default_rng(seed)
    for side, sign in (("L", 1.0), ("R", -1.0)):
        for bone, axis, low, high in (
            ("upperarm01", (0.0, 1.0, 0.0), -20.0, 35.0), ("lowerarm01", (0.3, 0.0, 1.0), -70.0, 0.0),
            ("upperleg01", (1.0, 0.0, 0.0), -35.0, 15.0), ("lowerleg01", (1.0, 0.0, 0.0), 0.0, 45.0),
        ):  # fmt: skip
            mirrored = np.array(axis) * (1.0, sign, sign)
            angle = np.deg2rad(generator.uniform(low, high, len(quaternions)))[:, None]
            turned = Rotation.from_rotvec(angle * mirrored / np.linalg.norm(mirrored))
            quaternions[:, names.index(f"{bone}.{side}")] = _to_quaternions(turned.as_matrix())
