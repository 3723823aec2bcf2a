"""Garments made from the body itself: a copy of part of its surface, moved outwards, with clean hems.

They need no asset: tight and loose tops, trousers, shorts, underwear, socks, gloves, caps, short hair; and, from the
skirt helper of the body mesh, skirts, dresses and coats. Where a garment ends are numbers per body vertex ("fields",
about metres, positive inside), and `cutting.py` cuts at zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitruvian.data.synthetic.bodies import BODY_VERTICES, EYES, BodySource
from vitruvian.data.synthetic.cutting import cut_along
from vitruvian.data.synthetic.pieces import (
    ANYONE,
    CLASS,
    WOMEN,
    Bools,
    Floats,
    Ints,
    Piece,
    keep_faces,
    vertex_normals,
)

# Pairs of body vertices whose distance along x, y, z tells how large a part of the body is: offsets grow with it.
Span = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
HEAD_SPAN: Span = ((5399, 11998), (962, 5320), (791, 881))
TRUNK_SPAN: Span = ((3924, 10589), (1892, 3946), (1524, 4370))
FABRIC_REPEATS = 12.0  # cloth textures repeat this often over the body's texture square


@dataclass(frozen=True)
class Form:
    """The average adult as a tailor's dummy: its surface and the measures that hems go by."""

    vertices: Floats  # [N, 3]
    surface: Floats  # [N, 3] the same without the small relief of the trunk, which cloth does not follow
    normals: Floats  # [N, 3] of that surface
    faces: Ints  # [f, 3] outer surface of the body, without eyes and mouth
    uv: Floats  # [f, 3, 2]
    skirt_faces: Ints  # [s, 3]
    along_arm: Floats  # [N] metres from the shoulder joint down the arm; about -0.05 on the trunk
    arm: Floats  # [N] how much a vertex belongs to an arm, 0..1
    head: Floats  # [N]
    at: dict[str, Floats]  # joints by bone name, [3]
    eye_z: float
    upper_arm: float  # metres, shoulder to elbow
    whole_arm: float  # metres, shoulder to wrist


def make_form(source: BodySource, quads: Ints, quad_uv: Floats) -> Form:
    """Measure the template; `quads` [q, 4] is its outer surface."""
    faces = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    uv = np.concatenate([quad_uv[:, [0, 1, 2]], quad_uv[:, [0, 2, 3]]]) * FABRIC_REPEATS
    vertices = source.template
    at = {name: source.template_bones[i, 0] for i, name in enumerate(source.bone_names)}
    column = {name: i for i, name in enumerate(source.bone_names)}

    def share(prefixes: tuple[str, ...]) -> Floats:
        columns = [i for name, i in column.items() if name.startswith(prefixes)]
        return np.asarray(source.weights[:, columns].sum(1))

    arm = share(("upperarm", "lowerarm", "wrist", "finger"))
    along = np.full(len(vertices), -0.05, np.float32)
    lengths = (0.0, 0.0)
    for side, sign in (("L", 1), ("R", -1)):
        shoulder, elbow, wrist = (at[f"{bone}.{side}"] for bone in ("upperarm01", "lowerarm01", "wrist"))
        lengths = (float(np.linalg.norm(elbow - shoulder)), float(np.linalg.norm(wrist - elbow)))
        upper, lower = (elbow - shoulder) / lengths[0], (wrist - elbow) / lengths[1]
        first = (vertices - shoulder) @ upper
        second = lengths[0] + (vertices - elbow) @ lower
        bend = np.clip((first - lengths[0] + 0.06) / 0.12, 0, 1)
        here = (vertices[:, 0] * sign > 0) & (arm > 0)
        way = first * (1 - bend) + second * bend
        along = np.where(here, way * arm - 0.05 * (1 - arm), along)
    skirt = source.helper_quads["helper-skirt"]
    trunk = (arm < 0.5) & (share(("head", "neck", "upperleg", "lowerleg", "foot", "toe")) < 0.5)
    surface = without_relief(vertices, faces, trunk)
    return Form(
        vertices=vertices, surface=surface, normals=vertex_normals(surface, faces), faces=faces,
        uv=uv.astype(np.float32),
        skirt_faces=np.concatenate([skirt[:, [0, 1, 2]], skirt[:, [0, 2, 3]]]),
        along_arm=along.astype(np.float32), arm=arm,
        head=share(("head",)), at=at, eye_z=float(vertices[EYES, 2].mean()),
        upper_arm=lengths[0], whole_arm=lengths[0] + lengths[1],
    )  # fmt: skip


def scale_of(form: Form, span: Span) -> dict[str, Any]:
    """The scale fields of a `Piece` that was made on the template and grows with `span`."""
    ids = np.array(span, np.int64)
    base = np.diagonal(np.abs(form.vertices[ids[:, 0]] - form.vertices[ids[:, 1]]))
    return {"scale_ids": ids, "scale_base": base.astype(np.float32)}


def mesh_edges(faces: Ints) -> tuple[Ints, Ints]:
    """The edges of a triangle mesh [e, 2], each once, and to how many triangles each belongs [e]."""
    edges = np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]])
    return np.unique(np.sort(edges, 1), axis=0, return_counts=True)


def without_relief(vertices: Floats, faces: Ints, where: Bools) -> Floats:
    """Even out small relief [N, 3]: the spots in `where` [N] whose mesh is finer than 9 mm (nipples, navel)."""
    edges, _ = mesh_edges(faces)
    length = np.linalg.norm(vertices[edges[:, 0]] - vertices[edges[:, 1]], axis=1)
    total, count = (np.bincount(edges.ravel(), np.repeat(v, 2), len(vertices)) for v in (length, np.ones_like(length)))
    fine = where & (total < 0.009 * count)
    for _ in range(60):
        vertices = np.where(fine[:, None], relaxed(vertices, edges, 1), vertices)
    return vertices


def relaxed(positions: Floats, edges: Ints, rounds: int) -> Floats:
    """Relax a surface [N, c], as cloth does over a hollow: each vertex moves to the mean of its neighbours."""
    count = np.bincount(edges.ravel(), minlength=len(positions)).astype(np.float32)[:, None]
    for _ in range(rounds):
        total = np.zeros_like(positions)
        np.add.at(total, edges[:, 0], positions[edges[:, 1]])
        np.add.at(total, edges[:, 1], positions[edges[:, 0]])
        positions = np.where(count > 0, total / np.maximum(count, 1), positions)
    return positions


def shell(
    form: Form, name: str, slot: str, fields: Floats, *, thickness: float, part_class: str | Floats, smooth: int = 0,
    style: str = "", suits: int = ANYONE, span: Span = TRUNK_SPAN,
) -> Piece:  # fmt: skip
    """Copy the body where all `fields` [k, N] are positive, `thickness` metres outwards.

    `part_class` is the name of a class, or a number [N] for each vertex; `smooth` rounds of relaxing make loose cloth.
    """
    fields = np.atleast_2d(fields)
    ids, weights, faces, uv, source = cut_along(form.faces, form.uv, fields)
    offsets = form.normals * thickness
    if smooth:
        edges, _ = mesh_edges(form.faces)
        loose = relaxed(form.surface + offsets, edges, smooth) - form.surface
        # Relaxing must not sink the cloth into the body: make up what is lost along the normal, and around it, so that
        # the cloth is lifted like a tent and not in points.
        lift = np.maximum(0.6 * thickness - (loose * form.normals).sum(1), 0)[:, None]
        for _ in range(smooth):
            lift = np.maximum(lift, relaxed(lift, edges, 2))
        offsets = relaxed(form.surface + loose + form.normals * lift, edges, 2) - form.surface
        offsets += form.normals * np.maximum(0.45 * thickness - (offsets * form.normals).sum(1), 0)[:, None]
    offsets = ((offsets + form.surface - form.vertices)[ids] * weights[..., None]).sum(1)
    at_rest = (form.vertices[ids] * weights[..., None]).sum(1)
    offsets = _even_hems(at_rest + offsets, faces) - at_rest
    if isinstance(part_class, str):
        face_class = np.full(len(faces), CLASS[part_class], np.int64)
    else:
        face_class = part_class[form.faces[source]].max(1).astype(np.int64)
    piece = Piece(
        name=name, slot=slot, ids=ids, weights=weights, offsets=offsets.astype(np.float32), faces=faces, uv=uv,
        face_class=face_class, face_part=np.zeros(len(faces), np.int64), **scale_of(form, span),
        hides=np.flatnonzero(fields.min(0)[:BODY_VERTICES] > 0.022 + thickness), suits=suits, style=style,
    )  # fmt: skip
    return keep_faces(piece, np.ones(len(faces), bool))


def _even_hems(points: Floats, faces: Ints) -> Floats:
    """Even out the borders of a mesh [m, 3]: where a cut crosses triangles it zigzags a little."""
    edges, count = mesh_edges(faces)
    border = edges[count == 1]
    normals = vertex_normals(points, faces)
    for _ in range(4):
        step = (relaxed(points, border, 1) - points) / 2  # zero off the border
        points = points + step - normals * (step * normals).sum(1, keepdims=True)  # along the cloth, not into the body
    return points


def _above(form: Form, z: float) -> Floats:
    """Positive above height z; arms, which hang beside the hips, never count as below."""
    return form.vertices[:, 2] - z + 2.0 * form.arm


def neckline(form: Form, *, front: float, back: float, vee: float = 0.0, narrow: float = 0.0) -> Floats:
    """Positive below a tilted plane through the neck: `front`, `back` are metres above the base of the neck."""
    x, y, z = form.vertices.T
    base = form.at["neck01"]
    tilt = np.clip((y - (base[1] - 0.09)) / 0.14, 0, 1)
    rim = base[2] + front + (back - front) * tilt + vee * np.abs(x) * (1 - tilt) + narrow * np.abs(x)
    return np.asarray(rim - z)


def top_field(form: Form, *, sleeve: float, hem: float, neck: Floats) -> Floats:
    """A top: down to height `hem`, sleeves `sleeve` metres long, below the neckline. [3, N]."""
    return np.stack([_above(form, hem), sleeve - form.along_arm, neck])


def legs_field(form: Form, *, waist: float, cuff: float) -> Floats:
    """Trousers: from height `waist` down to height `cuff`, never on the arms. [3, N]."""
    z = form.vertices[:, 2]
    return np.stack([waist - z, z - cuff, (0.35 - form.arm) * 0.3])


def band(value: Floats, half: float) -> Floats:
    """A stripe of the body where `value` [N] is within `half` of zero: [2, N]."""
    return np.stack([half - value, half + value])


def skirt(
    form: Form, name: str, slot: str, *, top: float, hem: float, flare: float, part_class: str, out: float = 0.009,
    gap: float = 0.0,
) -> Piece:  # fmt: skip
    """Cut the skirt helper between heights `hem` and `top`; `flare` widens it downwards, `gap` opens its front."""
    x, y, z = form.vertices.T
    fields = [z - hem, top - z]
    if gap:
        front = y < form.at["root"][1]
        fields.append(np.where(front, np.abs(x) - gap, 1.0))
    uv = np.stack([np.arctan2(x, -y) / 1.2, z], -1)[form.skirt_faces].astype(np.float32)
    ids, weights, faces, uv, _ = cut_along(form.skirt_faces, uv, np.stack(fields))
    centre = form.at["root"][1]
    radial = np.stack([x, y - centre, np.zeros_like(z)], 1)
    radial = radial / np.maximum(np.linalg.norm(radial, axis=1, keepdims=True), 1e-6)
    widen = out + flare * np.clip((top - z) / max(top - hem, 1e-3), 0, 1.2)
    offsets = ((radial * widen[:, None])[ids] * weights[..., None]).sum(1)
    covered = form.vertices[:BODY_VERTICES, 2]
    tube = (
        (form.arm[:BODY_VERTICES] < 0.1)
        & (gap == 0)
        & (covered < top - 0.04)
        & (covered > max(hem + 0.2, form.at["upperleg01.L"][2] - 0.02))
    )
    piece = Piece(
        name=name, slot=slot, ids=ids, weights=weights, offsets=offsets.astype(np.float32), faces=faces, uv=uv,
        face_class=np.full(len(faces), CLASS[part_class], np.int64), face_part=np.zeros(len(faces), np.int64),
        **scale_of(form, TRUNK_SPAN), hides=np.flatnonzero(tube),
        style="skirt", suits=WOMEN,
    )  # fmt: skip
    return keep_faces(piece, np.ones(len(faces), bool))


def scalp_field(form: Form, *, front: float, back: float) -> Floats:
    """Positive above the hairline: a plane from `front` (metres above the eyes) to `back`, on the head only."""
    _, y, z = form.vertices.T
    skull = form.vertices[:BODY_VERTICES][form.head[:BODY_VERTICES] > 0.6]
    y_front, y_back = float(skull[skull[:, 2] > form.eye_z, 1].min()), float(skull[:, 1].max())
    share = np.clip((y - y_front) / (y_back - y_front), 0, 1)
    # Straight over the forehead, dropping behind the temples: the line a hairdresser would draw.
    line = form.eye_z + front + (back - front) * np.clip((share - 0.18) / 0.72, 0, 1)
    return np.where(form.head > 0.3, z - line, -1.0).astype(np.float32)


def covered_vertices(form: Form, placed: Floats, faces: Ints, *, reach: float, chunk: int = 2048) -> Bools:
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
