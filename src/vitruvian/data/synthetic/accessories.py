"""Stiff things of our own making: glasses, a cap's visor, backpacks and bags with their straps.

A stiff thing hangs on one body vertex (so it never bends) and is scaled with the body part it sits on.
"""

from __future__ import annotations

import numpy as np

from vitruvian.data.synthetic.bodies import BODY_VERTICES
from vitruvian.data.synthetic.pieces import CLASS, Floats, Ints, Piece, join_pieces
from vitruvian.data.synthetic.shells import HEAD_SPAN, TRUNK_SPAN, Form, Span, band, scale_of, scalp_field, shell


def stiff(form: Form, name: str, slot: str, points: Floats, faces: Ints, *, anchor: Floats,
          span: Span, part_class: str, part: int = 0, style: str = "") -> Piece:  # fmt: skip
    """Hang a mesh (points [n, 3] on the template, faces [f, 3]) on the body vertex nearest to `anchor`."""
    vertex = int(np.linalg.norm(form.vertices[:BODY_VERTICES] - anchor, axis=1).argmin())
    uv = (points[:, [0, 2]] * 4)[faces]
    weights = np.zeros((len(points), 3), np.float32)
    weights[:, 0] = 1
    return Piece(
        name=name, slot=slot, ids=np.full((len(points), 3), vertex), weights=weights,
        offsets=(points - form.vertices[vertex]).astype(np.float32), faces=faces, uv=uv.astype(np.float32),
        face_class=np.full(len(faces), CLASS[part_class], np.int64), face_part=np.full(len(faces), part, np.int64),
        **scale_of(form, span), style=style,
    )  # fmt: skip


def tube(path: Floats, radius: float, *, closed: bool, sides: int = 6) -> tuple[Floats, Ints]:
    """A tube around a path [k, 3]: points [k * sides, 3] and triangles."""
    ahead = np.roll(path, -1, 0) - np.roll(path, 1, 0)
    if not closed:
        ahead[0], ahead[-1] = path[1] - path[0], path[-1] - path[-2]
    ahead = ahead / np.linalg.norm(ahead, axis=1, keepdims=True)
    across = np.cross(ahead, np.array([0.0, 0.31, 0.95]))
    across = across / np.maximum(np.linalg.norm(across, axis=1, keepdims=True), 1e-6)
    up = np.cross(across, ahead)
    angle = np.arange(sides) * 2 * np.pi / sides
    ring = np.cos(angle)[None, :, None] * across[:, None] + np.sin(angle)[None, :, None] * up[:, None]
    return (path[:, None] + radius * ring).reshape(-1, 3), _grid_faces(len(path), sides, closed, True)


def _grid_faces(rows: int, columns: int, rows_closed: bool, columns_closed: bool) -> Ints:
    """Triangles of a rows x columns grid of points, optionally joined at its ends."""
    last_row, last_column = rows - (not rows_closed), columns - (not columns_closed)
    i, j = (axis.ravel() for axis in np.meshgrid(np.arange(last_row), np.arange(last_column), indexing="ij"))
    a, b = i * columns + j, i * columns + (j + 1) % columns
    c, d = ((i + 1) % rows) * columns + j, ((i + 1) % rows) * columns + (j + 1) % columns
    return np.concatenate([np.stack([a, b, d], 1), np.stack([a, d, c], 1)]).astype(np.int64)


def _merged(meshes: list[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    points, faces, shift = [], [], 0
    for vertices, triangles in meshes:
        points.append(vertices)
        faces.append(triangles + shift)
        shift += len(vertices)
    return np.concatenate(points), np.concatenate(faces)


def make_glasses(form: Form) -> list[Piece]:
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

        def plate(x: Floats, z: Floats) -> Floats:
            """The front of the glasses: a sheet that bends back towards the temples and leans a little."""
            y = eye[1] - 0.016 + 1.4 * x**2 - 0.08 * (z - eye[2])
            return np.stack([x, y, z], -1)

        rims = plate(outline_x, outline_z)
        meshes = [tube(rims, rim, closed=True)]
        outer = plate(np.array([eye[0] + half_w]), np.array([eye[2] + 0.006]))[0]
        hinge = np.array([min(ear[0] - 0.012, outer[0] + 0.014), outer[1] + 0.012, outer[2]])
        end = np.array([ear[0] - 0.010, ear[1] + 0.004, ear[2] + 0.004])
        bow = np.stack([outer, hinge, hinge * 0.5 + end * 0.5, end, end + np.array([-0.004, 0.022, -0.022])])
        meshes.append(tube(bow, max(rim, 0.0014), closed=False))
        meshes += [(points * [-1.0, 1.0, 1.0], faces) for points, faces in meshes]
        span = eye[0] - half_w
        bridge = plate(
            np.linspace(-span, span, 7), eye[2] + 0.004 + 0.004 * np.cos(np.linspace(-np.pi / 2, np.pi / 2, 7))
        )
        meshes.append(tube(bridge, rim, closed=False))
        points, faces = _merged(meshes)
        nose = np.array([0.0, eye[1] - 0.01, eye[2]])
        style = "sunglasses" if dark else "glasses"
        piece = stiff(
            form, name, "glasses", points, faces, anchor=nose, span=HEAD_SPAN, part_class="Eyeglass", style=style
        )
        middle = plate(np.array([eye[0]]), np.array([eye[2]]))
        disc = np.concatenate([middle - [0.0, 0.002, 0.0], rims])
        fan = np.stack([np.zeros(28, np.int64), 1 + np.arange(28), 1 + (np.arange(28) + 1) % 28], 1)
        points, faces = _merged([(disc, fan), (disc * [-1.0, 1.0, 1.0], fan)])
        lens = stiff(form, name, "glasses", points, faces, anchor=nose, span=HEAD_SPAN, part_class="Eyeglass", part=1)
        piece = join_pieces(piece, lens)
        pieces.append(piece)
    return pieces


def make_cap(form: Form) -> list[Piece]:
    """A baseball cap: a thin shell over the scalp and a curved visor."""
    line = scalp_field(form, front=0.05, back=-0.01)
    crown = shell(
        form, "cap", "hat", line, thickness=0.014, smooth=8, part_class="Apparel", style="hat", span=HEAD_SPAN
    )
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
    brim = stiff(form, "cap", "hat", visor, _grid_faces(13, 6, False, False), anchor=brow, span=HEAD_SPAN,
                 part_class="Apparel", part=1)  # fmt: skip
    return [join_pieces(crown, brim)]


def rounded_box(
    centre: Floats, half: Floats, *, power: float = 4.0, rows: int = 14, columns: int = 24
) -> tuple[Floats, Ints]:
    """A box with soft edges (a superellipsoid): points and triangles."""
    lift, turn = np.meshgrid(
        np.linspace(-np.pi / 2, np.pi / 2, rows), np.arange(columns) * 2 * np.pi / columns, indexing="ij"
    )

    def soft(value: Floats) -> Floats:
        return np.sign(value) * np.abs(value) ** (2 / power)

    unit = np.stack(
        [soft(np.cos(lift)) * soft(np.cos(turn)), soft(np.cos(lift)) * soft(np.sin(turn)), soft(np.sin(lift))], -1
    )
    return (centre + half * unit).reshape(-1, 3), _grid_faces(rows, columns, False, True)


def make_bags(form: Form) -> list[Piece]:
    """A backpack with two straps, a shoulder bag with one across the chest; class Apparel."""
    x, _, z = form.vertices.T
    at = form.at
    trunk = form.vertices[:BODY_VERTICES][(form.arm < 0.1)[:BODY_VERTICES]]
    chest, waist = at["spine01"][2], at["spine04"][2]
    back_y = float(trunk[np.abs(trunk[:, 2] - chest) < 0.1, 1].max())
    straps = np.vstack([band(np.abs(x) - 0.105, 0.024), z - (waist + 0.08), (0.3 - form.arm) * 0.2])
    straps = np.vstack([straps, at["neck01"][2] + 0.1 - z])
    strap = shell(form, "backpack", "accessory", straps, thickness=0.03, smooth=8, part_class="Apparel", style="bag")
    middle = np.array([0.0, back_y + 0.105, (chest + waist) / 2 + 0.03])
    points, faces = rounded_box(middle, np.array([0.145, 0.085, 0.215]))
    sack = stiff(form, "backpack", "accessory", points, faces, anchor=np.array([0.0, back_y, chest]), span=TRUNK_SPAN,
                 part_class="Apparel", part=1)  # fmt: skip
    backpack = join_pieces(strap, sack, hides=np.zeros(0, np.int64))

    shoulder = np.array([-0.10, 0.0, at["neck01"][2]])
    hip = np.array([0.19, 0.0, at["upperleg01.L"][2] + 0.03])
    along = (hip - shoulder) / np.linalg.norm(hip - shoulder)
    across = np.array([along[2], 0.0, -along[0]])
    stripe = band((form.vertices - shoulder) @ across, 0.016)
    fields = np.vstack([stripe, z - hip[2], (0.25 - form.arm) * 0.2, (0.2 - form.head) * 0.2])
    sling = shell(form, "shoulder_bag", "accessory", fields, thickness=0.028, smooth=8,
                  part_class="Apparel", style="bag")  # fmt: skip
    points, faces = rounded_box(hip + np.array([0.025, 0.01, -0.06]), np.array([0.045, 0.15, 0.11]))
    pouch = stiff(
        form, "shoulder_bag", "accessory", points, faces, anchor=hip, span=TRUNK_SPAN, part_class="Apparel", part=1
    )
    bag = join_pieces(sling, pouch, hides=np.zeros(0, np.int64))
    return [backpack, bag]
