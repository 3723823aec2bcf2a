"""Random people: bodies, faces, poses and clothes as one batch of meshes.

    AssetPack ──sample_people──▶ PeopleBatch ──render──▶ images and ground truth

World axes: meters, z up, the ground is z = 0, the hips are at x = y = 0. A person faces -y and has their left at +x:
poses have no heading, the camera alone decides from which side a person is visible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.training.synthetic import posing
from vitruvian.training.synthetic.asset_pack import AssetPack, Body
from vitruvian.training.synthetic.clothing import choose_outfit, dress
from vitruvian.training.synthetic.materials import Materials, sample_materials
from vitruvian.training.synthetic.rng import Rng
from vitruvian.training.tensor_batch import TensorBatch

# Facial actions that part the lips and show teeth.
_LIP_ACTIONS = ("jawOpen", "mouthUpperUpLeft", "mouthUpperUpRight", "mouthLowerDownLeft", "mouthLowerDownRight",
                "mouthFunnel", "tongueOut")  # fmt: skip


@dataclass(frozen=True)
class PeopleBatch(TensorBatch):
    """P posed and dressed people as meshes of V vertices and F triangles. Faces are two-sided and of one part each."""

    vertices: Tensor  # [P, V, 3] float32, posed
    rest_vertices: Tensor  # [P, V, 3] float32, in the rest pose: coordinates for patterns
    faces: Tensor  # [P, F, 3] int64 into V; absent faces are (0, 0, 0)
    face_uv: Tensor  # [P, F, 3, 2] float32, v upwards (v = 1 is the top row of the texture); repeats outside 0..1
    face_class: Tensor  # [P, F] uint8, one of the 29 parts; 0: face is absent
    face_material: Tensor  # [P, F] int64 into M
    materials: Materials
    keypoints: Tensor  # [P, 308, 3] float32, posed
    keypoint_known: Tensor  # [P, 308] bool: False where the body has no rule for that point
    keypoint_depth: Tensor  # [P, 308] meters that a point may lie behind the surface and still count as visible
    stature_m: Tensor  # [P] height in the rest pose

    @property
    def clear(self) -> Tensor:
        """Which faces are transparent, [P, F] bool."""
        return self.materials.clear.gather(1, self.face_material)


def sample_people(pack: AssetPack, count: int, generator: torch.Generator) -> PeopleBatch:
    """Draw `count` random people, posed and dressed, on the device of the pack.

    With a generator on the CPU, the same seed gives the same people on every device.
    """
    if count < 1:
        raise InputError(f"sample_people: expected at least one person, got {count}. Ask for count >= 1.")
    body, rng = pack.body, Rng(generator, pack.textures.device)
    if rng.device_generator is generator:
        rng.seed()  # on another device one number seeds the device's generator: draw it here too
    coefficients, traits = _sample_identities(body, count, rng)
    expressions = posing.sample_expressions(body.expression_names, count, rng=rng)
    rest, bones = posing.rest_shape(body, coefficients, expressions)
    lip_columns = [index for index, name in enumerate(body.expression_names) if name in _LIP_ACTIONS]
    mouth_open = (expressions[:, lip_columns] > 0.04).any(1)
    outfit = choose_outfit(pack, traits, mouth_open, rng)
    materials = sample_materials(pack, outfit.pieces, traits, rng)
    rotations = posing.sample_poses(pack.poses, body, traits[:, 3], rng=rng)
    ends, bone_transforms = posing.pose_bones(body, bones, rotations)
    transforms = posing.blend_transforms(body, bone_transforms)
    dressed = dress(pack, outfit, rest)
    vertices = posing.skin_vertices(dressed.vertices, dressed.ids, dressed.weights, transforms)
    ground = torch.where(dressed.present, vertices[..., 2], torch.inf).amin(1)  # [P]
    lift = F.pad(-ground[:, None, None], (2, 0))  # [P, 1, 3]
    stature_m = posing.stature(rest, body)
    return PeopleBatch(
        vertices=vertices + lift, rest_vertices=dressed.vertices, faces=dressed.faces, face_uv=dressed.face_uv,
        face_class=dressed.face_class, face_material=dressed.face_material, materials=materials,
        keypoints=posing.pose_keypoints(body, ends, rest, transforms) + lift,
        keypoint_known=body.keypoint_known.expand(count, -1),
        keypoint_depth=stature_m[:, None] * body.keypoint_depth, stature_m=stature_m,
    )  # fmt: skip


def _sample_identities(body: Body, count: int, rng: Rng) -> tuple[Tensor, Tensor]:
    """Draw shape coefficients [P, C] and traits [P, 4]: interpolated between a known person and a similar one."""
    first, second = (rng.integers(len(body.identities), count) for _ in range(2))
    a, b = body.traits[first], body.traits[second]
    similar = ((a[:, :2] - b[:, :2]).abs() < torch.tensor([0.3, 0.15], device=a.device)).all(1)
    share = (rng.uniform(0.0, 0.5, count) * similar)[:, None]
    return torch.lerp(body.identities[first], body.identities[second], share), torch.lerp(a, b, share)
