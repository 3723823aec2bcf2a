"""Sample people from a pack: shapes, faces, poses and clothes, all in one batch of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from vitruvian.data.synthetic.chance import Chance
from vitruvian.data.synthetic.colours import paint_people
from vitruvian.data.synthetic.dressing import Dressed, choose_outfit, dress
from vitruvian.data.synthetic.people import Body, Pack, PeopleBatch
from vitruvian.data.synthetic.posing import (
    apply_transforms,
    pose_bones,
    pose_keypoints,
    rest_shape,
    sample_expressions,
    sample_poses,
    stature,
    vertex_transforms,
)
from vitruvian.errors import InputError

# Actions that part the lips: whoever does one of them more than a little shows teeth.
LIP_ACTIONS = ("jawOpen", "mouthUpperUpLeft", "mouthUpperUpRight", "mouthLowerDownLeft", "mouthLowerDownRight",
               "mouthFunnel", "tongueOut")  # fmt: skip


def sample_people(
    pack: Pack, count: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> PeopleBatch:
    """Draw `count` random people, posed and dressed, on `device`, where the pack must be too.

    The choices come from `generator`; with one on the CPU the same seed gives the same people on every device.
    """
    if count < 1:
        raise InputError(f"sample_people: expected at least one person, got {count}. Ask for count >= 1.")
    if pack.textures.device.type != torch.device(device).type:
        raise InputError(
            f"sample_people: expected a pack on {device}, got it on {pack.textures.device}. Call pack.to(device) first."
        )
    body, chance = pack.body, Chance(generator, device)
    if chance.bulk is generator:
        chance.seed()  # on another device one number went into seeding `bulk`: draw it here too, to stay in step
    coefficients, traits = sample_identities(body, count, chance)
    expressions = sample_expressions(body.expression_names, count, chance=chance)
    rest, bones = rest_shape(body, coefficients, expressions)
    outfit = choose_outfit(pack, traits, _lips_part(body.expression_names, expressions), chance)
    materials = paint_people(pack, outfit.pieces, traits, chance)
    skeleton = pose_bones(body, bones, sample_poses(pack.poses, body, traits[:, 3], chance=chance))
    transforms = vertex_transforms(body, skeleton)
    dressed = dress(pack, outfit, rest)
    vertices = pose_vertices(dressed, transforms)
    ground = torch.where(dressed.present, vertices[..., 2], torch.inf).amin(1)  # [P]
    lift = torch.stack([torch.zeros_like(ground), torch.zeros_like(ground), -ground], -1)[:, None]  # [P, 1, 3]
    height = stature(rest, body)
    return PeopleBatch(
        vertices=vertices + lift, rest_vertices=dressed.vertices, faces=dressed.faces, face_uv=dressed.face_uv,
        face_class=dressed.face_class, face_material=dressed.face_material, materials=materials,
        keypoints=pose_keypoints(body, skeleton, rest, transforms) + lift, keypoint_known=body.keypoint_known,
        keypoint_depth=height[:, None] * body.keypoint_depth, height=height,
    )  # fmt: skip


def sample_identities(body: Body, count: int, chance: Chance) -> tuple[Tensor, Tensor]:
    """Shape coefficients [P, C] and traits [P, 4]: a known person, drawn some way towards a similar one."""
    first, second = (chance.integers(len(body.identities), count) for _ in range(2))
    a, b = body.traits[first], body.traits[second]
    similar = ((a[:, :2] - b[:, :2]).abs() < torch.tensor([0.3, 0.15], device=a.device)).all(1)
    share = (chance.uniform(0.0, 0.5, count) * similar)[:, None]
    return torch.lerp(body.identities[first], body.identities[second], share), torch.lerp(a, b, share)


def _lips_part(names: tuple[str, ...], expressions: Tensor) -> Tensor:
    """Who opens the mouth enough to show what is inside: [P] bool."""
    columns = [index for index, name in enumerate(names) if name in LIP_ACTIONS]
    return (expressions[:, columns] > 0.04).any(1)


def pose_vertices(dressed: Dressed, transforms: Tensor) -> Tensor:
    """Move rest vertices with the body: transforms [P, R, 3, 4] -> posed vertices [P, V, 3]."""
    person = torch.arange(len(transforms), device=transforms.device)[:, None]
    blended = sum(transforms[person, dressed.ids[..., k]] * dressed.weights[..., k, None, None] for k in range(3))
    return apply_transforms(torch.as_tensor(blended), dressed.vertices)
