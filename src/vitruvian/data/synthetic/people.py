"""What passes between the two halves of the generator: people that were sampled, and the pack they came from.

    Pack ──sample_people──▶ PeopleBatch ──render──▶ pictures and ground truth

World axes: metres, z up, the ground is z = 0, the hips are at x = y = 0; a person's front looks along -y and their
left is +x (the heading of every pose is taken out, so the camera alone decides from where a person is seen).
Letters: P people, V vertices, F triangles, M materials, T textures.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

TEXTURE_SIZE = 512
KEYPOINTS = 308

# Procedural patterns, evaluated on rest positions (metres), so that they ride on the cloth and never break at a seam.
PATTERN_NONE, PATTERN_STRIPES, PATTERN_CHECKS, PATTERN_DOTS, PATTERN_NOISE, PATTERN_GRADIENT = range(6)


@dataclass(frozen=True)
class Materials:
    """How surfaces look: M materials for each of P people; `PeopleBatch.face_material` picks one for a face.

    Colour of a surface point = texture (or white where `texture` is -1) x colour, all in linear light, where colour is
    `tint`, or a mix of `tint` and `tint2` that the pattern decides at the point's REST position q = (x, y, z), metres.
    With frequency, angle, width, phase = `pattern_param`, c = cos(angle), s = sin(angle), u = x c + z s, v = z c - x s:

    - STRIPES: tint2 where frac(frequency * u + phase) < width
    - CHECKS: tint2 weight is half of [frac(frequency * u + phase) < width] plus half of the same for v
    - DOTS: tint2 inside circles of radius width / 2 on the unit grid of (frequency * u + phase, frequency * v)
    - NOISE: smooth value noise of frequency * q + phase; tint2 weight rises around 1 - width
    - GRADIENT: tint2 weight is the sigmoid of frequency * (z - phase)
    """

    texture: Tensor  # [P, M] int64 into Pack.textures; -1: no texture
    tint: Tensor  # [P, M, 3] float32 >= 0, linear light
    tint2: Tensor  # [P, M, 3] float32 >= 0, second colour of the pattern
    pattern: Tensor  # [P, M] int64, one of PATTERN_*
    pattern_param: Tensor  # [P, M, 4] float32: frequency (1/m), angle (rad), width (0..1), phase
    gloss: Tensor  # [P, M] float32 0 (cloth) .. 1 (wet eye): strength and sharpness of highlights
    cutout: Tensor  # [P, M] bool: the texture's alpha has holes (hair, brows, lashes); otherwise alpha is to be ignored
    clear: Tensor  # [P, M] bool: window glass: what is behind it is seen, and it alone decides about the part


@dataclass(frozen=True)
class PeopleBatch:
    """P posed and dressed people as one mesh layout. Every face is two-sided; class borders run along face edges."""

    vertices: Tensor  # [P, V, 3] float32, posed
    rest_vertices: Tensor  # [P, V, 3] float32, the same points in the rest pose: coordinates for patterns
    faces: Tensor  # [P, F, 3] int64 into V; absent faces are (0, 0, 0)
    face_uv: Tensor  # [P, F, 3, 2] float32, v upwards (v = 1 is the top row of the texture); may leave 0..1, wrap then
    face_class: Tensor  # [P, F] uint8, one of the 29 parts; 0: face is absent
    face_material: Tensor  # [P, F] int64 into M
    materials: Materials
    keypoints: Tensor  # [P, 308, 3] float32, posed
    keypoint_known: Tensor  # [308] bool: False where the body has no rule for that point
    keypoint_depth: Tensor  # [P, 308] metres that a point may lie behind the drawn surface and still count as visible
    height: Tensor  # [P] metres, stature in the rest pose

    def __len__(self) -> int:
        """Number of people P."""
        return self.vertices.shape[0]

    def to(self, device: torch.device | str) -> Self:
        """Return the same people with every tensor on `device`."""
        return _moved(self, device)


@dataclass(frozen=True)
class Body:
    """The body that all people share, and how it differs between them.

    R vertices, B bones, C shape coefficients, I identities, E expressions. A person is a vector of coefficients c: rest
    vertices = mean + basis . c, and so are the heads and tails of their bones. R has, beside the drawn body, the helper
    vertices that garments hang on.
    """

    vertex_mean: Tensor  # [R, 3] float32
    vertex_basis: Tensor  # [C, R, 3]
    normals: Tensor  # [R, 3] of the average adult
    bone_mean: Tensor  # [B, 2, 3]: head, tail
    bone_basis: Tensor  # [C, B, 2, 3]
    bone_names: tuple[str, ...]
    bone_parents: tuple[int, ...]  # -1: root, which comes first; parents come before their children
    weights: Tensor  # [R, B], rows sum to 1
    identities: Tensor  # [I, C]
    traits: Tensor  # [I, 4]: gender (0 male .. 1 female), age (0.33 child, 0.67 young adult, 1 old), muscle, weight
    expression_names: tuple[str, ...]
    expression_vertices: Tensor  # [H] int64: the vertices of the face
    expressions: Tensor  # [E, H, 3]: displacement at full strength
    keypoint_vertices: Tensor  # [308, W] int64
    keypoint_weights: Tensor  # [308, W]; all zero where the point is a bone's end
    keypoint_bone: Tensor  # [308] int64; -1: not a bone's end
    keypoint_end: Tensor  # [308] int64: 0 head, 1 tail
    keypoint_known: Tensor  # [308] bool
    keypoint_depth: Tensor  # [308] as a share of the stature


@dataclass(frozen=True)
class Poses:
    """Recorded poses: rotations relative to the parent bone, in the axes of the rest pose (w, x, y, z)."""

    rotations: Tensor  # [N, J, 4] float32
    bones: Tensor  # [J] int64: the bones that turn; the others follow their parent
    finger_bones: Tensor  # [G] int64
    finger_axes: Tensor  # [G, 3]: a positive turn about it bends the finger


@dataclass(frozen=True)
class Wardrobe:
    """All pieces end to end: A pieces with n vertices and f triangles in all. Piece 0 is the body."""

    names: tuple[str, ...]  # A
    styles: tuple[str, ...]  # A
    slot: Tensor  # [A] int64
    suits: Tensor  # [A] int64: 0 anyone, 1 men, 2 women
    vertex_start: Tensor  # [A] int64
    vertex_count: Tensor  # [A] int64
    face_start: Tensor  # [A] int64
    face_count: Tensor  # [A] int64
    scale_ids: Tensor  # [A, 3, 2] int64: offsets grow along x, y, z with the distance of these body vertices
    scale_base: Tensor  # [A, 3]: that distance where the factor is 1; 0: no scaling
    covers: Tensor  # [A, R] bool: body vertices beneath the piece
    hides: Tensor  # [A, R] bool: those so far beneath that nothing there needs drawing
    textures: Tensor  # [A, K] int64 into Pack.textures; -1: none
    vertex_ids: Tensor  # [n, 3] int64 into R
    vertex_weights: Tensor  # [n, 3]
    vertex_offsets: Tensor  # [n, 3] metres
    vertex_anchor: Tensor  # [n] int64: nearest body vertex, whose normal and cover count for this one
    faces: Tensor  # [f, 3] int64, from 0 in each piece
    face_uv: Tensor  # [f, 3, 2]
    face_class: Tensor  # [f] uint8
    face_part: Tensor  # [f] int64


@dataclass(frozen=True)
class Pack:
    """Everything the generator needs at run time; written and read by `pack.py`.

    For each picture of cloth or hair `textures` also holds a grey twin, so that a tint alone gives it its colour.
    """

    body: Body
    poses: Poses
    wardrobe: Wardrobe
    textures: Tensor  # [T, 512, 512, 4] uint8, sRGB + alpha
    cutout: Tensor  # [T] bool: alpha has holes
    grey_of: Tensor  # [T] int64: the grey twin; -1: none
    fabrics: Tensor  # [Y] int64 into textures: plain cloth, grey
    skins: Tensor  # [S, 2] int64 into textures: of the body, of the face
    skin_traits: Tensor  # [S, 3]: gender (0 male, 1 female), age (0 young .. 1 old), tone (0 light .. 1 dark)
    eyes: Tensor  # [Z] int64 into textures
    eyes_brown: Tensor  # [Z] bool
    environments: Tensor  # [E, 64, 128, 3] float32: light probes, linear, row 0 is straight up (E may be 0)
    backgrounds: Tensor  # [G, S, S, 3] uint8: sRGB pictures without people (G may be 0)

    def to(self, device: torch.device | str) -> Self:
        """Return the same pack with every tensor on `device`."""
        return _moved(self, device)


Record = TypeVar("Record")


def _moved(record: Record, device: torch.device | str) -> Record:
    """Copy a dataclass with its tensors, and those of the dataclasses in it, on `device`."""
    changes: dict[str, Any] = {}
    for field in fields(cast(Any, record)):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = value.to(device)
        elif is_dataclass(value):
            changes[field.name] = _moved(value, device)
    return cast(Record, replace(cast(Any, record), **changes))
