"""Recorded poses (CMU motion capture, MakeHuman .bvh) -> rotations of the bones of our skeleton. Used to build packs.

A pose is one rotation per bone, relative to its parent, in the axes of the rest pose: bone b turns by
D(b) = D(parent) @ local(b) away from rest, so the identity is the rest pose and no bone frames are needed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.data.synthetic.assets import read_table
from vitruvian.data.synthetic.bodies import BodySource
from vitruvian.data.synthetic.pieces import Bools, Floats, Ints
from vitruvian.errors import InputError

AXES = {"X": 0, "Y": 1, "Z": 2}


def rotation_matrices(degrees: Floats, axis: int) -> Floats:
    """Rotations about one coordinate axis: [...] -> [..., 3, 3]."""
    angle = np.deg2rad(degrees.astype(np.float64))
    c, s = np.cos(angle), np.sin(angle)
    out = np.zeros((*angle.shape, 3, 3))
    i, j = (axis + 1) % 3, (axis + 2) % 3
    out[..., axis, axis] = 1
    out[..., i, i] = out[..., j, j] = c
    out[..., i, j], out[..., j, i] = -s, s
    return out.astype(np.float32)


def to_quaternions(matrices: Floats) -> Floats:
    """Rotation matrices [..., 3, 3] -> unit quaternions [..., 4] (w, x, y, z), w >= 0."""
    m = matrices.astype(np.float64)
    trace = np.trace(m, axis1=-2, axis2=-1)
    diagonal = np.stack([m[..., k, k] for k in range(3)], -1)
    squares = np.concatenate([trace[..., None], 2 * diagonal - trace[..., None]], -1) + 1
    size = np.sqrt(np.maximum(squares, 0)) / 2  # |w|, |x|, |y|, |z|
    pairs = {
        (0, 1): m[..., 2, 1] - m[..., 1, 2], (0, 2): m[..., 0, 2] - m[..., 2, 0], (0, 3): m[..., 1, 0] - m[..., 0, 1],
        (1, 2): m[..., 1, 0] + m[..., 0, 1], (1, 3): m[..., 0, 2] + m[..., 2, 0], (2, 3): m[..., 2, 1] + m[..., 1, 2],
    }  # fmt: skip
    largest = size.argmax(-1)
    out = np.zeros((*m.shape[:-2], 4))
    for k in range(4):
        here = largest == k
        scale = 4 * np.maximum(size[..., k], 1e-6)
        for other in range(4):
            value = size[..., k] if other == k else pairs[(min(k, other), max(k, other))] / scale
            out[..., other] = np.where(here, value, out[..., other])
    out *= np.where(out[..., :1] < 0, -1, 1)
    return np.asarray(out / np.linalg.norm(out, axis=-1, keepdims=True), np.float32)


def to_matrices(quaternions: Floats) -> Floats:
    """Unit quaternions [..., 4] -> rotation matrices [..., 3, 3]."""
    w, x, y, z = np.moveaxis(quaternions, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, -1) for row in rows], -2).astype(np.float32)


def _part_way(start: Floats, end: Floats, share: NDArray[Any] | float) -> Floats:
    """Turn from one rotation towards another by a share of the angle between them."""
    q = to_quaternions(np.swapaxes(start, -1, -2) @ end)
    half = np.arccos(np.clip(q[..., 0], -1, 1)) * share
    axis = q[..., 1:] / np.maximum(np.linalg.norm(q[..., 1:], axis=-1, keepdims=True), 1e-9)
    turned = np.concatenate([np.cos(half)[..., None], np.sin(half)[..., None] * axis], -1)
    return start @ to_matrices(turned.astype(np.float32))


def _swing(rotation: Floats, target: Floats, direction: Floats, share: float) -> Floats:
    """Pre-rotate by a share of the smallest turn that carries rotation @ direction to target @ direction."""
    a, b = rotation @ direction, target @ direction
    cross, dot = np.cross(a, b), np.clip((a * b).sum(-1), -1, 1)
    axis = cross / np.maximum(np.linalg.norm(cross, axis=-1, keepdims=True), 1e-9)
    half = np.arccos(dot) * share / 2
    turn = np.concatenate([np.cos(half)[..., None], np.sin(half)[..., None] * axis], -1)
    return to_matrices(turn.astype(np.float32)) @ rotation


def cmu_turns(table: dict[str, NDArray[Any]], rules: dict[str, Any], names: tuple[str, ...], parents: Ints) -> Floats:
    """Turn of every bone away from rest [N, B, 3, 3] for every recorded pose, by the rules of `cmu_to_anny.json`."""
    axes = np.array(rules["axes_matrix"], np.float32)
    turned: dict[str, Floats] = {}
    raw: list[Floats] = []
    for joint, parent, start in zip(table["joint_names"], table["parents"], table["channel_start"], strict=True):
        first = int(start) + (3 if int(parent) < 0 else 0)
        z, y, x = (table["channels"][:, first + k].astype(np.float32) for k in range(3))
        local = rotation_matrices(z, 2) @ rotation_matrices(y, 1) @ rotation_matrices(x, 0)  # [N, 3, 3]
        raw.append(local if int(parent) < 0 else raw[int(parent)] @ local)
        offset = np.array(rules["offsets"].get(str(joint), np.eye(3)), np.float32)
        turned[str(joint)] = axes @ raw[-1] @ axes.T @ offset
    out = np.zeros((len(table["channels"]), len(names), 3, 3), np.float32)
    for bone, name in enumerate(names):
        rule = rules["bones"].get(name)
        if rule is None:
            out[:, bone] = out[:, parents[bone]]
            continue
        value = turned[rule["joint"]]
        if "blend" in rule:
            value = _part_way(value, turned[rule["blend"]["other"]], rule["blend"]["share"])
        if "swing" in rule:
            of = rule["swing"]["of"]
            value = _swing(
                value, turned[of], np.array(rules["arm_rest_direction"][of], np.float32), rule["swing"]["share"]
            )
        if "clamp" in rule:
            target = turned[rule["clamp"]["to"]]
            between = to_quaternions(np.swapaxes(value, -1, -2) @ target)
            angle = 2 * np.arccos(np.clip(between[..., 0], -1, 1))
            value = _part_way(
                value, target, np.minimum(1, np.deg2rad(rule["clamp"]["max_deg"]) / np.maximum(angle, 1e-6))
            )
        out[:, bone] = value
    return out


def bvh_turns(path: Path, names: tuple[str, ...], parents: Ints) -> Floats:
    """Turn of every bone away from rest [B, 3, 3] in a one-frame .bvh file whose joints are named like our bones."""
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
    turns: list[Floats] = []
    by_name: dict[str, Floats] = {}
    at = 0
    for name, parent, channels in joints:
        local: Floats = np.eye(3, dtype=np.float32)
        for channel in channels:
            if channel.endswith("rotation"):
                local = local @ rotation_matrices(np.array(numbers[at]), AXES[channel[0]])
            at += 1
        turns.append(local if parent < 0 else turns[parent] @ local)
        by_name[name] = turns[-1]
    out = np.zeros((len(names), 3, 3), np.float32)
    for bone, name in enumerate(names):
        out[bone] = by_name[name] if name in by_name else out[parents[bone]]
    return out


def local_quaternions(turns: Floats, parents: Ints) -> Floats:
    """Turns away from rest [N, B, 3, 3] -> rotations relative to the parent [N, B, 4], the root's heading taken out."""
    root = to_quaternions(turns[:, 0])  # [N, 4]
    heading = np.arctan2(root[:, 3], root[:, 0]) * 2
    turns = rotation_matrices(np.rad2deg(-heading), 2)[:, None] @ turns
    above = turns[:, np.maximum(parents, 0)]
    local = np.where((parents < 0)[:, None, None], turns, np.swapaxes(above, -1, -2) @ turns)
    return to_quaternions(local)


def joint_positions(turns: Floats, heads: Floats, parents: Ints) -> Floats:
    """Where the bones' heads go: turns [N, B, 3, 3], rest heads [B, 3] -> [N, B, 3], the root stays at the origin."""
    out = np.zeros((*turns.shape[:2], 3), np.float32)
    for bone in range(1, len(parents)):
        parent = parents[bone]
        out[:, bone] = out[:, parent] + turns[:, parent] @ (heads[bone] - heads[parent])
    return out


def plausible(positions: Floats, names: tuple[str, ...]) -> Bools:
    """Which poses [N, B, 3] keep hands and elbows out of the trunk, the head and the thighs: [N]."""
    at = {name: positions[:, index] for index, name in enumerate(names)}
    trunk, head = (at["root"], at["spine01"]), (at["neck02"], at["head"] + 0.5 * (at["head"] - at["neck02"]))
    good = np.ones(len(positions), bool)
    for side in "LR":
        hand = (at[f"wrist.{side}"] + at[f"finger3-1.{side}"]) / 2
        for point in (hand, at[f"wrist.{side}"], at[f"lowerarm01.{side}"]):
            good &= _distance(point, *trunk) > 0.145
        good &= _distance(hand, *head) > 0.11
        for other in "LR":
            thigh = (at[f"upperleg01.{other}"], at[f"lowerleg01.{other}"])
            good &= _distance(hand, *thigh) > 0.10
        good &= _distance(at[f"lowerleg01.{side}"], *trunk) > 0.16
    return good & (_distance(at["lowerleg01.L"], at["upperleg01.R"], at["lowerleg01.R"]) > 0.09)


def _distance(point: Floats, start: Floats, end: Floats) -> Floats:
    """Distance of points to line segments, all [N, 3]: [N]."""
    along = end - start
    share = np.clip(((point - start) * along).sum(-1) / np.maximum((along**2).sum(-1), 1e-9), 0, 1)
    return np.asarray(np.linalg.norm(point - start - share[:, None] * along, axis=-1))


def spread_out(features: Floats, count: int, seed: int) -> Ints:
    """Choose `count` rows of [N, D]: half of them farthest from all chosen before, half at random (everyday poses)."""
    count = min(count, len(features))
    generator = np.random.default_rng(seed)
    chosen = [int(generator.integers(len(features)))]
    distance = ((features - features[chosen[0]]) ** 2).sum(1)
    while len(chosen) < (count + 1) // 2:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((features - features[chosen[-1]]) ** 2).sum(1))
    rest = np.setdiff1d(np.arange(len(features)), chosen)
    return np.sort(np.concatenate([chosen, generator.permutation(rest)[: count - len(chosen)]]))


def recorded_poses(source: BodySource, folder: Path | None, count: int, seed: int) -> tuple[Floats, Ints, Ints, Floats]:
    """Rotations [N, J, 4] of the bones that turn [J]; finger bones [G] and the axes they bend about [G, 3]."""
    names, parents = source.bone_names, source.bone_parents
    fingers = [
        names.index(f"finger{finger}-{joint}.{side}") for side in "LR" for finger in range(1, 6) for joint in (1, 2, 3)
    ]
    if folder is None:
        axes = _bending_axes(source, fingers)
        still = np.zeros((1, len(names), 4), np.float32)
        still[..., 0] = 1
        quaternions = np.repeat(still, min(count, 256), 0)
        _hang_arms(quaternions, names, seed)
    else:
        rules = json.loads((folder / "poses" / "cmu_to_anny.json").read_text())
        turns = cmu_turns(read_table(folder / "poses" / "cmu.npz"), rules, names, parents)
        places = joint_positions(turns, source.template_bones[:, 0], parents)
        good = np.flatnonzero(plausible(places, names))
        local = local_quaternions(turns[good], parents)
        rooted = joint_positions(_turns_of(local, parents), source.template_bones[:, 0], parents)
        joints = [i for i, name in enumerate(names) if not name.startswith(("toe", "finger"))]
        chosen = _everyday(rooted, names, joints, count, seed)
        extra = np.stack(
            [bvh_turns(path, names, parents) for path in sorted((folder / "poses" / "makehuman").glob("*.bvh"))]
        )
        quaternions = np.concatenate([local[chosen], local_quaternions(extra, parents)])
        axes = np.array([rules["finger_flexion_axis"][names[bone]] for bone in fingers], np.float32)
        quaternions[: len(chosen), fingers] = [1, 0, 0, 0]  # the recordings have none
    turning = np.flatnonzero(np.abs(quaternions[..., 1:]).max((0, 2)) > 1e-3)
    return quaternions[:, turning], turning, np.array(fingers), axes


def _everyday(places: Floats, names: tuple[str, ...], joints: list[int], count: int, seed: int) -> Ints:
    """Choose poses: nine in ten upright, since that is how people are photographed, the rest in any posture."""
    up = places[:, names.index("spine01")] - places[:, 0]
    upright = up[:, 2] > 0.8 * np.linalg.norm(up, axis=1)
    features = places[:, joints].reshape(len(places), -1)
    groups = [(np.flatnonzero(upright), round(0.9 * count)), (np.flatnonzero(~upright), count - round(0.9 * count))]
    return np.concatenate(
        [rows[spread_out(features[rows], share, seed)] for rows, share in groups if len(rows) and share]
    )


def _turns_of(local: Floats, parents: Ints) -> Floats:
    turns = to_matrices(local)
    for bone in range(1, len(parents)):
        turns[:, bone] = turns[:, parents[bone]] @ turns[:, bone]
    return turns


def _bending_axes(source: BodySource, fingers: list[int]) -> Floats:
    """Axes that fingers bend about: square to the finger and to the palm."""
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


def _hang_arms(quaternions: Floats, names: tuple[str, ...], seed: int) -> None:
    """Make up standing poses: arms from hanging to raised, elbows and knees more or less bent. Changes its argument."""
    generator = np.random.default_rng(seed)
    for side, sign in (("L", 1.0), ("R", -1.0)):
        for bone, axis, low, high in (
            ("upperarm01", (0.0, 1.0, 0.0), -20.0, 35.0), ("lowerarm01", (0.3, 0.0, 1.0), -70.0, 0.0),
            ("upperleg01", (1.0, 0.0, 0.0), -35.0, 15.0), ("lowerleg01", (1.0, 0.0, 0.0), 0.0, 45.0),
        ):  # fmt: skip
            mirrored = np.array(axis) * (1.0, sign, sign)
            half = np.deg2rad(generator.uniform(low, high, len(quaternions))) / 2
            direction = mirrored / np.linalg.norm(mirrored)
            quaternions[:, names.index(f"{bone}.{side}")] = np.column_stack(
                [np.cos(half), np.sin(half)[:, None] * direction]
            )
