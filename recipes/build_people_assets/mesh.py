"""Triangle meshes: smoothing, and cutting at the zero of a field or at the borders of classes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.images.types import IntArray
from vitruvian.training.synthetic.asset_pack import FloatArray


def split_quads(quads: NDArray[Any]) -> NDArray[Any]:
    """Split quads [q, 4, ...] into triangles [2 q, 3, ...]."""
    return np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])


def mesh_edges(faces: IntArray) -> tuple[IntArray, IntArray]:
    """Return the unique edges of a triangle mesh [e, 2], and the number of triangles at each [e]."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    return np.unique(np.sort(edges, 1), axis=0, return_counts=True)


def laplacian_smooth(positions: FloatArray, edges: IntArray, rounds: int) -> FloatArray:
    """Move each vertex [n, c] to the mean of its neighbors, `rounds` times."""
    count = np.bincount(edges.ravel(), minlength=len(positions)).astype(np.float32)[:, None]
    for _ in range(rounds):
        total = np.zeros_like(positions)
        np.add.at(total, edges[:, 0], positions[edges[:, 1]])
        np.add.at(total, edges[:, 1], positions[edges[:, 0]])
        positions = np.where(count > 0, total / np.maximum(count, 1), positions)
    return positions


# ------------------------------------------------------------------------------------------------- cutting meshes
# A new vertex lies inside an old triangle and is bound to its corners. Neighboring triangles share the vertices on
# their common edge, so that the result has no cracks.


@dataclass(frozen=True)
class CutMesh:
    """A mesh that was cut out of another with n vertices. Its first n vertices are those of the other."""

    ids: IntArray  # [m, 3] vertices of the other mesh
    weights: FloatArray  # [m, 3]
    faces: IntArray  # [f, 3]
    uv: FloatArray  # [f, 3, 2]
    source: IntArray  # [f] the face of the other mesh that each comes from


class _MeshBuilder:
    """A mesh under construction."""

    def __init__(self, count: int) -> None:
        self.ids = [(i, i, i) for i in range(count)]
        self.weights = [(1.0, 0.0, 0.0)] * count
        self.vertices: dict[Hashable, int] = {}
        self.faces: list[tuple[int, int, int]] = []
        self.uv: list[list[FloatArray]] = []
        self.source: list[int] = []

    def vertex(self, key: Hashable, ids: tuple[int, int, int], weights: tuple[float, float, float]) -> int:
        """Return the vertex of a key, created at first use."""
        if key not in self.vertices:
            self.vertices[key] = len(self.ids)
            self.ids.append(ids)
            self.weights.append(weights)
        return self.vertices[key]

    def add(self, corners: list[int], uv: list[FloatArray], source: int) -> None:
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


def clip_mesh(faces: IntArray, uv: FloatArray, fields: FloatArray) -> CutMesh:
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
        corners: FloatArray = np.eye(3)
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


def _clip_polygon(corners: FloatArray, values: FloatArray) -> FloatArray:
    """Cut a convex polygon with barycentric corners [c, 3] where `values` [c] fall below zero."""
    inside = []
    for k in range(len(corners)):
        after = (k + 1) % len(corners)
        if values[k] > 0:
            inside.append(corners[k])
        if (values[k] > 0) != (values[after] > 0):
            inside.append(corners[k] + (corners[after] - corners[k]) * (values[k] / (values[k] - values[after])))
    return np.array(inside).reshape(-1, 3)


def split_classes(faces: IntArray, uv: FloatArray, scores: FloatArray, *, fixed: IntArray) -> tuple[CutMesh, IntArray]:
    """Split triangles so that each holds one class: the best of linearly interpolated `scores` [n, K].

    Triangles with `fixed` [f] >= 0 keep that class and are not split. Also returns the class of each new face: a column
    of `scores`, or the fixed one.
    """
    mesh = _MeshBuilder(len(scores))
    best = scores.argmax(1)
    classes: list[int] = []

    def border(a: int, b: int, uv_a: FloatArray, uv_b: FloatArray) -> tuple[int, FloatArray]:
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
