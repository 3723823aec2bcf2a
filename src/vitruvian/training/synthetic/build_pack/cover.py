"""What garments cover: body vertices that lie beneath them, and those that need not be drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitruvian.training.synthetic.build_pack.anny_bodies import BODY_VERTICES
from vitruvian.training.synthetic.build_pack.garments import TemplateBody
from vitruvian.training.synthetic.pieces import Bools, Floats, Ints, Piece, fit_piece

# Largest distance (m) from the skin at which a piece covers it.
_REACH = {"hat": 0.09, "lower": 0.035, "upper": 0.05, "outer": 0.07, "shoes": 0.03, "accessory": 0.06}


def add_cover(form: TemplateBody, piece: Piece) -> Piece:
    """Find the body vertices that a piece covers, and those so deep beneath it that they need not be drawn."""
    if piece.slot not in _REACH:
        return replace(piece, hides=np.zeros(0, np.int64))
    placed = fit_piece(piece, form.vertices)
    covered = _covered_vertices(form, placed, piece.faces, reach=_REACH[piece.slot])
    hides = np.zeros_like(covered)
    hides[piece.hides[piece.hides < BODY_VERTICES]] = True
    covered |= hides
    if piece.slot not in ("hat", "accessory"):
        deep = _erode(_erode(covered, form.faces), form.faces)
        hides |= deep & _covered_vertices(form, placed, piece.faces, reach=0.025)
    if piece.slot in ("lower", "upper", "outer"):  # one vertex further, so that nothing rises steeply next to a hem
        covered = ~_erode(~covered, form.faces)
    return replace(piece, covers=np.flatnonzero(covered), hides=np.flatnonzero(hides))


def _erode(mask: Bools, faces: Ints) -> Bools:
    """Remove the members of a vertex set that have a neighbour outside it."""
    edge = ~mask[faces].all(1)
    out = mask.copy()
    out[faces[edge].ravel()] = False
    return out


def _covered_vertices(form: TemplateBody, placed: Floats, faces: Ints, *, reach: float, chunk: int = 2048) -> Bools:
    """Which body vertices [R] have a triangle of a placed mesh within `reach` metres outside them, along the normal."""
    origin = form.vertices[:BODY_VERTICES] - 0.006 * form.normals[:BODY_VERTICES]
    direction = form.normals[:BODY_VERTICES]
    a = placed[faces[:, 0]]
    ab, ac = placed[faces[:, 1]] - a, placed[faces[:, 2]] - a
    hit = np.zeros(len(origin), bool)
    low, high = placed.min(0) - reach, placed.max(0) + reach
    near = np.flatnonzero(((origin > low) & (origin < high)).all(1))
    near = near[np.lexsort((origin[near, 0], origin[near, 2].round(1)))]
    middle, radius = (
        a + (ab + ac) / 3,
        np.maximum(np.linalg.norm(ab, axis=1), np.linalg.norm(ac, axis=1)) + reach + 0.01,
    )
    for start in range(0, len(near), chunk):
        rows = near[start : start + chunk]
        o, d = origin[rows], direction[rows]
        box = ((middle > o.min(0) - radius[:, None]) & (middle < o.max(0) + radius[:, None])).all(1)
        t, u, v = _ray_triangle(o, d, a[box], ab[box], ac[box])
        hit[rows] = ((u >= -0.01) & (v >= -0.01) & (u + v <= 1.01) & (t > 0) & (t < reach + 0.006)).any(1)
    return hit


def _ray_triangle(o: Floats, d: Floats, a: Floats, ab: Floats, ac: Floats) -> tuple[Floats, Floats, Floats]:
    """Where rays (o, d) [r, 3] meet the planes of triangles [t, 3]: distance and edge coordinates, each [r, t]."""
    normal = np.cross(ab, ac)
    facing = d @ normal.T
    facing = np.where(np.abs(facing) < 1e-12, 1e-12, facing)
    t = ((a * normal).sum(1) - o @ normal.T) / facing
    # Solve p - a = u ab + v ac in the plane by the dual edges.
    size = np.maximum((normal * normal).sum(1), 1e-18)
    dual_u, dual_v = np.cross(ac, normal) / size[:, None], np.cross(normal, ab) / size[:, None]
    u = o @ dual_u.T + t * (d @ dual_u.T) - (a * dual_u).sum(1)
    v = o @ dual_v.T + t * (d @ dual_v.T) - (a * dual_v).sum(1)
    return t, u, v
