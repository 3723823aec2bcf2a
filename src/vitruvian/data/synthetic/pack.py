"""The pack: one compact .npz with all that people are made of. Bodies, poses, garments and pictures, some 20 MB.

    parts (numpy) ──pack_arrays──▶ arrays ──save_pack──▶ file ──load_pack──▶ Pack (torch)

Positions are stored as float16 relative to a mean, indices in the smallest type that holds them, pictures as JPEG.
`build.py` makes the parts; nothing here needs anny or the assets folder.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.data.synthetic.background import load_scenery
from vitruvian.data.synthetic.people import KEYPOINTS, Body, Pack, Poses, Wardrobe
from vitruvian.data.synthetic.pictures import decode_textures, grey_twin, made_up_eye, made_up_fabrics, made_up_skins
from vitruvian.data.synthetic.pieces import SLOT, Floats, Ints, Piece, fit_piece
from vitruvian.data.synthetic.points import KeypointRules
from vitruvian.errors import CheckpointError, InputError

FORMAT = "vitruvian-people-1"
Arrays = dict[str, NDArray[Any]]
# Slots whose pictures also exist in grey, to be coloured freely.
COLOURED_SLOTS = ("lower", "upper", "outer", "shoes", "hair", "brows", "hat", "accessory")


@dataclass(frozen=True)
class PackParts:
    """What a pack is made from. R vertices, B bones, C coefficients, I identities, E expressions, N poses."""

    template: Floats  # [R, 3] the body that pieces were made for
    normals: Floats  # [R, 3], zero for helper vertices
    vertex_mean: Floats  # [R, 3]
    vertex_basis: Floats  # [C, R, 3]
    bone_mean: Floats  # [B, 2, 3]
    bone_basis: Floats  # [C, B, 2, 3]
    bone_names: tuple[str, ...]
    bone_parents: Ints  # [B]
    weights: Floats  # [R, B]
    identities: Floats  # [I, C]
    traits: Floats  # [I, 4]
    expression_names: tuple[str, ...]
    expressions: Floats  # [E, R, 3]
    keypoints: KeypointRules
    rotations: Floats  # [N, J, 4]
    rotated_bones: Ints  # [J]
    finger_bones: Ints  # [G]
    finger_axes: Floats  # [G, 3]
    pieces: list[Piece]  # the body first
    pictures: dict[str, dict[str, bytes]] = field(default_factory=dict)  # name -> rgb, maybe alpha
    skins: list[tuple[str, str, tuple[float, float, float]]] = field(default_factory=list)  # body, face, traits
    eyes: list[tuple[str, bool]] = field(default_factory=list)  # picture, whether it is brown
    scenery: Arrays = field(default_factory=dict)


def pack_arrays(parts: PackParts) -> Arrays:
    """Turn parts into the arrays of a pack; vertices that nothing uses are dropped."""
    pieces, keypoints = parts.pieces, parts.keypoints
    if not pieces or pieces[0].slot != "body":
        raise InputError("parts of a pack: expected the body as the first piece, got another. Put the body first.")
    used = np.unique(np.concatenate([
        *(piece.ids.ravel() for piece in pieces), *(piece.scale_ids.ravel() for piece in pieces),
        keypoints.vertices[keypoints.weights != 0],
    ]))  # fmt: skip
    place = np.zeros(len(parts.template), np.int64)
    place[used] = np.arange(len(used))
    strongest = min(8, parts.weights.shape[1])
    bones = np.argsort(-parts.weights[used], axis=1)[:, :strongest]
    moving = np.zeros(0, np.int64)
    if len(parts.expressions):
        moving = np.flatnonzero(np.abs(parts.expressions[:, used]).max((0, 2)) > 2e-5)
    counts = np.array([[len(piece.ids), len(piece.faces)] for piece in pieces], np.int64)
    textures = list(parts.pictures)
    number = {name: index for index, name in enumerate(textures)}
    most = max((len(piece.textures) for piece in pieces), default=0)
    piece_textures = np.full((len(pieces), max(most, 1)), -1, np.int16)
    for row, piece in enumerate(pieces):
        piece_textures[row, : len(piece.textures)] = [number[name] for name in piece.textures]
    meta = {
        "format": FORMAT, "bone_names": parts.bone_names, "bone_parents": [int(b) for b in parts.bone_parents],
        "expression_names": parts.expression_names, "piece_names": [piece.name for piece in pieces],
        "piece_styles": [piece.style for piece in pieces], "textures": textures,
        "skins": [[number[body], number[face], *traits] for body, face, traits in parts.skins],
        "eyes": [[number[name], brown] for name, brown in parts.eyes],
    }  # fmt: skip
    return {
        "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8),
        "vertex_mean": parts.vertex_mean[used].astype(np.float32),
        "vertex_basis": parts.vertex_basis[:, used].astype(np.float16),
        "normals": parts.normals[used].astype(np.float16),
        "bone_mean": parts.bone_mean.astype(np.float32),
        "bone_basis": parts.bone_basis.astype(np.float16),
        "weight_bones": bones.astype(np.uint8),
        "weight_values": np.take_along_axis(parts.weights[used], bones, 1).astype(np.float16),
        "identities": parts.identities.astype(np.float16),
        "traits": parts.traits.astype(np.float16),
        "expression_vertices": np.asarray(moving, np.uint16),
        "expressions": (parts.expressions[:, used][:, moving] * 1e3).astype(np.float16),  # mm: small float16 are coarse
        "keypoint_vertices": place[keypoints.vertices].astype(np.uint16),
        "keypoint_weights": keypoints.weights.astype(np.float32),
        "keypoint_bone": keypoints.bone.astype(np.int16),
        "keypoint_end": keypoints.end.astype(np.uint8),
        "keypoint_known": keypoints.known,
        "keypoint_depth": keypoints.depth.astype(np.float32),
        "rotations": parts.rotations.astype(np.float16),
        "rotated_bones": parts.rotated_bones.astype(np.uint8),
        "finger_bones": parts.finger_bones.astype(np.uint8),
        "finger_axes": parts.finger_axes.astype(np.float32),
        "piece_slot": np.array([SLOT[piece.slot] for piece in pieces], np.uint8),
        "piece_suits": np.array([piece.suits for piece in pieces], np.uint8),
        "piece_counts": counts,
        "piece_scale_ids": place[np.stack([piece.scale_ids for piece in pieces])].astype(np.uint16),
        "piece_scale_base": np.stack([piece.scale_base for piece in pieces]).astype(np.float32),
        "piece_textures": piece_textures,
        "covers": _bits([piece.covers for piece in pieces], used, len(place)),
        "hides": _bits([piece.hides for piece in pieces], used, len(place)),
        "vertex_ids": place[np.concatenate([piece.ids for piece in pieces])].astype(np.uint16),
        "vertex_weights": np.concatenate([piece.weights for piece in pieces]).astype(np.float16),
        "vertex_offsets": (np.concatenate([piece.offsets for piece in pieces]) * 1e2).astype(np.float16),  # cm
        "vertex_anchor": _anchors(parts, used).astype(np.uint16),
        "faces": np.concatenate([piece.faces for piece in pieces]).astype(np.uint16),
        "face_uv": np.concatenate([piece.uv for piece in pieces]).astype(np.float16),
        "face_class": np.concatenate([piece.face_class for piece in pieces]).astype(np.uint8),
        "face_part": np.concatenate([piece.face_part for piece in pieces]).astype(np.uint8),
        **_joined("rgb", [picture["rgb"] for picture in parts.pictures.values()]),
        **_joined("alpha", [picture.get("alpha", b"") for picture in parts.pictures.values()]),
        **parts.scenery,
    }  # fmt: skip


def _bits(sets: list[Ints], used: Ints, count: int) -> NDArray[np.uint8]:
    """Sets of vertices as bits [A, ceil(R / 8)]."""
    mask = np.zeros((len(sets), count), bool)
    for row, members in enumerate(sets):
        mask[row, members] = True
    return np.packbits(mask[:, used], axis=1)


def _anchors(parts: PackParts, used: Ints) -> Ints:
    """For every vertex of every piece the nearest vertex of the drawn body, as a place in `used`: [n]."""
    body = used[np.abs(parts.normals[used]).sum(1) > 0]
    spot = torch.from_numpy(parts.template[body].astype(np.float32))
    placed = torch.from_numpy(np.concatenate([fit_piece(piece, parts.template) for piece in parts.pieces]))
    nearest = torch.cat([torch.cdist(part, spot).argmin(1) for part in torch.split(placed.float(), 4096)])
    return np.asarray(np.searchsorted(used, body[nearest.numpy()]))


def _joined(name: str, blobs: list[bytes]) -> Arrays:
    joined = np.frombuffer(b"".join(blobs), np.uint8)
    return {f"{name}_bytes": joined, f"{name}_ends": np.cumsum([len(blob) for blob in blobs], dtype=np.int64)}


def _parted(name: str, arrays: Mapping[str, NDArray[Any]]) -> list[bytes]:
    ends = [0, *arrays[f"{name}_ends"].tolist()]
    return [arrays[f"{name}_bytes"][a:b].tobytes() for a, b in itertools.pairwise(ends)]


def save_pack(arrays: Arrays, path: str | Path) -> Path:
    """Write the arrays of a pack and return where."""
    path = Path(path)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


def load_pack(path: str | Path, device: torch.device | str = "cpu") -> Pack:
    """Open a pack that `save_pack` or `build_pack` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"pack {path}: expected an .npz file, got {error}. Build the pack again.") from error
    return open_arrays(arrays).to(device)


def open_arrays(arrays: Mapping[str, NDArray[Any]]) -> Pack:
    """Turn the arrays of a pack into tensors, and add grey twins, cloth and, where there are none, skins and eyes."""
    try:
        meta = json.loads(bytes(arrays["meta"]).decode())
        written = meta["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            "pack: expected a pack of synthetic people, got another file. Build the pack again."
        ) from error
    if written != FORMAT:
        raise CheckpointError(f"pack: expected the format {FORMAT}, got {written}. Build the pack again.")
    textures, cutout = [decode_textures(_parted("rgb", arrays), _parted("alpha", arrays))], []
    cutout = [bool(blob) for blob in _parted("alpha", arrays)]
    wardrobe = _wardrobe(arrays, meta)
    coloured = torch.isin(wardrobe.slot, torch.tensor([SLOT[name] for name in COLOURED_SLOTS]))
    grey_of = torch.full((len(textures[0]),), -1)
    for index in sorted(set(wardrobe.textures[coloured].flatten().tolist())):
        if index >= 0:
            grey_of[index] = len(cutout)
            textures.append(grey_twin(textures[0][index])[None])
            cutout.append(cutout[index])
    fabrics = len(cutout) + torch.arange(3)
    textures.append(made_up_fabrics())
    skins = torch.tensor(meta["skins"], dtype=torch.float32).reshape(-1, 5)
    eyes = torch.tensor(meta["eyes"], dtype=torch.int64).reshape(-1, 2)
    if not len(skins):
        first = len(cutout) + 3
        rows = [[first + k, first + k, gender, 0.5, k / 2] for k in range(3) for gender in (0.0, 1.0)]
        skins, eyes = torch.tensor(rows), torch.tensor([[first + 3, 1]])
        textures += [made_up_skins(), made_up_eye()[None]]
    stacked = torch.cat(textures)
    total = len(stacked)
    scenery = load_scenery(arrays)
    return Pack(
        body=_body(arrays, meta), poses=_poses(arrays), wardrobe=wardrobe, textures=stacked,
        cutout=torch.tensor(cutout + [False] * (total - len(cutout)), dtype=torch.bool),
        grey_of=torch.cat([grey_of, torch.full((total - len(grey_of),), -1)]), fabrics=fabrics,
        skins=skins[:, :2].long(), skin_traits=skins[:, 2:].contiguous(),
        eyes=eyes[:, 0].contiguous(), eyes_brown=eyes[:, 1] > 0,
        environments=scenery.environments, backgrounds=scenery.backgrounds,
    )  # fmt: skip


def _floats(arrays: Mapping[str, NDArray[Any]], name: str, unit: float = 1.0) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(arrays[name], np.float32) * np.float32(unit))


def _ints(arrays: Mapping[str, NDArray[Any]], name: str) -> Tensor:
    return torch.from_numpy(arrays[name].astype(np.int64))


def _body(arrays: Mapping[str, NDArray[Any]], meta: dict[str, Any]) -> Body:
    values = _floats(arrays, "weight_values")
    weights = torch.zeros(len(values), len(meta["bone_names"])).scatter_(1, _ints(arrays, "weight_bones"), values)
    known = torch.from_numpy(arrays["keypoint_known"])
    if known.shape != (KEYPOINTS,):
        raise CheckpointError(f"pack: expected {KEYPOINTS} keypoints, got {len(known)}. Build the pack again.")
    return Body(
        vertex_mean=_floats(arrays, "vertex_mean"), vertex_basis=_floats(arrays, "vertex_basis"),
        normals=_floats(arrays, "normals"), bone_mean=_floats(arrays, "bone_mean"),
        bone_basis=_floats(arrays, "bone_basis"), bone_names=tuple(meta["bone_names"]),
        bone_parents=tuple(meta["bone_parents"]), weights=weights / weights.sum(1, keepdim=True),
        identities=_floats(arrays, "identities"), traits=_floats(arrays, "traits"),
        expression_names=tuple(meta["expression_names"]), expression_vertices=_ints(arrays, "expression_vertices"),
        expressions=_floats(arrays, "expressions", 1e-3), keypoint_vertices=_ints(arrays, "keypoint_vertices"),
        keypoint_weights=_floats(arrays, "keypoint_weights"), keypoint_bone=_ints(arrays, "keypoint_bone"),
        keypoint_end=_ints(arrays, "keypoint_end"), keypoint_known=known,
        keypoint_depth=_floats(arrays, "keypoint_depth"),
    )  # fmt: skip


def _poses(arrays: Mapping[str, NDArray[Any]]) -> Poses:
    return Poses(
        rotations=torch.nn.functional.normalize(_floats(arrays, "rotations"), dim=-1),
        bones=_ints(arrays, "rotated_bones"), finger_bones=_ints(arrays, "finger_bones"),
        finger_axes=torch.nn.functional.normalize(_floats(arrays, "finger_axes"), dim=-1),
    )  # fmt: skip


def _wardrobe(arrays: Mapping[str, NDArray[Any]], meta: dict[str, Any]) -> Wardrobe:
    counts = torch.from_numpy(arrays["piece_counts"])
    starts = counts.cumsum(0) - counts
    R = len(arrays["vertex_mean"])

    def mask(name: str) -> Tensor:
        return torch.from_numpy(np.unpackbits(arrays[name], axis=1, count=R).astype(bool))

    return Wardrobe(
        names=tuple(meta["piece_names"]), styles=tuple(meta["piece_styles"]), slot=_ints(arrays, "piece_slot"),
        suits=_ints(arrays, "piece_suits"), vertex_start=starts[:, 0], vertex_count=counts[:, 0],
        face_start=starts[:, 1], face_count=counts[:, 1], scale_ids=_ints(arrays, "piece_scale_ids"),
        scale_base=_floats(arrays, "piece_scale_base"), covers=mask("covers"), hides=mask("hides"),
        textures=_ints(arrays, "piece_textures"), vertex_ids=_ints(arrays, "vertex_ids"),
        vertex_weights=_floats(arrays, "vertex_weights"), vertex_offsets=_floats(arrays, "vertex_offsets", 1e-2),
        vertex_anchor=_ints(arrays, "vertex_anchor"), faces=_ints(arrays, "faces"),
        face_uv=_floats(arrays, "face_uv"), face_class=torch.from_numpy(arrays["face_class"]),
        face_part=_ints(arrays, "face_part"),
    )  # fmt: skip
