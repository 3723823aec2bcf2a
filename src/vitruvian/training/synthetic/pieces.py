"""Pieces: meshes that are bound to the body, what a person consists of and wears.

Every vertex of a piece is bound to three vertices of the body: position = weighted sum + offset x scale. A piece thus
fits every body and moves with it. The body is itself a piece. Letters: n vertices, f triangles, R body vertices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# A person wears at most one piece for each slot.
SLOTS = (
    "body", "lower", "upper", "outer", "shoes", "hair", "brows", "lashes", "teeth", "tongue", "hat", "glasses",
    "accessory", "trinket",
)  # fmt: skip
SLOT = {name: index for index, name in enumerate(SLOTS)}
# Material = slot * MATERIALS_PER_SLOT + part. Body: skin, face, eyes. Shoes: shoe, sock. Glasses: frame, lens.
MATERIALS_PER_SLOT = 3
ANYONE, MEN, WOMEN = 0, 1, 2  # whom a piece suits


@dataclass(frozen=True)
class Piece:
    """One mesh bound to the body, in the body's axes (metres, z up, front is -y)."""

    name: str
    slot: str
    ids: Ints  # [n, 3] body vertices
    weights: Floats  # [n, 3]
    offsets: Floats  # [n, 3] metres
    faces: Ints  # [f, 3]
    uv: Floats  # [f, 3, 2], v upwards
    face_class: Ints  # [f]
    face_part: Ints  # [f] 0 .. MATERIALS_PER_SLOT - 1
    scale_ids: Ints = field(default_factory=lambda: np.zeros((3, 2), np.int64))  # [3, 2] a, b for x, y, z
    scale_base: Floats = field(default_factory=lambda: np.zeros(3, np.float32))  # [3] metres |a - b|; 0: do not scale
    hides: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # body vertices that need not be rendered
    covers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # all body vertices beneath it
    textures: tuple[str, ...] = ()  # names of alternative textures
    suits: int = ANYONE
    style: str = ""  # read by `clothing.py`: "dress", "coat", "shorts", "tight" …


def fit_piece(piece: Piece, body: Floats) -> Floats:
    """Place the vertices of a piece on one body: [R, 3] -> [n, 3]."""
    span = np.diagonal(np.abs(body[piece.scale_ids[:, 0]] - body[piece.scale_ids[:, 1]]))  # [3]
    scale = np.where(piece.scale_base > 0, span / np.maximum(piece.scale_base, 1e-6), 1.0)
    placed = (body[piece.ids] * piece.weights[..., None]).sum(1) + piece.offsets * scale  # [n, 3]
    return np.asarray(placed, np.float32)


def keep_faces(piece: Piece, keep: Bools) -> Piece:
    """Return a piece with the faces in `keep` [f] only, without unused vertices."""
    used, faces = np.unique(piece.faces[keep], return_inverse=True)
    return replace(
        piece, ids=piece.ids[used], weights=piece.weights[used], offsets=piece.offsets[used],
        faces=faces.reshape(-1, 3), uv=piece.uv[keep], face_class=piece.face_class[keep],
        face_part=piece.face_part[keep],
    )  # fmt: skip


def vertex_normals(vertices: Floats, faces: Ints) -> Floats:
    """Return unit normals [n, 3] of a triangle mesh [n, 3], [f, 3], weighted by area; zero where no face touches."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    normals = np.zeros_like(vertices)
    np.add.at(normals, faces, np.cross(b - a, c - a)[:, None])
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12), np.float32)
