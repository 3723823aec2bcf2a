"""A piece: one thing a person is made of or wears, as a mesh that hangs on the body. Used while a pack is built.

Every vertex of a piece is bound to three vertices of the body: position = weighted sum + offset x scale, so a piece
fits every body, and moves with it. The body itself is the piece whose vertices sit on the body's own.
Letters: n vertices, f triangles, R body vertices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.human import label2id

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# What a person can have at once: one piece (or none) for each slot.
SLOTS = (
    "body", "lower", "upper", "outer", "shoes", "hair", "brows", "lashes", "teeth", "tongue", "hat", "glasses",
    "accessory", "trinket",
)  # fmt: skip
SLOT = {name: index for index, name in enumerate(SLOTS)}
# Materials of a slot: material = slot * PARTS + part. Body: skin, face, eyes. Shoes: shoe, sock. Glasses: frame, lens.
PARTS = 3

CLASS = label2id()

# Which people a piece suits.
ANYONE, MEN, WOMEN = 0, 1, 2


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
    face_part: Ints  # [f] 0 .. PARTS - 1
    scale_ids: Ints = field(default_factory=lambda: np.zeros((3, 2), np.int64))  # [3, 2] a, b for x, y, z
    scale_base: Floats = field(default_factory=lambda: np.zeros(3, np.float32))  # [3] metres |a - b|; 0: do not scale
    hides: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # body vertices it covers for certain
    covers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # all body vertices beneath it
    textures: tuple[str, ...] = ()  # names of pictures, one of which dresses the piece
    suits: int = ANYONE
    style: str = ""  # what `dressing.py` goes by, e.g. "dress", "coat", "shorts", "tight"


def fit_piece(piece: Piece, body: Floats) -> Floats:
    """Place the vertices of a piece on one body: [R, 3] -> [n, 3]."""
    span = np.abs(body[piece.scale_ids[:, 0]] - body[piece.scale_ids[:, 1]])  # [3, 3]
    span = np.diagonal(span)  # [3]: the x of the x pair, the y of the y pair, ...
    scale = np.where(piece.scale_base > 0, span / np.maximum(piece.scale_base, 1e-6), 1.0)
    placed = (body[piece.ids] * piece.weights[..., None]).sum(1) + piece.offsets * scale  # [n, 3]
    return np.asarray(placed, np.float32)


def keep_faces(piece: Piece, keep: Bools, **changes: object) -> Piece:
    """Return the part of a piece that has only the faces in `keep` [f], without the vertices nobody uses."""
    used, faces = np.unique(piece.faces[keep], return_inverse=True)
    values = {
        "name": piece.name, "slot": piece.slot, "ids": piece.ids[used], "weights": piece.weights[used],
        "offsets": piece.offsets[used], "faces": faces.reshape(-1, 3), "uv": piece.uv[keep],
        "face_class": piece.face_class[keep], "face_part": piece.face_part[keep], "scale_ids": piece.scale_ids,
        "scale_base": piece.scale_base, "hides": piece.hides, "covers": piece.covers,
        "textures": piece.textures, "suits": piece.suits, "style": piece.style,
    }  # fmt: skip
    return Piece(**{**values, **changes})  # type: ignore[arg-type]


def join_pieces(first: Piece, second: Piece, **changes: object) -> Piece:
    """Join two pieces that scale alike into one."""
    shift = len(first.ids)
    values = {
        "name": first.name, "slot": first.slot, "ids": np.concatenate([first.ids, second.ids]),
        "weights": np.concatenate([first.weights, second.weights]),
        "offsets": np.concatenate([first.offsets, second.offsets]),
        "faces": np.concatenate([first.faces, second.faces + shift]), "uv": np.concatenate([first.uv, second.uv]),
        "face_class": np.concatenate([first.face_class, second.face_class]),
        "face_part": np.concatenate([first.face_part, second.face_part]), "scale_ids": first.scale_ids,
        "scale_base": first.scale_base, "hides": np.union1d(first.hides, second.hides),
        "covers": np.union1d(first.covers, second.covers), "textures": first.textures, "suits": first.suits,
        "style": first.style,
    }  # fmt: skip
    return Piece(**{**values, **changes})  # type: ignore[arg-type]


def vertex_normals(vertices: Floats, faces: Ints) -> Floats:
    """Return unit normals [n, 3] of a triangle mesh, faces weighted by area; zero where no face touches."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    normals = np.zeros_like(vertices)
    cross = np.cross(b - a, c - a)
    for k in range(3):
        np.add.at(normals, faces[:, k], cross)
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12), np.float32)
