"""A small pack without assets: people of capsules with a few hundred vertices. For tests and first experiments.

They have bones, shapes, a mouth that opens and something for every slot, so that all code for people runs on them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vitruvian.human import PART_INDEX
from vitruvian.images.types import IntArray
from vitruvian.training.synthetic.asset_pack import (
    MEN,
    WOMEN,
    AssetPack,
    FloatArray,
    Piece,
    keep_faces,
    mesh_normals,
    pack_arrays,
    pack_from_arrays,
)
from vitruvian.training.synthetic.posing import keypoint_rules

_SIDES = 8
_RINGS = ((0.0, 0.0), (0.05, 1.0), (0.35, 1.0), (0.65, 1.0), (0.95, 1.0), (1.0, 0.0))  # shares of length and radius
_TUBE = len(_RINGS) * _SIDES  # vertices
_Point = tuple[float, float, float]
_Row = tuple[str, _Point, _Point, float, str]
# bone: parent, head, tail, radius, part class; one side only, the other is its mirror image
_MIDDLE: dict[str, _Row] = {
    "root": ("", (0, 0, 0.95), (0, 0, 1.1), 0.15, "Torso"),
    "spine01": ("root", (0, 0, 1.1), (0, 0, 1.42), 0.15, "Torso"),
    "neck01": ("spine01", (0, 0, 1.42), (0, 0, 1.5), 0.06, "Face_Neck"),
    "head": ("neck01", (0, 0, 1.5), (0, 0, 1.72), 0.09, "Face_Neck"),
}
_LEFT: dict[str, _Row] = {
    "upperarm01": ("spine01", (0.2, 0, 1.4), (0.4, 0, 1.2), 0.05, "Upper_Arm"),
    "lowerarm01": ("upperarm01", (0.4, 0, 1.2), (0.58, 0, 1.02), 0.04, "Lower_Arm"),
    "wrist": ("lowerarm01", (0.58, 0, 1.02), (0.68, 0, 0.92), 0.035, "Hand"),
    "upperleg01": ("root", (0.1, 0, 0.92), (0.11, 0, 0.5), 0.08, "Upper_Leg"),
    "lowerleg01": ("upperleg01", (0.11, 0, 0.5), (0.12, 0, 0.1), 0.06, "Lower_Leg"),
    "foot": ("lowerleg01", (0.12, 0, 0.08), (0.13, -0.17, 0.03), 0.04, "Foot"),
}


def procedural_pack(seed: int = 0) -> AssetPack:
    """Build a small pack of capsule people; `seed` varies their shapes and poses."""
    generator = np.random.default_rng(seed)
    names, parents, ends, radii, classes = _skeleton()
    vertices = np.concatenate([_tube(*bone) for bone in zip(ends, radii, strict=True)]).astype(np.float32)
    faces = np.concatenate([_tube_faces() + bone * _TUBE for bone in range(len(names))])
    bone_of_face = np.arange(len(faces)) * len(names) // len(faces)
    face_class = _add_lips(np.array(classes, np.int64)[bone_of_face], vertices, faces)
    weights = np.repeat(np.eye(len(names), dtype=np.float32), _TUBE, 0)  # [R, B]
    for bone, parent in enumerate(parents):
        if parent >= 0:  # the first two rings move half with the parent
            weights[bone * _TUBE : bone * _TUBE + 2 * _SIDES, [bone, parent]] = 0.5
    normals = mesh_normals(vertices, faces)
    identities = generator.normal(0, 1, (24, 3)).clip(-2, 2)
    traits = np.column_stack([np.arange(24) % 2, generator.uniform(0.35, 1.0, 24), *generator.uniform(0, 1, (2, 24))])
    jaw = np.zeros((1, *vertices.shape), np.float32)
    jaw[0, faces[face_class == PART_INDEX["Lower_Lip"]]] = (0, 0, -0.02)
    half = generator.uniform(-0.3, 0.3, (16, len(names), 1))
    axis = generator.normal(0, 1, (16, len(names), 3))
    rotations = np.concatenate([np.cos(half), np.sin(half) * axis / np.linalg.norm(axis, axis=-1, keepdims=True)], -1)
    body = {
        "template": vertices, "normals": normals, "vertex_mean": vertices, "vertex_basis": _shapes(vertices),
        "bone_mean": ends, "bone_basis": np.stack([_shapes(ends[:, k]) for k in range(2)], 2), "bone_names": names,
        "bone_parents": parents, "weights": weights, "identities": identities, "traits": traits,
        "expression_names": ("jawOpen",), "expressions": jaw,
        **keypoint_rules(vertices, ends, names, None, surface=len(vertices)),
    }  # fmt: skip
    poses = {
        "rotations": rotations, "rotated_bones": np.arange(len(names)), "finger_bones": np.zeros(0, np.int64),
        "finger_axes": np.zeros((0, 3)),
    }  # fmt: skip
    pieces = _pieces(vertices, normals, faces, face_class, np.array(names)[bone_of_face])
    return pack_from_arrays(pack_arrays(body, poses, pieces))


def _skeleton() -> tuple[tuple[str, ...], IntArray, FloatArray, list[float], list[int]]:
    """Bones: names, parents [B], ends [B, 2, 3], radii and part classes."""
    rows: list[tuple[str, str, _Point, _Point, float, str]] = [(name, *row) for name, row in _MIDDLE.items()]
    for side, word, sign in (("L", "Left", 1), ("R", "Right", -1)):
        for name, (parent, head, tail, radius, part) in _LEFT.items():
            above = parent if parent in _MIDDLE else f"{parent}.{side}"
            flipped = [(sign * x, y, z) for x, y, z in (head, tail)]
            rows.append((f"{name}.{side}", above, flipped[0], flipped[1], radius, f"{word}_{part}"))
    names = tuple(row[0] for row in rows)
    parents = np.array([names.index(row[1]) if row[1] else -1 for row in rows], np.int64)
    ends = np.array([[row[2], row[3]] for row in rows], np.float32)
    return names, parents, ends, [row[4] for row in rows], [PART_INDEX[row[5]] for row in rows]


def _tube(ends: FloatArray, radius: float) -> FloatArray:
    """Return a closed tube along a bone as rings of points, [48, 3]."""
    along = ends[1] - ends[0]
    across = np.cross(along, (0.0, 1.0, 0.0) if abs(along[1]) < 0.1 else (1.0, 0.0, 0.0))
    across /= np.linalg.norm(across)
    up = np.cross(across, along / np.linalg.norm(along))
    angle = np.arange(_SIDES) * 2 * np.pi / _SIDES
    ring = np.cos(angle)[:, None] * across + np.sin(angle)[:, None] * up
    return np.concatenate([ends[0] + share * along + width * radius * ring for share, width in _RINGS])


def _tube_faces() -> IntArray:
    """Return the triangles of a tube, [80, 3]."""
    row, side = (axis.ravel() for axis in np.meshgrid(np.arange(len(_RINGS) - 1), np.arange(_SIDES), indexing="ij"))
    a, b = row * _SIDES + side, row * _SIDES + (side + 1) % _SIDES
    corners = [a, a + _SIDES, b, b, a + _SIDES, b + _SIDES]
    return np.stack(corners, 1).reshape(-1, 3)


def _add_lips(face_class: IntArray, vertices: FloatArray, faces: IntArray) -> IntArray:
    """Label the two triangles in the middle of the face as lips."""
    middle = vertices[faces].mean(1)
    front = (face_class == PART_INDEX["Face_Neck"]) & (middle[:, 2] > 1.52) & (middle[:, 1] < -0.06)
    order = np.flatnonzero(front)[np.argsort(np.abs(middle[front, 2] - 1.57))]
    out = face_class.copy()
    upper, lower = sorted(order[:2], key=lambda face: -middle[face, 2])
    out[upper], out[lower] = PART_INDEX["Upper_Lip"], PART_INDEX["Lower_Lip"]
    return out


def _shapes(points: FloatArray) -> FloatArray:
    """Return three shape components of points [n, 3]: taller, wider, longer legs. [3, n, 3]."""
    x, y, z = points.T
    none = np.zeros_like(x)
    taller = np.stack([0.03 * x, 0.03 * y, 0.05 * z], 1)
    wider = np.stack([0.06 * x, 0.08 * y, none], 1)
    legs = np.stack([none, none, 0.04 * np.minimum(z, 0.95)], 1)
    return np.stack([taller, wider, legs]).astype(np.float32)


def _pieces(
    vertices: FloatArray, normals: FloatArray, faces: IntArray, face_class: IntArray, bones: np.ndarray
) -> list[Piece]:
    """Return the body and one or two pieces for each slot, most of them wider copies of its tubes."""
    uv = np.stack([vertices[:, 0] + 0.5, vertices[:, 2] / 2], -1)[faces].astype(np.float32)
    count = len(vertices)
    ids = np.repeat(np.arange(count)[:, None], 3, 1)
    weights = np.tile(np.array([1, 0, 0], np.float32), (count, 1))

    middle = vertices[faces].mean(1)

    def part(
        name: str, slot: str, keep: np.ndarray, out: float, kind: str, *, style: str = "", suits: int = 0
    ) -> Piece:
        left, right = (PART_INDEX[kind if kind in PART_INDEX else f"{side}_{kind}"] for side in ("Left", "Right"))
        copied = Piece(
            name=name, slot=slot, ids=ids, weights=weights, offsets=normals * out, faces=faces, uv=uv,
            face_class=np.where(middle[:, 0] > 0, left, right), face_part=np.zeros(len(faces), np.int64),
            hides=np.unique(faces[keep]), covers=np.unique(faces[keep]), style=style, suits=suits,
        )  # fmt: skip
        return keep_faces(copied, keep)

    def is_on(*prefixes: str) -> np.ndarray:
        return np.array([name.startswith(prefixes) for name in bones])

    height = middle[:, 2]
    face = is_on("head") & (middle[:, 1] < -0.05)
    mouth = np.isin(face_class, [PART_INDEX["Upper_Lip"], PART_INDEX["Lower_Lip"]])
    body = part("body", "body", np.ones(len(faces), bool), 0.0, "Torso")
    body = replace(body, face_class=face_class, hides=ids[:0, 0], covers=ids[:0, 0])
    return [
        body,
        part("tank", "upper", is_on("spine"), 0.012, "Upper_Clothing", style="top"),
        part("shirt", "upper", is_on("spine", "upperarm", "lowerarm"), 0.015, "Upper_Clothing", style="top"),
        part("dress", "upper", is_on("spine", "root", "upperleg"), 0.02, "Upper_Clothing", style="dress", suits=WOMEN),
        part("trousers", "lower", is_on("root", "upperleg", "lowerleg"), 0.012, "Lower_Clothing", style="long"),
        part("shorts", "lower", is_on("root", "upperleg"), 0.012, "Lower_Clothing", style="shorts"),
        part("trunks", "lower", is_on("root"), 0.01, "Lower_Clothing", style="swim", suits=MEN),
        part("coat", "outer", is_on("spine", "root", "upperarm"), 0.03, "Upper_Clothing", style="coat"),
        part("shoes", "shoes", is_on("foot"), 0.012, "Shoe"),
        part("socks", "shoes", is_on("foot") | (is_on("lowerleg") & (height < 0.3)), 0.006, "Sock", style="socks"),
        part("hair", "hair", is_on("head") & (height > 1.6), 0.01, "Hair"),
        part("brows", "brows", face & (height > 1.63) & (height < 1.68), 0.002, "Face_Neck"),
        part("lashes", "lashes", face & (height > 1.6) & (height < 1.66), 0.003, "Face_Neck"),
        part("teeth", "teeth", mouth, -0.004, "Upper_Teeth"),
        part("lower_teeth", "teeth", mouth, -0.004, "Lower_Teeth"),
        part("tongue", "tongue", mouth, -0.008, "Tongue"),
        part("hat", "hat", is_on("head") & (height > 1.65), 0.02, "Apparel", style="hat"),
        part("glasses", "glasses", face & (height > 1.58) & (height < 1.68), 0.02, "Eyeglass", style="glasses"),
        part("scarf", "accessory", is_on("neck"), 0.03, "Apparel", style="scarf"),
        part("watch", "trinket", is_on("wrist.L"), 0.008, "Apparel", style="watch"),
    ]  # fmt: skip
