"""Meshes that are bound to the body: what a person consists of and wears. Used while a pack is built.

Every vertex of a piece is bound to three vertices of the body: position = weighted sum + offset x scale. A piece thus
fits every body and moves with it. The body is itself a piece. Letters: n vertices, f triangles, R body vertices.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.human import PART_INDEX

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# A person wears at most one piece for each slot.
SLOTS = (
    "body", "lower", "upper", "outer", "shoes", "hair", "brows", "lashes", "teeth", "tongue", "hat", "glasses",
    "accessory", "trinket",
)  # fmt: skip
SLOT = {name: index for index, name in enumerate(SLOTS)}
# Materials of a slot: material = slot * PARTS + part. Body: skin, face, eyes. Shoes: shoe, sock. Glasses: frame, lens.
PARTS = 3
CLASS = PART_INDEX
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
    face_part: Ints  # [f] 0 .. PARTS - 1
    scale_ids: Ints = field(default_factory=lambda: np.zeros((3, 2), np.int64))  # [3, 2] a, b for x, y, z
    scale_base: Floats = field(default_factory=lambda: np.zeros(3, np.float32))  # [3] metres |a - b|; 0: do not scale
    hides: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # body vertices that need not be drawn
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


def join_pieces(first: Piece, second: Piece) -> Piece:
    """Join two pieces that scale alike; name, slot, scale and style are those of the first."""
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(first, name), getattr(second, name)])
        for name in ("ids", "weights", "offsets", "uv", "face_class", "face_part")
    }
    return replace(
        first, faces=np.concatenate([first.faces, second.faces + len(first.ids)]),
        hides=np.union1d(first.hides, second.hides), covers=np.union1d(first.covers, second.covers), **joined,
    )  # fmt: skip


def split_quads(quads: NDArray[Any]) -> NDArray[Any]:
    """Split quads [q, 4, ...] into triangles [2 q, 3, ...]."""
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])


def vertex_normals(vertices: Floats, faces: Ints) -> Floats:
    """Return unit normals [n, 3] of a triangle mesh, weighted by area; zero where no face touches."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    normals = np.zeros_like(vertices)
    cross = np.cross(b - a, c - a)
    for k in range(3):
        np.add.at(normals, faces[:, k], cross)
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12), np.float32)


def mesh_edges(faces: Ints) -> tuple[Ints, Ints]:
    """Return the unique edges of a triangle mesh [e, 2], and the number of triangles at each [e]."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    return np.unique(np.sort(edges, 1), axis=0, return_counts=True)


def laplacian_smooth(positions: Floats, edges: Ints, rounds: int) -> Floats:
    """Move each vertex [n, c] to the mean of its neighbours, `rounds` times."""
    count = np.bincount(edges.ravel(), minlength=len(positions)).astype(np.float32)[:, None]
    for _ in range(rounds):
        total = np.zeros_like(positions)
        np.add.at(total, edges[:, 0], positions[edges[:, 1]])
        np.add.at(total, edges[:, 1], positions[edges[:, 0]])
        positions = np.where(count > 0, total / np.maximum(count, 1), positions)
    return positions


# ------------------------------------------------------------------------------------------------- cutting meshes
# A new vertex lies inside an old triangle and is bound to its corners. Neighbouring triangles share the vertices on
# their common edge, so that the result has no cracks.


@dataclass(frozen=True)
class CutMesh:
    """A mesh that was cut out of another with n vertices. Its first n vertices are those of the other."""

    ids: Ints  # [m, 3] vertices of the other mesh
    weights: Floats  # [m, 3]
    faces: Ints  # [f, 3]
    uv: Floats  # [f, 3, 2]
    source: Ints  # [f] the face of the other mesh that each comes from


class _MeshBuilder:
    """A mesh under construction."""

    def __init__(self, count: int) -> None:
        self.ids = [(i, i, i) for i in range(count)]
        self.weights = [(1.0, 0.0, 0.0)] * count
        self.vertices: dict[Hashable, int] = {}
        self.faces: list[tuple[int, int, int]] = []
        self.uv: list[list[Floats]] = []
        self.source: list[int] = []

    def vertex(self, key: Hashable, ids: tuple[int, int, int], weights: tuple[float, float, float]) -> int:
        """Return the vertex of a key, created at first use."""
        if key not in self.vertices:
            self.vertices[key] = len(self.ids)
            self.ids.append(ids)
            self.weights.append(weights)
        return self.vertices[key]

    def add(self, corners: list[int], uv: list[Floats], source: int) -> None:
        """Add a polygon as a fan of triangles."""
        for k in range(1, len(corners) - 1):
            self.faces.append((corners[0], corners[k], corners[k + 1]))
            self.uv.append([uv[0], uv[k], uv[k + 1]])
            self.source.append(source)

    def build(self) -> CutMesh:
        return CutMesh(
            np.array(self.ids, np.int64).reshape(-1, 3),
            np.array(self.weights, np.float32).reshape(-1, 3),
            np.array(self.faces, np.int64).reshape(-1, 3),
            np.array(self.uv, np.float32).reshape(-1, 3, 2),
            np.array(self.source, np.int64),
        )


def clip_mesh(faces: Ints, uv: Floats, fields: Floats) -> CutMesh:
    """Keep the part of a mesh where each of `fields` [k, n] (or one field [n]) is positive, cut at zero.

    Fields cut one after the other, so that bands may be narrower than a triangle and corners stay sharp. `faces` is
    [f, 3], `uv` [f, 3, 2].
    """
    fields = np.atleast_2d(fields)
    mesh = _MeshBuilder(fields.shape[1])
    positive = fields > 0
    inside = np.asarray(positive[:, faces].all((0, 2)))  # [f]
    outside = np.asarray((~positive[:, faces]).all(2).any(0))  # [f]
    for index in np.flatnonzero(~outside):
        a, b, c = (int(v) for v in faces[index])
        if inside[index]:
            mesh.add([a, b, c], list(uv[index]), int(index))
            continue
        corners: Floats = np.eye(3)
        for values in fields:
            corners = _clip_polygon(corners, corners @ values[faces[index]])
        points = []
        for weights in corners:
            rounded = np.round(weights * 1e6).astype(np.int64).tolist()
            key = tuple(sorted((v, w) for v, w in zip((a, b, c), rounded, strict=True) if w > 0))
            old = len(key) == 1  # an old vertex
            share = (float(weights[0]), float(weights[1]), float(weights[2]))
            points.append(key[0][0] if old else mesh.vertex(key, (a, b, c), share))
        mesh.add(points, list(corners @ uv[index]), int(index))
    return mesh.build()


def _clip_polygon(corners: Floats, values: Floats) -> Floats:
    """Cut a convex polygon, given by barycentric corners [c, 3], where `values` [c] fall below zero."""
    kept = []
    for k in range(len(corners)):
        after = (k + 1) % len(corners)
        if values[k] > 0:
            kept.append(corners[k])
        if (values[k] > 0) != (values[after] > 0):
            kept.append(corners[k] + (corners[after] - corners[k]) * (values[k] / (values[k] - values[after])))
    return np.array(kept).reshape(-1, 3)


def split_classes(faces: Ints, uv: Floats, scores: Floats, *, fixed: Ints) -> tuple[CutMesh, Ints]:
    """Split triangles so that each holds one class: the best of linearly interpolated `scores` [n, K].

    Triangles with `fixed` [f] >= 0 keep that class and are not split. Also returns the class of each new face: a column
    of `scores`, or the fixed one.
    """
    mesh = _MeshBuilder(len(scores))
    best = scores.argmax(1)
    classes: list[int] = []

    def border(a: int, b: int, uv_a: Floats, uv_b: Floats) -> tuple[int, Floats]:
        """Return the vertex on the edge ab where the class of a ends, and its texture coordinates."""
        at_a, at_b = (float(scores[v, best[a]] - scores[v, best[b]]) for v in (a, b))
        share = float(np.clip(at_a / max(at_a - at_b, 1e-9), 0.02, 0.98))
        return mesh.vertex((min(a, b), max(a, b)), (a, b, a), (1 - share, share, 0.0)), uv_a + (uv_b - uv_a) * share

    for index, face in enumerate(faces):
        a, b, c = (int(v) for v in face)
        uv_a, uv_b, uv_c = uv[index]
        kinds = best[face]
        distinct = len(set(kinds.tolist()))
        if fixed[index] >= 0 or distinct == 1:
            mesh.add([a, b, c], [uv_a, uv_b, uv_c], index)
            classes.append(int(fixed[index] if fixed[index] >= 0 else kinds[0]))
        elif distinct == 2:
            while kinds[1] != kinds[2]:  # rotate until the odd corner comes first
                a, b, c, uv_a, uv_b, uv_c, kinds = b, c, a, uv_b, uv_c, uv_a, np.roll(kinds, -1)
            (ab, uv_ab), (ac, uv_ac) = border(a, b, uv_a, uv_b), border(a, c, uv_a, uv_c)
            mesh.add([a, ab, ac], [uv_a, uv_ab, uv_ac], index)
            mesh.add([ab, b, c, ac], [uv_ab, uv_b, uv_c, uv_ac], index)
            classes += [int(kinds[0]), int(kinds[1]), int(kinds[1])]
        else:
            middle, uv_m = mesh.vertex((a, b, c), (a, b, c), (1 / 3, 1 / 3, 1 / 3)), (uv_a + uv_b + uv_c) / 3
            points = [border(a, b, uv_a, uv_b), border(b, c, uv_b, uv_c), border(c, a, uv_c, uv_a)]
            for k, (corner, uv_corner) in enumerate(((a, uv_a), (b, uv_b), (c, uv_c))):
                (after, uv_after), (before, uv_before) = points[k], points[k - 1]
                mesh.add([corner, after, middle, before], [uv_corner, uv_after, uv_m, uv_before], index)
                classes += [int(kinds[k])] * 2
    return mesh.build(), np.array(classes, np.int64)
