"""Cut triangle meshes along lines that do not follow their edges: hems, necklines, borders between body parts.

A vertex made by a cut lies on an old edge, so it is bound to the two ends of that edge and moves with the body.
Neighbouring triangles cut their common edge at the same place: the result has no cracks.
"""

from __future__ import annotations

import numpy as np

from vitruvian.data.synthetic.pieces import Bools, Floats, Ints


class _Mesh:
    """Triangles under construction: vertices are (three old vertices, three weights), new ones shared by edge."""

    def __init__(self, count: int) -> None:
        self.ids = [(i, i, i) for i in range(count)]
        self.weights = [(1.0, 0.0, 0.0)] * count
        self.on_edge: dict[tuple[int, int], int] = {}
        self.faces: list[tuple[int, int, int]] = []
        self.uv: list[list[Floats]] = []
        self.source: list[int] = []

    def edge_vertex(self, a: int, b: int, share: float) -> int:
        """The vertex at `share` of the way from a to b, made once."""
        key = (min(a, b), max(a, b))
        if key not in self.on_edge:
            self.on_edge[key] = len(self.ids)
            self.ids.append((a, b, a))
            self.weights.append((1.0 - share, share, 0.0))
        return self.on_edge[key]

    def middle_vertex(self, a: int, b: int, c: int) -> int:
        """A new vertex in the middle of a triangle."""
        self.ids.append((a, b, c))
        self.weights.append((1 / 3, 1 / 3, 1 / 3))
        return len(self.ids) - 1

    def add(self, corners: list[int], uv: list[Floats], source: int) -> None:
        """Add a polygon as a fan of triangles."""
        for k in range(1, len(corners) - 1):
            self.faces.append((corners[0], corners[k], corners[k + 1]))
            self.uv.append([uv[0], uv[k], uv[k + 1]])
            self.source.append(source)


def cut_along(faces: Ints, uv: Floats, fields: Floats) -> tuple[Ints, Floats, Ints, Floats, Ints]:
    """Keep the part of a mesh where each of `fields` [k, n] (or one field [n]) is positive, with clean borders at zero.

    Several fields cut one after the other, so bands may be narrower than a triangle and corners stay sharp. `faces` is
    [f, 3], `uv` [f, 3, 2]. Returns the new vertices as `ids` [m, 3] and `weights` [m, 3] over the old ones (the first n
    are the old ones themselves), and the new `faces`, `uv` and the old face that each comes from.
    """
    fields = np.atleast_2d(fields)
    mesh = _Mesh(fields.shape[1])
    made: dict[tuple[tuple[int, int], ...], int] = {}
    positive: Bools = fields > 0
    inside: Bools = np.asarray(positive[:, faces].all((0, 2)))  # [f]
    outside: Bools = np.asarray((~positive[:, faces]).all(2).any(0))  # [f]
    for index in np.flatnonzero(~outside):
        triangle = faces[index]
        if inside[index]:
            mesh.add([int(v) for v in triangle], list(uv[index]), int(index))
            continue
        corners: Floats = np.eye(3)
        for field in fields:
            corners = _clipped(corners, corners @ field[triangle])
        points = [_shared_vertex(mesh, made, triangle, corner) for corner in corners]
        mesh.add(points, list(corners @ uv[index]), int(index))
    return _finished(mesh)


def _clipped(corners: Floats, values: Floats) -> Floats:
    """Cut a convex polygon, given by the weights of its corners [c, 3], where `values` [c] fall below zero."""
    kept = []
    for k in range(len(corners)):
        after = (k + 1) % len(corners)
        if values[k] > 0:
            kept.append(corners[k])
        if (values[k] > 0) != (values[after] > 0):
            share = values[k] / (values[k] - values[after])
            kept.append(corners[k] + (corners[after] - corners[k]) * share)
    return np.array(kept).reshape(-1, 3)


def _shared_vertex(mesh: _Mesh, made: dict[tuple[tuple[int, int], ...], int], triangle: Ints, weights: Floats) -> int:
    """The vertex at these weights of a triangle; made once, also for the neighbour across an edge."""
    rounded = np.round(weights * 1e6).astype(np.int64)
    key = tuple(sorted((int(v), int(w)) for v, w in zip(triangle, rounded, strict=True) if w > 0))
    if len(key) == 1:
        return key[0][0]
    if key not in made:
        made[key] = len(mesh.ids)
        mesh.ids.append((int(triangle[0]), int(triangle[1]), int(triangle[2])))
        mesh.weights.append((float(weights[0]), float(weights[1]), float(weights[2])))
    return made[key]


def cut_between(
    faces: Ints, uv: Floats, scores: Floats, *, fixed: Ints
) -> tuple[Ints, Floats, Ints, Floats, Ints, Ints]:
    """Split triangles so that each holds one class: the best of linearly interpolated `scores` [n, K].

    Triangles with `fixed` [f] >= 0 keep that class and are not split. Returns what `cut_along` does, then the class
    (a column of `scores`, or the fixed one) of each new face.
    """
    mesh = _Mesh(len(scores))
    best = scores.argmax(1)
    classes: list[int] = []
    for index, face in enumerate(faces):
        a, b, c = (int(v) for v in face)
        uv_a, uv_b, uv_c = uv[index]
        kinds = best[face]
        if fixed[index] >= 0 or len(set(kinds.tolist())) == 1:
            mesh.add([a, b, c], [uv_a, uv_b, uv_c], index)
            classes.append(int(fixed[index] if fixed[index] >= 0 else kinds[0]))
        elif len(set(kinds.tolist())) == 2:
            while kinds[1] != kinds[2]:  # turn the triangle until its odd corner comes first
                a, b, c, uv_a, uv_b, uv_c, kinds = b, c, a, uv_b, uv_c, uv_a, np.roll(kinds, -1)
            (ab, share_b), (ac, share_c) = _border(mesh, scores, best, a, b), _border(mesh, scores, best, a, c)
            uv_ab, uv_ac = uv_a + (uv_b - uv_a) * share_b, uv_a + (uv_c - uv_a) * share_c
            mesh.add([a, ab, ac], [uv_a, uv_ab, uv_ac], index)
            mesh.add([ab, b, c, ac], [uv_ab, uv_b, uv_c, uv_ac], index)
            classes += [int(kinds[0]), int(kinds[1]), int(kinds[1])]
        else:
            middle, uv_m = mesh.middle_vertex(a, b, c), (uv_a + uv_b + uv_c) / 3
            ring = [(a, b, uv_a, uv_b), (b, c, uv_b, uv_c), (c, a, uv_c, uv_a)]
            edges = [(_border(mesh, scores, best, p, q), uv_p, uv_q) for p, q, uv_p, uv_q in ring]
            points = [(vertex, uv_p + (uv_q - uv_p) * share) for (vertex, share), uv_p, uv_q in edges]
            for k, (corner, uv_corner) in enumerate(((a, uv_a), (b, uv_b), (c, uv_c))):
                after, before = points[k], points[k - 1]
                mesh.add([corner, after[0], middle, before[0]], [uv_corner, after[1], uv_m, before[1]], index)
                classes += [int(kinds[k])] * 2
    return *_finished(mesh), np.array(classes, np.int64)


def _border(mesh: _Mesh, scores: Floats, best: Ints, a: int, b: int) -> tuple[int, float]:
    """The vertex on edge ab where the class of a gives way to that of b, and its share of the way from a."""
    at_a, at_b = (float(scores[v, best[a]] - scores[v, best[b]]) for v in (a, b))
    share = float(np.clip(at_a / max(at_a - at_b, 1e-9), 0.02, 0.98))
    return mesh.edge_vertex(a, b, share), share


def _finished(mesh: _Mesh) -> tuple[Ints, Floats, Ints, Floats, Ints]:
    return (
        np.array(mesh.ids, np.int64).reshape(-1, 3),
        np.array(mesh.weights, np.float32).reshape(-1, 3),
        np.array(mesh.faces, np.int64).reshape(-1, 3),
        np.array(mesh.uv, np.float32).reshape(-1, 3, 2),
        np.array(mesh.source, np.int64),
    )
