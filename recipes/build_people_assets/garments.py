"""Garments that are modelled here: shells of the body, skirts, and rigid accessories such as glasses, caps and bags.

A shell is a copy of part of the body's surface, moved outwards, with clean hems: tops, trousers, underwear, socks,
gloves, hats, short hair. The skirt helper of the body mesh gives skirts, dresses and coats. Where a garment ends is
defined by fields: signed distances of the body vertices, about meters, positive inside; `mesh.clip_mesh` cuts at zero.
A rigid piece is bound to one body vertex, so that it never bends, and is scaled with a part of the body. `add_cover`
finds what skin a garment hides, for those of the assets too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipes.build_people_assets.anny_bodies import BODY_VERTICES, EYES, BodySource
from recipes.build_people_assets.mesh import CutMesh, clip_mesh, laplacian_smooth, mesh_edges, split_quads
from vitruvian.human import PART_INDEX
from vitruvian.images.types import BoolArray, IntArray
from vitruvian.training.synthetic.asset_pack import (
    ANYONE,
    MEN,
    WOMEN,
    FloatArray,
    Piece,
    fit_piece,
    keep_faces,
    mesh_normals,
)

# Pairs of body vertices whose distance along x, y, z tells how large a part of the body is: offsets grow with it.
_Span = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
_HEAD_SPAN: _Span = ((5399, 11998), (962, 5320), (791, 881))
_TRUNK_SPAN: _Span = ((3924, 10589), (1892, 3946), (1524, 4370))
# Part class of the slots; other pieces are Apparel.
_CLASSES = {"upper": "Upper_Clothing", "outer": "Upper_Clothing", "lower": "Lower_Clothing", "hair": "Hair",
            "glasses": "Eyeglass"}  # fmt: skip
_FABRIC_REPEATS = 12.0  # cloth textures repeat this often over the body's texture square


@dataclass(frozen=True)
class DressForm:
    """The body that garments are made on, the average adult: its surface and the measures that define hems."""

    vertices: FloatArray  # [N, 3]
    surface: FloatArray  # [N, 3] the same without the small relief of the trunk, which cloth does not follow
    normals: FloatArray  # [N, 3] of that surface
    faces: IntArray  # [f, 3] outer surface of the body, without eyes and mouth
    uv: FloatArray  # [f, 3, 2]
    skirt_faces: IntArray  # [s, 3]
    along_arm: FloatArray  # [N] meters from the shoulder joint down the arm; about -0.05 on the trunk
    arm: FloatArray  # [N] how much a vertex belongs to an arm, 0..1
    head: FloatArray  # [N]
    at: dict[str, FloatArray]  # joints by bone name, [3]
    eye_z: float
    upper_arm: float  # meters, shoulder to elbow
    whole_arm: float  # meters, shoulder to wrist


def make_dress_form(source: BodySource, quads: IntArray, quad_uv: FloatArray) -> DressForm:
    """Measure the template; `quads` [q, 4] is its outer surface."""
    faces, uv = split_quads(quads), split_quads(quad_uv) * _FABRIC_REPEATS
    vertices = source.template
    at = {name: source.template_bones[i, 0] for i, name in enumerate(source.bone_names)}
    arm = source.bone_share("upperarm", "lowerarm", "wrist", "finger")
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
    trunk = (arm < 0.5) & (source.bone_share("head", "neck", "upperleg", "lowerleg", "foot", "toe") < 0.5)
    surface = _remove_relief(vertices, faces, trunk)
    return DressForm(
        vertices=vertices, surface=surface, normals=mesh_normals(surface, faces), faces=faces,
        uv=uv.astype(np.float32),
        skirt_faces=split_quads(source.skirt_quads),
        along_arm=along.astype(np.float32), arm=arm,
        head=source.bone_share("head"), at=at, eye_z=float(vertices[EYES, 2].mean()),
        upper_arm=lengths[0], whole_arm=lengths[0] + lengths[1],
    )  # fmt: skip


def _scale_of(form: DressForm, slot: str) -> dict[str, Any]:
    """The scale fields of a `Piece` that is modelled on the template and grows with the head or the trunk."""
    ids = np.array(_HEAD_SPAN if slot in ("hat", "hair", "glasses") else _TRUNK_SPAN, np.int64)
    base = np.diagonal(np.abs(form.vertices[ids[:, 0]] - form.vertices[ids[:, 1]]))
    return {"scale_ids": ids, "scale_base": base.astype(np.float32)}


def _remove_relief(vertices: FloatArray, faces: IntArray, where: BoolArray) -> FloatArray:
    """Smooth small relief [N, 3]: vertices in `where` [N] with edges shorter than 9 mm (nipples, navel)."""
    edges, _ = mesh_edges(faces)
    length = np.linalg.norm(vertices[edges[:, 0]] - vertices[edges[:, 1]], axis=1)
    total, count = (np.bincount(edges.ravel(), np.repeat(v, 2), len(vertices)) for v in (length, np.ones_like(length)))
    fine = where & (total < 0.009 * count)
    for _ in range(60):
        vertices = np.where(fine[:, None], laplacian_smooth(vertices, edges, 1), vertices)
    return vertices


def _shell(
    form: DressForm, name: str, slot: str, fields: FloatArray, thickness: float, smooth: int = 0, style: str = "",
    suits: int = ANYONE, part_class: FloatArray | None = None,
) -> Piece:  # fmt: skip
    """Copy the body where all `fields` [k, N] are positive, `thickness` meters outwards.

    `part_class` is the class of each vertex [N], by default that of the slot; `smooth` rounds of relaxing make loose
    cloth.
    """
    fields = np.atleast_2d(fields)
    mesh = clip_mesh(form.faces, form.uv, fields)
    ids, weights, faces = mesh.ids, mesh.weights, mesh.faces
    offsets = form.normals * thickness
    if smooth:
        edges, _ = mesh_edges(form.faces)
        loose = laplacian_smooth(form.surface + offsets, edges, smooth) - form.surface
        # Smoothing must not sink the cloth into the body: restore what is lost along the normal, and around it, so
        # that the cloth is lifted smoothly.
        lift = np.maximum(0.6 * thickness - (loose * form.normals).sum(1), 0)[:, None]
        for _ in range(smooth):
            lift = np.maximum(lift, laplacian_smooth(lift, edges, 2))
        offsets = laplacian_smooth(form.surface + loose + form.normals * lift, edges, 2) - form.surface
        offsets += form.normals * np.maximum(0.45 * thickness - (offsets * form.normals).sum(1), 0)[:, None]
    offsets = ((offsets + form.surface - form.vertices)[ids] * weights[..., None]).sum(1)
    at_rest = (form.vertices[ids] * weights[..., None]).sum(1)
    offsets = _smooth_borders(at_rest + offsets, faces) - at_rest
    face_class = None if part_class is None else part_class[form.faces[mesh.source]].max(1).astype(np.int64)
    hides = np.flatnonzero(fields.min(0)[:BODY_VERTICES] > 0.022 + thickness)
    return _cut_piece(form, slot, mesh, offsets, face_class, name=name, hides=hides, suits=suits, style=style)


def _slot_classes(slot: str, count: int) -> IntArray:
    """Return the class of a slot for `count` faces."""
    return np.full(count, PART_INDEX[_CLASSES.get(slot, "Apparel")], np.int64)


def _cut_piece(
    form: DressForm, slot: str, mesh: CutMesh, offsets: FloatArray, face_class: IntArray | None = None, **fields: Any
) -> Piece:
    """Return a mesh that was cut out of the template as a piece, without unused vertices."""
    piece = Piece(
        slot=slot, ids=mesh.ids, weights=mesh.weights, offsets=offsets.astype(np.float32), faces=mesh.faces,
        uv=mesh.uv, face_class=_slot_classes(slot, len(mesh.faces)) if face_class is None else face_class,
        face_part=np.zeros(len(mesh.faces), np.int64), **_scale_of(form, slot), **fields,
    )  # fmt: skip
    return keep_faces(piece, np.ones(len(mesh.faces), bool))


def _smooth_borders(points: FloatArray, faces: IntArray) -> FloatArray:
    """Smooth the borders of a mesh [m, 3], which zigzag where a cut crosses triangles."""
    edges, count = mesh_edges(faces)
    border = edges[count == 1]
    normals = mesh_normals(points, faces)
    for _ in range(4):
        step = (laplacian_smooth(points, border, 1) - points) / 2  # zero off the border
        points = points + step - normals * (step * normals).sum(1, keepdims=True)  # along the cloth, not into the body
    return points


def _above(form: DressForm, z: float) -> FloatArray:
    """Positive above height z; arms, which hang beside the hips, never count as below."""
    return form.vertices[:, 2] - z + 2.0 * form.arm


def _neckline(form: DressForm, *, front: float, back: float, vee: float = 0.0, narrow: float = 0.0) -> FloatArray:
    """Positive below a tilted plane through the neck: `front`, `back` are meters above the base of the neck."""
    x, y, z = form.vertices.T
    base = form.at["neck01"]
    tilt = np.clip((y - (base[1] - 0.09)) / 0.14, 0, 1)
    rim = base[2] + front + (back - front) * tilt + vee * np.abs(x) * (1 - tilt) + narrow * np.abs(x)
    return np.asarray(rim - z)


def _top_field(form: DressForm, *, sleeve: float, hem: float, neck: FloatArray) -> FloatArray:
    """A top: down to height `hem`, sleeves `sleeve` meters long, below the _neckline. [3, N]."""
    return np.stack([_above(form, hem), sleeve - form.along_arm, neck])


def _legs_field(form: DressForm, *, waist: float, cuff: float) -> FloatArray:
    """Trousers: from height `waist` down to height `cuff`, never on the arms. [3, N]."""
    z = form.vertices[:, 2]
    return np.stack([waist - z, z - cuff, (0.35 - form.arm) * 0.3])


def _band(value: FloatArray, half: float) -> FloatArray:
    """Return a stripe of the body where `value` [N] is within `half` of zero: [2, N]."""
    return np.stack([half - value, half + value])


def _skirt(
    form: DressForm, name: str, slot: str, *, top: float, hem: float, flare: float, out: float = 0.009, gap: float = 0.0
) -> Piece:
    """Cut the skirt helper between heights `hem` and `top`; `flare` widens it downwards, `gap` opens its front."""
    x, y, z = form.vertices.T
    fields = [z - hem, top - z]
    if gap:
        front = y < form.at["root"][1]
        fields.append(np.where(front, np.abs(x) - gap, 1.0))
    uv = np.stack([np.arctan2(x, -y) / 1.2, z], -1)[form.skirt_faces].astype(np.float32)
    mesh = clip_mesh(form.skirt_faces, uv, np.stack(fields))
    center = form.at["root"][1]
    radial = np.stack([x, y - center, np.zeros_like(z)], 1)
    radial = radial / np.maximum(np.linalg.norm(radial, axis=1, keepdims=True), 1e-6)
    widen = out + flare * np.clip((top - z) / max(top - hem, 1e-3), 0, 1.2)
    offsets = ((radial * widen[:, None])[mesh.ids] * mesh.weights[..., None]).sum(1)
    height = form.vertices[:BODY_VERTICES, 2]
    tube = (form.arm[:BODY_VERTICES] < 0.1) & (gap == 0) & (height < top - 0.04)
    tube &= height > max(hem + 0.2, form.at["upperleg01.L"][2] - 0.02)
    return _cut_piece(form, slot, mesh, offsets, name=name, hides=np.flatnonzero(tube), style="skirt", suits=WOMEN)


def _scalp_field(form: DressForm, *, front: float, back: float) -> FloatArray:
    """Positive above the hairline: a plane from `front` (meters above the eyes) to `back`, on the head only."""
    _, y, z = form.vertices.T
    skull = form.vertices[:BODY_VERTICES][form.head[:BODY_VERTICES] > 0.6]
    y_front, y_back = float(skull[skull[:, 2] > form.eye_z, 1].min()), float(skull[:, 1].max())
    share = np.clip((y - y_front) / (y_back - y_front), 0, 1)
    # Straight over the forehead, dropping behind the temples: the line a hairdresser would draw.
    line = form.eye_z + front + (back - front) * np.clip((share - 0.18) / 0.72, 0, 1)
    return np.where(form.head > 0.3, z - line, -1.0).astype(np.float32)


def _make_tops(form: DressForm) -> list[Piece]:
    """Shirts, sweaters, tank tops."""
    hip, waist = form.at["upperleg01.L"][2], form.at["spine04"][2]
    bust = form.at["spine01"][2]
    crew = _neckline(form, front=-0.035, back=0.03)
    vee = _neckline(form, front=-0.13, back=0.025, vee=1.6)
    scoop = _neckline(form, front=-0.10, back=-0.02, narrow=0.25)
    roll = _neckline(form, front=0.035, back=0.075)
    short, three_quarter, long = 0.62 * form.upper_arm, form.upper_arm + 0.08, form.whole_arm + 0.005

    def top(name: str, sleeve: float, hem: float, neck: FloatArray, *options: Any) -> Piece:
        thickness, smooth, *more = options
        field = _top_field(form, sleeve=sleeve, hem=hem, neck=neck)
        return _shell(form, name, "upper", field, thickness, smooth, *(more or ["top"]))

    return [
        top("tshirt_tight", short, hip + 0.02, crew, 0.005, 2),
        top("tshirt_loose", 0.8 * form.upper_arm, hip - 0.05, crew, 0.018, 16),
        top("tshirt_vee", short, hip, vee, 0.008, 4),
        top("longsleeve", long, hip, crew, 0.007, 3),
        top("sweater", long, hip - 0.02, crew, 0.02, 14),
        top("rollneck", long, hip + 0.01, roll, 0.009, 4),
        top("blouse", three_quarter, hip + 0.03, vee, 0.012, 8),
        top("tank", -0.03, hip + 0.03, scoop, 0.005, 2),
        top("tee_scoop", 0.45 * form.upper_arm, hip + 0.01, scoop, 0.01, 6),
        top("tee_wide", form.upper_arm, hip - 0.09, crew, 0.028, 24),
        top("polo", 0.7 * form.upper_arm, hip - 0.02, vee, 0.011, 7),
        top("muscle_top", -0.01, hip - 0.03, crew, 0.013, 9),
        top("singlet", -0.03, hip - 0.02, scoop, 0.008, 4),
        top("henley", three_quarter, hip - 0.03, scoop, 0.01, 5),
        top("raglan", 0.5 * (form.upper_arm + form.whole_arm), hip, crew, 0.014, 10),
        top("tunic", three_quarter, hip - 0.17, vee, 0.018, 14),
        top("crop_sweater", long, waist, crew, 0.018, 12, "crop", WOMEN),
        top("vest_top", -0.035, waist + 0.02, scoop, 0.005, 2, "crop", WOMEN),
        top("sports_bra", -0.035, bust - 0.12, scoop, 0.005, 3, "bra", WOMEN),
    ]


def _make_bottoms(form: DressForm) -> list[Piece]:
    """Trousers, shorts, underwear, skirts."""
    waist = form.at["spine05"][2] + 0.05
    hip, knee, ankle = (form.at[f"{bone}.L"][2] for bone in ("upperleg01", "lowerleg01", "foot"))
    crotch = hip - 0.075

    def legs(name: str, top: float, cuff: float, *options: Any) -> Piece:
        return _shell(form, name, "lower", _legs_field(form, waist=top, cuff=cuff), *options)

    side = np.abs(form.vertices[:, 0])
    briefs = np.vstack(
        [_legs_field(form, waist=hip + 0.07, cuff=crotch - 0.05), form.vertices[:, 2] - crotch - 0.75 * (side - 0.05)]
    )
    pieces = [
        legs("leggings", waist, ankle + 0.03, 0.004, 1, "tight"),
        legs("capri", waist, (knee + ankle) / 2, 0.006, 2, "tight"),
        legs("slacks", waist, ankle - 0.005, 0.016, 10, "long"),
        legs("joggers", waist - 0.02, ankle + 0.02, 0.022, 14, "long"),
        legs("shorts_short", waist, crotch - 0.06, 0.01, 5, "shorts"),
        legs("shorts_knee", waist, knee + 0.04, 0.017, 10, "shorts"),
        legs("bike_shorts", waist, (hip + 2 * knee) / 3, 0.004, 1, "shorts"),
        legs("shorts_mid", waist, (crotch + knee) / 2, 0.013, 7, "shorts"),
        legs("running_shorts", waist - 0.02, crotch - 0.035, 0.017, 10, "shorts"),
        legs("gym_shorts", waist - 0.01, (2 * crotch + knee) / 3, 0.015, 9, "shorts"),
        legs("board_shorts", waist - 0.03, knee - 0.03, 0.024, 16, "shorts"),
        legs("trousers_slim", waist, ankle + 0.02, 0.009, 4, "long"),
        legs("chinos", waist - 0.01, ankle + 0.05, 0.012, 7, "long"),
        legs("straight_trousers", waist, ankle, 0.013, 8, "long"),
        legs("wide_legs", waist + 0.02, ankle - 0.01, 0.03, 24, "long"),
        legs("culottes", waist + 0.01, knee - 0.13, 0.028, 20, "tight"),
        legs("trunks", hip + 0.08, crotch - 0.08, 0.008, 3, "swim", MEN),
        _shell(form, "briefs", "lower", briefs, 0.005, 2, "swim"),
    ]
    for name, hem, flare in (("skirt_mini", hip - 0.16, 0.0), ("skirt_knee", knee - 0.02, 0.0),
                             ("skirt_midi", (knee + ankle) / 2, 0.06), ("skirt_long", ankle + 0.05, 0.0),
                             ("skirt_tennis", hip - 0.19, 0.07), ("skirt_circle", knee + 0.05, 0.12),
                             ("skirt_pencil", knee + 0.02, -0.01)):  # fmt: skip
        pieces.append(_skirt(form, name, "lower", top=waist + 0.02, hem=hem, flare=flare))
    return pieces


def _make_dresses(form: DressForm) -> list[Piece]:
    """Dresses: a top joined to a skirt; above the waist Upper_Clothing, below Lower_Clothing."""
    waist = form.at["spine05"][2] + 0.05
    knee, ankle, hip = (form.at[f"{bone}.L"][2] for bone in ("lowerleg01", "foot", "upperleg01"))
    necks = {
        "scoop": _neckline(form, front=-0.10, back=-0.02, narrow=0.25),
        "crew": _neckline(form, front=-0.04, back=0.03),
    }
    dresses = []
    for name, neck, sleeve, hem, flare in (
        ("dress_summer", "scoop", -0.03, knee + 0.06, 0.08),
        ("dress_short", "crew", 0.5 * form.upper_arm, hip - 0.25, 0.02),
        ("dress_long", "scoop", -0.03, ankle + 0.04, 0.05),
        ("dress_sleeves", "crew", form.whole_arm, knee - 0.08, 0.04),
        ("dress_tee", "crew", 0.7 * form.upper_arm, hip - 0.2, 0.0),
        ("dress_strap", "scoop", -0.03, hip - 0.17, 0.05),
        ("dress_swing", "crew", 0.35 * form.upper_arm, knee + 0.1, 0.11),
        ("sundress", "scoop", -0.03, knee + 0.16, 0.1),
    ):  # fmt: skip
        field = _top_field(form, sleeve=sleeve, hem=waist - 0.01, neck=necks[neck])
        top = _shell(form, name, "upper", field, 0.007, 4, "dress", WOMEN)
        bottom = _skirt(form, name, "lower", top=waist + 0.03, hem=hem, flare=flare, out=0.006)
        dresses.append(join_pieces(top, bottom))
    return dresses


def _make_outers(form: DressForm) -> list[Piece]:
    """Coats, jackets and waistcoats, worn over a top and open in front."""
    x, y, z = form.vertices.T
    hip, knee = form.at["upperleg01.L"][2], form.at["lowerleg01.L"][2]
    waist = form.at["spine05"][2] + 0.05
    front = (y < form.at["spine03"][1] - 0.02) & (form.arm < 0.5)
    collar = _neckline(form, front=-0.02, back=0.05)
    long = form.whole_arm + 0.01

    def body(name: str, sleeve: float, hem: float, gap: float, thickness: float, style: str) -> Piece:
        opening = np.where(front, np.abs(x) - gap * np.clip((z - hem + 0.1) / 0.5, 0.4, 1.0), 1.0)
        field = np.vstack([_top_field(form, sleeve=sleeve, hem=hem, neck=collar), opening])
        return _shell(form, name, "outer", field, thickness, 14, style)

    pieces = [
        body("jacket_open", long, hip, 0.05, 0.03, "jacket"),
        body("jacket_closed", long, hip - 0.03, 0.004, 0.034, "jacket"),
        body("gilet", -0.02, hip, 0.03, 0.03, "jacket"),
    ]
    for name, hem, gap in (
        ("coat_knee", knee - 0.03, 0.02),
        ("coat_long", knee - 0.25, 0.006),
        ("coat_short", hip - 0.2, 0.03),
    ):
        top = body(name, long, waist - 0.01, gap, 0.032, "coat")
        tail = _skirt(form, name, "outer", top=waist + 0.05, hem=hem, flare=0.05, out=0.026, gap=gap + 0.004)
        pieces.append(join_pieces(top, tail))
    return pieces


def _make_accessories(form: DressForm) -> list[Piece]:
    """Socks without shoes, gloves, watches, belts, scarves, caps, headscarves and cropped hair."""
    x, y, z = form.vertices.T
    knee, ankle = form.at["lowerleg01.L"][2], form.at["foot.L"][2]
    sides = {
        name: np.where(x > 0, PART_INDEX[f"Left_{name}"], PART_INDEX[f"Right_{name}"]).astype(np.float32)
        for name in ("Sock", "Shoe")
    }
    feet = (0.3 - form.arm) * 0.3
    socks = [
        _shell(form, name, "shoes", np.stack([top - z, feet]), 0.004, style="socks", part_class=sides["Sock"])
        for name, top in (("socks_ankle", ankle + 0.04), ("socks_calf", ankle + 0.18), ("socks_knee", knee - 0.06))
    ]
    low = np.stack([ankle + 0.015 - z, feet])
    slippers = _shell(form, "slippers", "shoes", low, 0.011, 6, "shoes", part_class=sides["Shoe"])
    wrist = form.along_arm - form.whole_arm
    head_y, base = form.at["head"][1], form.at["neck01"]
    waist = form.at["spine05"][2] + 0.05
    scalp = _scalp_field(form, front=0.062, back=-0.085)
    hat_line = _scalp_field(form, front=0.045, back=-0.02)
    face = np.hypot(x / 0.060, (z - (form.eye_z - 0.035)) / 0.098) - 1.0
    face = np.where(y < head_y - 0.005, face * 0.08, 1.0)
    scarf_field = np.stack([z - (base[2] - 0.045 - 0.3 * np.minimum(y - base[1], 0)), base[2] + 0.035 - z, feet])
    veil = np.stack([face, z - (base[2] - 0.07), 0.05 - form.along_arm])

    belt, watch, band = _band(z - waist + 0.015, 0.019), _band(wrist + 0.022, 0.011), _band(wrist + 0.045, 0.03)
    return [
        *socks,
        slippers,
        _shell(form, "gloves", "trinket", wrist + 0.03, 0.004, 1, "gloves"),
        _shell(form, "watch", "trinket", np.vstack([watch, x]), 0.006, 0, "watch"),
        _shell(form, "wristband", "trinket", np.vstack([band, -x]), 0.006, 0, "watch"),
        _shell(form, "belt", "trinket", np.vstack([belt, feet]), 0.026, 8, "belt"),
        _shell(form, "scarf", "accessory", scarf_field, 0.03, 8, "scarf"),
        _shell(form, "headscarf", "hat", veil, 0.016, 8, "veil", WOMEN),
        _shell(form, "beanie", "hat", hat_line, 0.016, 6, "hat"),
        _shell(form, "headband", "hat", _band(hat_line - 0.026, 0.028), 0.009, 2, "band"),
        _shell(form, "hair_crop", "hair", scalp, 0.006, 2, "shorn"),
        _shell(form, "hair_thick", "hair", scalp, 0.016, 5, "shorn"),
    ]


def _rigid_piece(
    form: DressForm,
    name: str,
    slot: str,
    points: FloatArray,
    faces: IntArray,
    anchor: FloatArray,
    *,
    part: int = 1,
    style: str = "",
) -> Piece:
    """Bind a rigid mesh (points [n, 3] on the template, faces [f, 3]) to the body vertex nearest to `anchor`."""
    vertex = int(np.linalg.norm(form.vertices[:BODY_VERTICES] - anchor, axis=1).argmin())
    uv = (points[:, [0, 2]] * 4)[faces]
    weights = np.zeros((len(points), 3), np.float32)
    weights[:, 0] = 1
    return Piece(
        name=name, slot=slot, ids=np.full((len(points), 3), vertex), weights=weights,
        offsets=(points - form.vertices[vertex]).astype(np.float32), faces=faces, uv=uv.astype(np.float32),
        face_class=_slot_classes(slot, len(faces)), face_part=np.full(len(faces), part, np.int64),
        **_scale_of(form, slot), style=style,
    )  # fmt: skip


def _tube(path: FloatArray, radius: float, *, closed: bool) -> tuple[FloatArray, IntArray]:
    """Build a tube of six sides around a path [k, 3]: points [6 k, 3] and triangles."""
    ahead = np.roll(path, -1, 0) - np.roll(path, 1, 0)
    if not closed:
        ahead[0], ahead[-1] = path[1] - path[0], path[-1] - path[-2]
    ahead = ahead / np.linalg.norm(ahead, axis=1, keepdims=True)
    across = np.cross(ahead, np.array([0.0, 0.31, 0.95]))
    across = across / np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-6)
    up = np.cross(across, ahead)
    angle = np.arange(6) * 2 * np.pi / 6
    ring = np.cos(angle)[None, :, None] * across[:, None] + np.sin(angle)[None, :, None] * up[:, None]
    return (path[:, None] + radius * ring).reshape(-1, 3), _grid_faces(len(path), 6, closed, True)


def _grid_faces(rows: int, columns: int, rows_closed: bool, columns_closed: bool) -> IntArray:
    """Triangles of a rows x columns grid of points, optionally joined at its ends."""
    last_row, last_column = rows - (not rows_closed), columns - (not columns_closed)
    i, j = (axis.ravel() for axis in np.meshgrid(np.arange(last_row), np.arange(last_column), indexing="ij"))
    a, b = i * columns + j, i * columns + (j + 1) % columns
    c, d = ((i + 1) % rows) * columns + j, ((i + 1) % rows) * columns + (j + 1) % columns
    return np.concatenate([np.stack([a, b, d], 1), np.stack([a, d, c], 1)]).astype(np.int64)


def _merge_meshes(meshes: list[tuple[FloatArray, IntArray]]) -> tuple[FloatArray, IntArray]:
    starts = np.cumsum([0, *(len(points) for points, _ in meshes)])
    faces = [faces + start for (_, faces), start in zip(meshes, starts, strict=False)]
    return np.concatenate([points for points, _ in meshes]), np.concatenate(faces)


def _make_glasses(form: DressForm) -> list[Piece]:
    """Spectacles and sunglasses in several shapes, their lenses (part 1) clear or dark; class Eyeglass."""
    left = form.vertices[14598:14670]
    eye = np.array([left[:, 0].mean(), left[:, 1].min(), left[:, 2].mean()])
    skull = form.vertices[:BODY_VERTICES][form.head[:BODY_VERTICES] > 0.5]
    ear = skull[skull[:, 0].argmax()]
    pieces = []
    for name, (half_w, half_h), power, rim, dark in (
        ("glasses_round", (0.0235, 0.022), 2.0, 0.0013, False),
        ("glasses_square", (0.0265, 0.018), 4.0, 0.0021, False),
        ("glasses_thin", (0.0255, 0.0155), 3.0, 0.0009, False),
        ("glasses_bold", (0.0275, 0.021), 3.5, 0.0030, False),
        ("sunglasses_square", (0.029, 0.021), 3.5, 0.0024, True),
        ("sunglasses_round", (0.026, 0.025), 2.2, 0.0014, True),
    ):  # fmt: skip
        angle = np.arange(28) * 2 * np.pi / 28
        c, s = np.cos(angle), np.sin(angle)
        outline_x = eye[0] + 0.001 + half_w * np.sign(c) * np.abs(c) ** (2 / power)
        outline_z = eye[2] - 0.002 + half_h * np.sign(s) * np.abs(s) ** (2 / power)

        def plate(x: FloatArray, z: FloatArray) -> FloatArray:
            """The front of the glasses: a sheet that bends back toward the temples and leans a little."""
            y = eye[1] - 0.016 + 1.4 * x**2 - 0.08 * (z - eye[2])
            return np.stack([x, y, z], -1)

        rims = plate(outline_x, outline_z)
        meshes = [_tube(rims, rim, closed=True)]
        outer = plate(np.array([eye[0] + half_w]), np.array([eye[2] + 0.006]))[0]
        hinge = np.array([min(ear[0] - 0.012, outer[0] + 0.014), outer[1] + 0.012, outer[2]])
        end = np.array([ear[0] - 0.010, ear[1] + 0.004, ear[2] + 0.004])
        bow = np.stack([outer, hinge, hinge * 0.5 + end * 0.5, end, end + np.array([-0.004, 0.022, -0.022])])
        meshes.append(_tube(bow, max(rim, 0.0014), closed=False))
        meshes += [(points * [-1.0, 1.0, 1.0], faces) for points, faces in meshes]
        span = eye[0] - half_w
        bridge = plate(
            np.linspace(-span, span, 7), eye[2] + 0.004 + 0.004 * np.cos(np.linspace(-np.pi / 2, np.pi / 2, 7))
        )
        meshes.append(_tube(bridge, rim, closed=False))
        points, faces = _merge_meshes(meshes)
        nose = np.array([0.0, eye[1] - 0.01, eye[2]])
        style = "sunglasses" if dark else "glasses"
        frame = _rigid_piece(form, name, "glasses", points, faces, nose, part=0, style=style)
        middle = plate(np.array([eye[0]]), np.array([eye[2]]))
        disc = np.concatenate([middle - [0.0, 0.002, 0.0], rims])
        fan = np.stack([np.zeros(28, np.int64), 1 + np.arange(28), 1 + (np.arange(28) + 1) % 28], 1)
        points, faces = _merge_meshes([(disc, fan), (disc * [-1.0, 1.0, 1.0], fan)])
        pieces.append(join_pieces(frame, _rigid_piece(form, name, "glasses", points, faces, nose)))
    return pieces


def _make_cap(form: DressForm) -> list[Piece]:
    """A baseball cap: a thin shell over the scalp and a curved visor."""
    line = _scalp_field(form, front=0.05, back=-0.01)
    crown = _shell(form, "cap", "hat", line, 0.014, 8, "hat")
    skull = form.vertices[:BODY_VERTICES][form.head[:BODY_VERTICES] > 0.6]
    ring = skull[np.abs(skull[:, 2] - form.eye_z - 0.05) < 0.015]
    brow_y, half = float(ring[:, 1].min()), float(np.abs(ring[:, 0]).max())
    across, out = np.meshgrid(np.linspace(-1, 1, 13), np.linspace(0, 1, 6), indexing="ij")
    angle = across * 1.15
    radius_x, radius_y = half + 0.008, half * 1.15
    x = radius_x * np.sin(angle) * (1 - 0.04 * out)
    y = brow_y - 0.014 + radius_y * (1 - np.cos(angle)) - out * 0.072 * np.cos(across * np.pi / 2.15)
    z = form.eye_z + 0.056 - 0.012 * out - 0.016 * across**2 * (0.4 + out)
    visor = np.stack([x, y, z], -1).reshape(-1, 3)
    brow = np.array([0.0, brow_y, form.eye_z + 0.05])
    brim = _rigid_piece(form, "cap", "hat", visor, _grid_faces(13, 6, False, False), brow)
    return [join_pieces(crown, brim)]


def _rounded_box(center: FloatArray, half: FloatArray) -> tuple[FloatArray, IntArray]:
    """Build a box with soft edges (a superellipsoid): points and triangles."""
    lift, turn = np.meshgrid(np.linspace(-np.pi / 2, np.pi / 2, 14), np.arange(24) * 2 * np.pi / 24, indexing="ij")

    def soft(value: FloatArray) -> FloatArray:
        return np.sign(value) * np.abs(value) ** 0.5

    unit = np.stack(
        [soft(np.cos(lift)) * soft(np.cos(turn)), soft(np.cos(lift)) * soft(np.sin(turn)), soft(np.sin(lift))], -1
    )
    return (center + half * unit).reshape(-1, 3), _grid_faces(14, 24, False, True)


def _make_bags(form: DressForm) -> list[Piece]:
    """A backpack with two straps, a shoulder bag with one across the chest; class Apparel."""
    x, _, z = form.vertices.T
    at = form.at
    trunk = form.vertices[:BODY_VERTICES][(form.arm < 0.1)[:BODY_VERTICES]]
    chest, waist = at["spine01"][2], at["spine04"][2]
    back_y = float(trunk[np.abs(trunk[:, 2] - chest) < 0.1, 1].max())
    straps = np.vstack([_band(np.abs(x) - 0.105, 0.024), z - (waist + 0.08), (0.3 - form.arm) * 0.2])
    straps = np.vstack([straps, at["neck01"][2] + 0.1 - z])
    strap = _shell(form, "backpack", "accessory", straps, 0.03, 8, "bag")
    middle = np.array([0.0, back_y + 0.105, (chest + waist) / 2 + 0.03])
    points, faces = _rounded_box(middle, np.array([0.145, 0.085, 0.215]))
    anchor = np.array([0.0, back_y, chest])
    sack = _rigid_piece(form, "backpack", "accessory", points, faces, anchor)
    backpack = replace(join_pieces(strap, sack), hides=np.zeros(0, np.int64))

    shoulder = np.array([-0.10, 0.0, at["neck01"][2]])
    hip = np.array([0.19, 0.0, at["upperleg01.L"][2] + 0.03])
    along = (hip - shoulder) / np.linalg.norm(hip - shoulder)
    across = np.array([along[2], 0.0, -along[0]])
    stripe = _band((form.vertices - shoulder) @ across, 0.016)
    fields = np.vstack([stripe, z - hip[2], (0.25 - form.arm) * 0.2, (0.2 - form.head) * 0.2])
    sling = _shell(form, "shoulder_bag", "accessory", fields, 0.028, 8, "bag")
    points, faces = _rounded_box(hip + np.array([0.025, 0.01, -0.06]), np.array([0.045, 0.15, 0.11]))
    pouch = _rigid_piece(form, "shoulder_bag", "accessory", points, faces, hip)
    bag = replace(join_pieces(sling, pouch), hides=np.zeros(0, np.int64))
    return [backpack, bag]


def make_garments(form: DressForm) -> list[Piece]:
    """Make every garment and accessory."""
    makers = (
        _make_tops, _make_bottoms, _make_dresses, _make_outers, _make_accessories, _make_glasses, _make_cap,
        _make_bags,
    )  # fmt: skip
    return [piece for make in makers for piece in make(form)]


# ------------------------------------------------------------------------------------- what garments cover

_RAYS = 2048  # cast together
# Largest distance (m) from the skin at which a piece covers it.
_REACH = {"hat": 0.09, "lower": 0.035, "upper": 0.05, "outer": 0.07, "shoes": 0.03, "accessory": 0.06}


def add_cover(form: DressForm, piece: Piece) -> Piece:
    """Find the body vertices that a piece covers, and those so deep beneath it that they need not be rendered."""
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


def _erode(mask: BoolArray, faces: IntArray) -> BoolArray:
    """Remove the members of a vertex set that have a neighbor outside it."""
    edge = ~mask[faces].all(1)
    out = mask.copy()
    out[faces[edge].ravel()] = False
    return out


def _covered_vertices(form: DressForm, placed: FloatArray, faces: IntArray, *, reach: float) -> BoolArray:
    """Which body vertices [R] have a triangle of a placed mesh within `reach` meters outside them, along the normal."""
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
    for start in range(0, len(near), _RAYS):
        rows = near[start : start + _RAYS]
        o, d = origin[rows], direction[rows]
        box = ((middle > o.min(0) - radius[:, None]) & (middle < o.max(0) + radius[:, None])).all(1)
        t, u, v = _ray_triangle(o, d, a[box], ab[box], ac[box])
        hit[rows] = ((u >= -0.01) & (v >= -0.01) & (u + v <= 1.01) & (t > 0) & (t < reach + 0.006)).any(1)
    return hit


def _ray_triangle(
    o: FloatArray, d: FloatArray, a: FloatArray, ab: FloatArray, ac: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
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
