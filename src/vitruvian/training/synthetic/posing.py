"""Poses and expressions: random rotations of the bones, random faces, and the skeleton and skin that follow them.

A pose is one rotation per bone relative to its parent, in the axes of the rest pose: R(bone) = R(parent) @ local(bone).
P people, B bones, R body vertices, E expressions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitruvian.human import GROUPS, KEYPOINT_INDEX
from vitruvian.images.types import IntArray
from vitruvian.training.synthetic.asset_pack import NUM_KEYPOINTS, Arrays, Body, FloatArray, Poses
from vitruvian.training.synthetic.rng import Rng


def _quaternion_matrices(quaternions: Tensor) -> Tensor:
    """Unit quaternions (w, x, y, z) [..., 4] -> rotation matrices [..., 3, 3]."""
    w, x, y, z = quaternions.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.unflatten(torch.stack(rows, -1), -1, (3, 3))  # [..., 3, 3]


def _axis_quaternions(axes: Tensor, angles: Tensor) -> Tensor:
    """Rotation by `angles` [...] (radians) about unit `axes` [..., 3] -> [..., 4]."""
    half = angles[..., None] / 2
    return torch.cat([half.cos(), half.sin() * axes], -1)  # [..., 4]


def _quaternion_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply quaternions, [..., 4]: rotate by b, then by a."""
    aw, av, bw, bv = a[..., :1], a[..., 1:], b[..., :1], b[..., 1:]
    real = aw * bw - (av * bv).sum(-1, keepdim=True)
    return torch.cat([real, aw * bv + bw * av + torch.linalg.cross(av, bv)], -1)  # [..., 4]


def _identity_rotations(count: int, bones: int, device: torch.device) -> Tensor:
    """Return quaternions of no rotation, [P, B, 4]."""
    return torch.tensor([1.0, 0.0, 0.0, 0.0], device=device).repeat(count, bones, 1)


def _mirror_bones(names: tuple[str, ...]) -> list[int]:
    """Return for each bone the one on the other side of the body (itself on the midline)."""
    index = {name: i for i, name in enumerate(names)}
    swap = {"L": "R", "R": "L"}
    return [index[f"{name[:-1]}{swap[name[-1]]}"] if name[-2:] in (".L", ".R") else index[name] for name in names]


def sample_poses(poses: Poses, body: Body, stoutness: Tensor, *, rng: Rng) -> Tensor:
    """Draw local rotations [P, B, 4]: a recorded pose, maybe mirrored, mixed or seated, with small random changes.

    `stoutness` [P] in 0..1 (0.5 is average): stout people hold their arms further out.
    """
    count = len(stoutness)
    names = body.bone_names
    local = _identity_rotations(count, len(names), poses.rotations.device)
    if len(poses.rotations):
        first, second = (poses.rotations[rng.integers(len(poses.rotations), count)] for _ in range(2))  # [P, J, 4]
        arms = [any(word in names[b] for word in _ARM_WORDS) for b in poses.bones.tolist()]
        mixed = rng.bernoulli(0.25, count, 1, 1) & torch.tensor(arms, device=first.device)[None, :, None]
        local[:, poses.bones] = torch.where(mixed, second, first)
    local = torch.where(rng.bernoulli(0.12, count, 1, 1), _seated(local, names, rng), local)
    local = _quaternion_product(_arms_out(names, stoutness), _quaternion_product(local, _jitter(names, count, rng)))
    local = _quaternion_product(local, _fingers(poses, len(names), count, rng))
    mirrored = local[:, _mirror_bones(names)] * torch.tensor([1.0, 1.0, -1.0, -1.0], device=local.device)
    local = torch.where(rng.bernoulli(0.5, count, 1, 1), mirrored, local)
    return torch.nn.functional.normalize(local, dim=-1)


_ARM_WORDS = ("clavicle", "shoulder", "upperarm", "lowerarm", "wrist", "finger")


def _seated(local: Tensor, names: tuple[str, ...], rng: Rng) -> Tensor:
    """Return sitting poses: upright hips, thighs forward, shins down, each leg independent. [P, B, 4]."""
    P = len(local)
    out = local.clone()
    index = {name: i for i, name in enumerate(names)}

    def rotation(axis: tuple[float, float, float], degrees: Tensor) -> Tensor:
        axes = torch.tensor(axis, device=local.device).expand(P, 3)
        return _axis_quaternions(axes, torch.deg2rad(degrees))

    lean = rng.normal(0.0, 8.0, P)
    for side, sign in (("L", 1.0), ("R", -1.0)):
        hip, knee, foot = (index.get(f"{bone}.{side}") for bone in ("upperleg01", "lowerleg01", "foot"))
        if hip is None or knee is None:
            continue
        forward, apart = rng.normal(-82.0, 9.0, P), rng.normal(2.0, 8.0, P).clamp(-12, 25)
        bend = rng.normal(82.0, 18.0, P).clamp(20, 125)
        out[:, hip] = _quaternion_product(
            rotation((0.0, 0.0, 1.0), sign * apart), rotation((1.0, 0.0, 0.0), forward - lean)
        )
        out[:, knee] = rotation((1.0, 0.0, 0.0), bend)
        for bone in (f"pelvis.{side}", f"upperleg02.{side}", f"lowerleg02.{side}"):
            if bone in index:
                out[:, index[bone]] = torch.tensor([1.0, 0.0, 0.0, 0.0], device=local.device)
        if foot is not None:
            out[:, foot] = rotation((1.0, 0.0, 0.0), rng.normal(0.0, 8.0, P))
    out[:, 0] = rotation((1.0, 0.0, 0.0), lean)
    return out


def _arms_out(names: tuple[str, ...], stoutness: Tensor) -> Tensor:
    """Return rotations [P, B, 4] that lift the upper arms sideways, by up to 16 degrees."""
    out = _identity_rotations(len(stoutness), len(names), stoutness.device)
    angle = torch.deg2rad((stoutness - 0.5).clamp_min(0) * 32)
    for name, sign in (("upperarm01.L", -1.0), ("upperarm01.R", 1.0)):
        if name in names:
            axes = torch.tensor([0.0, 1.0, 0.0], device=angle.device).expand(len(angle), 3)
            out[:, names.index(name)] = _axis_quaternions(axes, sign * angle)
    return out


# Degrees of random rotation for bones whose names start so.
_JITTER = (("head", 9.0), ("neck", 4.0), ("spine", 2.5), ("upperarm01", 7.0), ("lowerarm01", 6.0), ("wrist", 9.0),
           ("upperleg01", 3.0), ("lowerleg01", 3.0), ("foot", 3.0), ("clavicle", 2.0), ("root", 2.0))  # fmt: skip


def _jitter(names: tuple[str, ...], count: int, rng: Rng) -> Tensor:
    """Draw small rotations about random axes [P, B, 4]."""
    degrees_of = [next((degrees for word, degrees in _JITTER if name.startswith(word)), 0.0) for name in names]
    size = torch.tensor(degrees_of, device=rng.device).deg2rad()
    vector = rng.normal(0.0, 0.6, count, len(names), 3) * size[:, None]  # [P, B, 3]
    angle = vector.norm(dim=-1)
    return _axis_quaternions(vector / angle[..., None].clamp_min(1e-9), angle)


def _fingers(poses: Poses, bones: int, count: int, rng: Rng) -> Tensor:
    """Draw bent fingers [P, B, 4]: each hand between open and a fist, with small changes for each finger."""
    out = _identity_rotations(count, bones, rng.device)
    G = len(poses.finger_bones)
    # Bones come hand by hand, thumb to little finger, three joints each; relaxed hands are the most frequent.
    hands = G // 15
    curl = rng.uniform(0.0, 1.0, count, hands, 1, 1) ** 1.7 * 75  # [P, hands, 1, 1] degrees
    finger, joint = rng.normal(0.0, 9.0, count, hands, 5, 1), rng.normal(0.0, 5.0, count, hands, 5, 3)
    pointing = rng.bernoulli(0.12, count, hands, 5, 1) * -45.0
    angles = (curl + finger + joint + pointing).clamp(-8, 88)  # [P, hands, 5, 3]
    angles[:, :, 0] *= 0.45  # a thumb bends less
    out[:, poses.finger_bones] = _axis_quaternions(poses.finger_axes.expand(count, G, 3), angles.flatten(1).deg2rad())
    return out


def sample_expressions(names: tuple[str, ...], count: int, *, rng: Rng) -> Tensor:
    """Draw strengths of facial actions [P, E] in 0..1: neutral, smile, talk, laugh or random faces, and gaze."""
    index = {name: i for i, name in enumerate(names)}
    out = torch.zeros(count, len(names), device=rng.device)
    if not names:
        return out

    def add(actions: tuple[str, ...], strength: Tensor) -> None:
        for action in actions:
            if action in index:
                out[:, index[action]] += strength * rng.uniform(0.85, 1.0, count)

    kind = rng.categorical((0.22, 0.26, 0.27, 0.08, 0.17), count)  # neutral, smile, open mouth, random, laugh
    laugh = (kind == 4) * rng.uniform(0.6, 1.0, count)
    smile = (kind == 1) * rng.uniform(0.2, 1.0, count) + laugh
    add(("mouthSmileLeft", "mouthSmileRight"), smile)
    add(("cheekSquintLeft", "cheekSquintRight"), smile * rng.uniform(0.0, 0.7, count))
    grin = smile * (rng.bernoulli(0.75, count) | (kind == 4))
    add(("mouthUpperUpLeft", "mouthUpperUpRight"), grin * rng.uniform(0.3, 1.0, count))
    add(("mouthLowerDownLeft", "mouthLowerDownRight"), grin * rng.uniform(0.0, 0.8, count))
    add(("jawOpen",), grin * rng.uniform(0.0, 0.25, count) + laugh * rng.uniform(0.1, 0.5, count))
    talk = (kind == 2) * 1.0
    add(("jawOpen",), talk * rng.uniform(0.08, 0.85, count))
    add(("mouthFunnel",), talk * rng.uniform(-0.6, 0.6, count).clamp_min(0))
    add(("mouthLowerDownLeft", "mouthLowerDownRight"), talk * rng.uniform(-0.4, 0.7, count).clamp_min(0))
    add(("mouthUpperUpLeft", "mouthUpperUpRight"), talk * rng.uniform(-0.4, 0.7, count).clamp_min(0))
    add(("tongueOut",), talk * rng.bernoulli(0.25, count) * rng.uniform(0.2, 1.0, count))
    odd = (kind == 3)[:, None] * rng.bernoulli(0.12, count, len(names)) * rng.uniform(0.1, 0.7, count, len(names))
    odd[:, [index[name] for name in ("mouthClose", "tongueOut") if name in index]] = 0.0  # they need an open jaw
    out += odd
    add(("browInnerUp",), rng.uniform(-0.6, 0.6, count).clamp_min(0))
    add(("browDownLeft", "browDownRight"), rng.uniform(-0.7, 0.6, count).clamp_min(0))
    add(("browOuterUpLeft", "browOuterUpRight"), rng.uniform(-0.7, 0.5, count).clamp_min(0))
    add(("eyeBlinkLeft", "eyeBlinkRight"), torch.where(rng.bernoulli(0.08, count), 1.0, rng.uniform(0.0, 0.3, count)))
    across, down = rng.uniform(-1.0, 1.0, count), rng.uniform(-1.0, 1.0, count)
    add(("eyeLookInLeft", "eyeLookOutRight"), 0.6 * across.clamp_min(0) ** 2)
    add(("eyeLookOutLeft", "eyeLookInRight"), 0.6 * (-across).clamp_min(0) ** 2)
    add(("eyeLookDownLeft", "eyeLookDownRight"), 0.5 * down.clamp_min(0) ** 2)
    add(("eyeLookUpLeft", "eyeLookUpRight"), 0.5 * (-down).clamp_min(0) ** 2)
    return out.clamp(0, 1)


def rest_shape(body: Body, coefficients: Tensor, expressions: Tensor) -> tuple[Tensor, Tensor]:
    """People at rest: coefficients [P, C], expressions [P, E] -> vertices [P, R, 3], bone ends [P, B, 2, 3]."""
    vertices = torch.addmm(body.vertex_mean.flatten(), coefficients, body.vertex_basis.flatten(1))  # [P, R * 3]
    vertices = torch.unflatten(vertices, 1, (-1, 3))  # [P, R, 3]
    bones = torch.addmm(body.bone_mean.flatten(), coefficients, body.bone_basis.flatten(1))  # [P, B * 6]
    if len(body.expression_vertices):
        moved = expressions @ body.expressions.flatten(1)  # [P, H * 3]
        # Expressions were measured on the average adult: smaller heads move less.
        size = stature(vertices, body)[:, None, None] / stature(body.vertex_mean[None], body)
        vertices[:, body.expression_vertices] += torch.unflatten(moved, 1, (-1, 3)) * size.clamp(max=1.0)
    return vertices, torch.unflatten(bones, 1, (-1, 2, 3))  # [P, B, 2, 3]


def stature(vertices: Tensor, body: Body) -> Tensor:
    """Height from sole to crown [P], from rest vertices [P, R, 3] (helpers lie within that span, or do not matter)."""
    visible = vertices[:, body.normals.abs().sum(-1) > 0, 2]  # helpers have no normal
    return visible.amax(1) - visible.amin(1)


def pose_bones(body: Body, bones: Tensor, local: Tensor) -> tuple[Tensor, Tensor]:
    """Pose the bones, the root at the origin: rest ends [P, B, 2, 3] and local rotations [P, B, 4].

    Returns the posed ends [P, B, 2, 3] and the transforms from rest to posed points [P, B, 3, 4].
    """
    matrices = _quaternion_matrices(local)  # [P, B, 3, 3]
    rest = bones[:, :, 0]  # [P, B, 3]
    rotations, heads = torch.empty_like(matrices), torch.zeros_like(rest)
    rotations[:, 0] = matrices[:, 0]
    for children, parents in _bone_levels(body.bone_parents):
        rotations[:, children] = rotations[:, parents] @ matrices[:, children]
        reach = (rest[:, children] - rest[:, parents])[..., None]  # [P, c, 3, 1]
        heads[:, children] = heads[:, parents] + (rotations[:, parents] @ reach)[..., 0]
    tails = heads + (rotations @ (bones[:, :, 1] - rest)[..., None])[..., 0]  # [P, B, 3]
    shift = heads - (rotations @ rest[..., None])[..., 0]  # [P, B, 3]
    return torch.stack([heads, tails], 2), torch.cat([rotations, shift[..., None]], -1)


def _bone_levels(parents: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Return the bones level by level below the root, each with its parents."""
    depth = [0] * len(parents)
    for bone in range(1, len(parents)):
        depth[bone] = depth[parents[bone]] + 1
    levels = [[b for b, level in enumerate(depth) if level == wanted] for wanted in range(1, max(depth) + 1)]
    return [(children, [parents[b] for b in children]) for children in levels]


def blend_transforms(body: Body, transforms: Tensor) -> Tensor:
    """Linear blend skinning: mix the bones' transforms [P, B, 3, 4] for every body vertex, [P, R, 3, 4]."""
    blended = torch.einsum("rb,pbk->prk", body.weights, transforms.flatten(2))  # [P, R, 12]
    return torch.unflatten(blended, -1, (3, 4))  # [P, R, 3, 4]


def pose_keypoints(body: Body, ends: Tensor, vertices: Tensor, transforms: Tensor) -> Tensor:
    """Pose the 308 keypoints: posed bone ends, rest vertices [P, R, 3] and their transforms -> [P, 308, 3]."""
    ids = body.keypoint_vertices
    moved = _apply_transforms(transforms[:, ids.flatten()], vertices[:, ids.flatten()])  # [P, 308 * W, 3]
    surface = (torch.unflatten(moved, 1, ids.shape) * body.keypoint_weights[..., None]).sum(2)  # [P, 308, 3]
    joints = ends[:, body.keypoint_bone.clamp_min(0), body.keypoint_end]  # [P, 308, 3]
    return torch.where((body.keypoint_bone >= 0)[None, :, None], joints, surface)


def skin_vertices(vertices: Tensor, ids: Tensor, weights: Tensor, transforms: Tensor) -> Tensor:
    """Move vertices [P, V, 3] with the body vertices that they are bound to.

    `ids` and `weights` [P, V, 3] are their bindings, `transforms` [P, R, 3, 4] those of the body vertices.
    """
    person = torch.arange(len(transforms), device=transforms.device)[:, None]
    blended = torch.zeros(*weights.shape[:2], 3, 4, device=transforms.device)
    for k in range(3):
        blended += transforms[person, ids[..., k]] * weights[..., k, None, None]
    return _apply_transforms(blended, vertices)


def _apply_transforms(transforms: Tensor, points: Tensor) -> Tensor:
    """Move points [..., 3] by [..., 3, 4]."""
    return (transforms[..., :3] @ points[..., None])[..., 0] + transforms[..., 3]  # [..., 3]


_FINGERS = ("thumb", "forefinger", "middle_finger", "ring_finger", "pinky_finger")


def keypoint_rules(
    template: FloatArray, bones: FloatArray, names: tuple[str, ...], table: Arrays | None, *, surface: int
) -> Arrays:
    """Return the `keypoint_` fields of `Body`, from a table or, without one, for those that are joints.

    `template` is [N, 3], of which the first `surface` vertices are skin; `bones` [B, 2, 3] with their `names`.
    """
    index = {name: i for i, name in enumerate(names)}
    if table is not None:
        kind = table["kind"].astype(np.int64)
        on_skin = kind == 1
        vertices = np.where(on_skin[:, None], table["vertex_ids"].astype(np.int64), 0)
        weights = np.where(on_skin[:, None], table["vertex_weights"], 0).astype(np.float32)
        bone = np.array([index[name] if k >= 2 else -1 for name, k in zip(table["bone"], kind, strict=True)])
        end, known = (kind == 3).astype(np.int64), kind > 0
    else:
        bone, end = _joint_keypoints(index)
        vertices, weights, known = np.zeros((len(bone), 1), np.int64), np.zeros((len(bone), 1), np.float32), bone >= 0
    point = (template[vertices] * weights[..., None]).sum(1)
    point = np.where((bone >= 0)[:, None], bones[np.maximum(bone, 0), end], point)
    body = template[:surface]
    inside = np.array([np.linalg.norm(body - p, axis=1).min() for p in point])
    margin = np.full(len(bone), 0.03)  # clothes over the body do not hide a joint
    margin[[*GROUPS["face"], *GROUPS["irises"], *GROUPS["ears"]]] = 0.007
    margin[[*GROUPS["left_hand"], *GROUPS["right_hand"]]] = 0.012
    stature = float(body[:, 2].max() - body[:, 2].min())
    return {
        "keypoint_vertices": vertices, "keypoint_weights": weights, "keypoint_bone": bone, "keypoint_end": end,
        "keypoint_known": known, "keypoint_depth": (1.35 * inside + margin) / stature,
    }  # fmt: skip


def _joint_keypoints(index: dict[str, int]) -> tuple[IntArray, IntArray]:
    """Return the keypoints at the ends of bones: bone [308] (-1: none) and end [308]."""
    bone, end = np.full(NUM_KEYPOINTS, -1, np.int64), np.zeros(NUM_KEYPOINTS, np.int64)

    def put(name: str, on: str, tail: int = 0) -> None:
        if on in index:
            bone[KEYPOINT_INDEX[name]], end[KEYPOINT_INDEX[name]] = index[on], tail

    put("neck", "neck01")
    for word, side in (("left", "L"), ("right", "R")):
        joints = {"shoulder": "upperarm01", "elbow": "lowerarm01", "wrist": "wrist", "hip": "upperleg01",
                  "knee": "lowerleg01", "ankle": "foot"}  # fmt: skip
        for name, on in joints.items():
            put(f"{word}_{name}", f"{on}.{side}")
        put(f"{word}_big_toe", f"toe1-2.{side}", 1)
        for number, finger in enumerate(_FINGERS, 1):
            for joint, suffix in ((1, "_third_joint"), (2, "2"), (3, "3")):
                put(f"{word}_{finger}{suffix}", f"finger{number}-{joint}.{side}")
            put(f"{word}_{finger}4", f"finger{number}-3.{side}", 1)
    return bone, end
