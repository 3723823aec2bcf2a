"""The pack: one compact .npz of some 20 MB with everything that people are made from.

    body, poses, pieces (numpy) ──pack_arrays──▶ arrays ──save_pack──▶ file ──load_pack──▶ AssetPack (torch)

Positions are stored as float16 relative to a mean, indices in the smallest type that holds them, images as JPEG.
`recipes/build_people_assets` and `procedural_pack` make packs. Letters: R body vertices, B bones, C shape
coefficients, I identities, E expressions, A pieces.
"""

from __future__ import annotations

import io
import itertools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import CheckpointError, InputError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.human import KEYPOINT_NAMES
from vitruvian.images.types import BoolArray, IntArray
from vitruvian.training.synthetic.textures import (
    decode_textures,
    gray_copy,
    procedural_eye,
    procedural_fabrics,
    procedural_skins,
)
from vitruvian.training.tensor_batch import TensorBatch

FloatArray = NDArray[np.floating[Any]]

# A person wears at most one piece for each slot.
SLOTS = (
    "body", "lower", "upper", "outer", "shoes", "hair", "brows", "lashes", "teeth", "tongue", "hat", "glasses",
    "accessory", "trinket",
)  # fmt: skip
SLOT = {name: index for index, name in enumerate(SLOTS)}
# Material = slot * MATERIALS_PER_SLOT + part. Body: skin, face, eyes. Shoes: shoe, sock. Glasses: frame, lens.
MATERIALS_PER_SLOT = 3
ANYONE, MEN, WOMEN = 0, 1, 2  # whom a piece suits


@dataclass(frozen=True)
class Piece:
    """A mesh bound to the body: what a person consists of and wears. Axes in meters, z up, front is -y.

    Every vertex is bound to three vertices of the body, position = weighted sum + offset x scale: a piece fits every
    body and moves with it. The body is itself a piece. Letters: n vertices, f triangles, R body vertices.
    """

    name: str
    slot: str
    ids: IntArray  # [n, 3] body vertices
    weights: FloatArray  # [n, 3]
    offsets: FloatArray  # [n, 3] meters
    faces: IntArray  # [f, 3]
    uv: FloatArray  # [f, 3, 2], v upwards
    face_class: IntArray  # [f]
    face_part: IntArray  # [f] 0 .. MATERIALS_PER_SLOT - 1
    scale_ids: IntArray = field(default_factory=lambda: np.zeros((3, 2), np.int64))  # [3, 2] a, b for x, y, z
    scale_base: FloatArray = field(
        default_factory=lambda: np.zeros(3, np.float32)
    )  # [3] meters |a - b|; 0: do not scale
    hides: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))  # body vertices that need not be rendered
    covers: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))  # all body vertices beneath it
    textures: tuple[str, ...] = ()  # names of alternative textures
    suits: int = ANYONE
    style: str = ""  # read by `clothing.py`: "dress", "coat", "shorts", "tight" …


Arrays = dict[str, NDArray[Any]]
NUM_KEYPOINTS = len(KEYPOINT_NAMES)
_FORMAT = "vitruvian-people-1"
# Slots whose textures also exist in gray, to be tinted freely.
_TINTED_SLOTS = ("lower", "upper", "outer", "shoes", "hair", "brows", "hat", "accessory")
BACKGROUND_SIDE = 320  # pixels: short side of a stored background, and side of the squares that are loaded


@dataclass(frozen=True)
class Body(TensorBatch):
    """The body that all people share, and how it differs between them.

    A person is a vector of coefficients c: rest vertices = mean + basis · c, and likewise the heads and tails of bones.
    R has, beside the visible body, the helper vertices that garments are bound to.
    """

    vertex_mean: Tensor  # [R, 3] float32
    vertex_basis: Tensor  # [C, R, 3]
    normals: Tensor  # [R, 3] of the average adult
    bone_mean: Tensor  # [B, 2, 3]: head, tail
    bone_basis: Tensor  # [C, B, 2, 3]
    bone_names: tuple[str, ...]
    bone_parents: tuple[int, ...]  # -1: root, which comes first; parents come before their children
    weights: Tensor  # [R, B], rows sum to 1
    identities: Tensor  # [I, C]
    traits: Tensor  # [I, 4]: gender (0 male .. 1 female), age (0.33 child, 0.67 young adult, 1 old), muscle, weight
    expression_names: tuple[str, ...]
    expression_vertices: Tensor  # [H] int64: the vertices of the face
    expressions: Tensor  # [E, H, 3]: displacement at full strength
    keypoint_vertices: Tensor  # [308, W] int64
    keypoint_weights: Tensor  # [308, W]; all zero where the point is a bone's end
    keypoint_bone: Tensor  # [308] int64; -1: not a bone's end
    keypoint_end: Tensor  # [308] int64: 0 head, 1 tail
    keypoint_known: Tensor  # [308] bool
    keypoint_depth: Tensor  # [308] as a share of the stature


@dataclass(frozen=True)
class Poses(TensorBatch):
    """Recorded poses: rotations relative to the parent bone, in the axes of the rest pose (w, x, y, z)."""

    rotations: Tensor  # [N, J, 4] float32
    bones: Tensor  # [J] int64: the bones that rotate; the others follow their parent
    finger_bones: Tensor  # [G] int64
    finger_axes: Tensor  # [G, 3]: a positive rotation about it bends the finger


@dataclass(frozen=True)
class Wardrobe(TensorBatch):
    """The pieces that people wear. Piece 0 is the body.

    A is the number of pieces, K of textures that a piece can have, R of the vertices of `Body`. The n vertices and f
    triangles of all pieces are stored one piece after the other.
    """

    names: tuple[str, ...]  # A
    styles: tuple[str, ...]  # A
    slot: Tensor  # [A] int64
    suits: Tensor  # [A] int64: 0 anyone, 1 men, 2 women
    vertex_start: Tensor  # [A] int64
    vertex_count: Tensor  # [A] int64
    face_start: Tensor  # [A] int64
    face_count: Tensor  # [A] int64
    scale_ids: Tensor  # [A, 3, 2] int64: offsets grow along x, y, z with the distance of these body vertices
    scale_base: Tensor  # [A, 3]: that distance where the factor is 1; 0: no scaling
    covers: Tensor  # [A, R] bool: body vertices beneath the piece
    hides: Tensor  # [A, R] bool: those so far beneath that they need not be rendered
    textures: Tensor  # [A, K] int64 into AssetPack.textures; -1: none
    vertex_ids: Tensor  # [n, 3] int64 into R
    vertex_weights: Tensor  # [n, 3]
    vertex_offsets: Tensor  # [n, 3] meters
    vertex_anchor: Tensor  # [n] int64: nearest body vertex, whose normal and cover apply to this one
    faces: Tensor  # [f, 3] int64, from 0 in each piece
    face_uv: Tensor  # [f, 3, 2]
    face_class: Tensor  # [f] uint8
    face_part: Tensor  # [f] int64


@dataclass(frozen=True)
class Scenery(TensorBatch):
    """Light probes and images without people; both may be empty."""

    environments: Tensor  # [E, 64, 128, 3] float32 linear, row 0 is straight up
    backgrounds: Tensor  # [G, S, S, 3] uint8 sRGB

    @classmethod
    def empty(cls) -> Scenery:
        """Return a scenery without probes and images: backgrounds and light are procedural."""
        side = BACKGROUND_SIDE
        return cls(torch.zeros(0, 64, 128, 3), torch.zeros(0, side, side, 3, dtype=torch.uint8))


@dataclass(frozen=True)
class AssetPack(TensorBatch):
    """Everything that people are made from. Each texture of cloth or hair has a gray copy, which a tint colors."""

    body: Body
    poses: Poses
    wardrobe: Wardrobe
    textures: Tensor  # [T, 512, 512, 4] uint8, sRGB + alpha
    cutout: Tensor  # [T] bool: alpha has holes
    gray_of: Tensor  # [T] int64: the gray copy; -1: none
    fabrics: Tensor  # [Y] int64 into textures: plain cloth, gray
    skins: Tensor  # [S, 2] int64 into textures: of the body, of the face
    skin_traits: Tensor  # [S, 3]: gender (0 male, 1 female), age (0 young .. 1 old), tone (0 light .. 1 dark)
    eyes: Tensor  # [Z] int64 into textures
    eyes_brown: Tensor  # [Z] bool
    scenery: Scenery


def fit_piece(piece: Piece, body: FloatArray) -> FloatArray:
    """Place the vertices of a piece on one body: [R, 3] -> [n, 3]."""
    span = np.diagonal(np.abs(body[piece.scale_ids[:, 0]] - body[piece.scale_ids[:, 1]]))  # [3]
    scale = np.where(piece.scale_base > 0, span / np.maximum(piece.scale_base, 1e-6), 1.0)
    placed = (body[piece.ids] * piece.weights[..., None]).sum(1) + piece.offsets * scale  # [n, 3]
    return np.asarray(placed, np.float32)


def keep_faces(piece: Piece, keep: BoolArray) -> Piece:
    """Return a piece with the faces in `keep` [f] only, without unused vertices."""
    used, faces = np.unique(piece.faces[keep], return_inverse=True)
    return replace(
        piece, ids=piece.ids[used], weights=piece.weights[used], offsets=piece.offsets[used],
        faces=faces.reshape(-1, 3), uv=piece.uv[keep], face_class=piece.face_class[keep],
        face_part=piece.face_part[keep],
    )  # fmt: skip


def mesh_normals(vertices: FloatArray, faces: IntArray) -> FloatArray:
    """Return unit normals [n, 3] of a triangle mesh [n, 3], [f, 3], weighted by area; zero where no face touches."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    normals = np.zeros_like(vertices)
    np.add.at(normals, faces, np.cross(b - a, c - a)[:, None])
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12), np.float32)


# ------------------------------------------------------------------------------------------------------- writing


# Arrays that are stored as they are, by their type.
_AS_IS: dict[type[np.generic], tuple[str, ...]] = {
    np.float16: ("bone_basis", "identities", "traits", "rotations"),
    np.float32: ("bone_mean", "keypoint_weights", "keypoint_depth", "finger_axes"),
    np.int16: ("keypoint_bone",),
    np.uint8: ("keypoint_end", "rotated_bones", "finger_bones"),
    np.bool_: ("keypoint_known",),
}


@dataclass(frozen=True)
class AssetImages:
    """The images of a pack; all may be empty."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)  # name -> rgb, maybe alpha
    skins: list[tuple[str, str, tuple[float, float, float]]] = field(default_factory=list)  # body, face, traits
    eyes: list[tuple[str, bool]] = field(default_factory=list)  # name, whether it is brown
    scenery: Arrays = field(default_factory=dict)


def pack_arrays(
    body: Mapping[str, Any], poses: Arrays, pieces: list[Piece], images: AssetImages | None = None
) -> Arrays:
    """Return the arrays of a pack; unused vertices are dropped.

    `body` and `poses` hold numpy arrays under the names of `Body` and `Poses` (`rotated_bones` for its bones).
    `body` also has the `template` [R, 3] that `pieces` were made for, and all R vertices: normals are zero for helper
    vertices, `weights` is [R, B] and `expressions` [E, R, 3]. The first piece is the body.
    """
    if not pieces or pieces[0].slot != "body":
        raise InputError("pieces of a pack: expected the body as the first piece, got another. Put the body first.")
    images = images or AssetImages()
    weights, expressions = body["weights"], body["expressions"]
    used = np.unique(np.concatenate([
        *(piece.ids.ravel() for piece in pieces), *(piece.scale_ids.ravel() for piece in pieces),
        body["keypoint_vertices"][body["keypoint_weights"] != 0],
    ]))  # fmt: skip
    index = np.zeros(len(body["template"]), np.int64)
    index[used] = np.arange(len(used))
    bones = np.argsort(-weights[used], axis=1)[:, : min(8, weights.shape[1])]
    moving = np.zeros(0, np.int64)
    if len(expressions):
        moving = np.flatnonzero(np.abs(expressions[:, used]).max((0, 2)) > 2e-5)
    number = {name: row for row, name in enumerate(images.files)}
    piece_textures = np.full((len(pieces), max(1, *(len(piece.textures) for piece in pieces))), -1, np.int16)
    for row, piece in enumerate(pieces):
        piece_textures[row, : len(piece.textures)] = [number[name] for name in piece.textures]
    meta = {
        "format": _FORMAT, "bone_names": body["bone_names"], "bone_parents": [int(b) for b in body["bone_parents"]],
        "expression_names": body["expression_names"], "piece_names": [piece.name for piece in pieces],
        "piece_styles": [piece.style for piece in pieces], "textures": list(images.files),
        "skins": [[number[skin], number[face], *traits] for skin, face, traits in images.skins],
        "eyes": [[number[name], brown] for name, brown in images.eyes],
    }  # fmt: skip

    def joined(name: str) -> FloatArray:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    return {
        "meta": np.frombuffer(json.dumps(meta).encode(), np.uint8),
        "vertex_mean": body["vertex_mean"][used].astype(np.float32),
        "vertex_basis": body["vertex_basis"][:, used].astype(np.float16),
        "normals": body["normals"][used].astype(np.float16),
        "weight_bones": bones.astype(np.uint8),
        "weight_values": np.take_along_axis(weights[used], bones, 1).astype(np.float16),
        "expression_vertices": np.asarray(moving, np.uint16),
        "expressions": (expressions[:, used][:, moving] * 1e3).astype(np.float16),  # mm: small float16 are coarse
        "keypoint_vertices": index[body["keypoint_vertices"]].astype(np.uint16),
        **{name: {**body, **poses}[name].astype(kind) for kind, names in _AS_IS.items() for name in names},
        "piece_slot": np.array([SLOT[piece.slot] for piece in pieces], np.uint8),
        "piece_suits": np.array([piece.suits for piece in pieces], np.uint8),
        "piece_counts": np.array([[len(piece.ids), len(piece.faces)] for piece in pieces], np.int64),
        "piece_scale_ids": index[np.stack([piece.scale_ids for piece in pieces])].astype(np.uint16),
        "piece_scale_base": np.stack([piece.scale_base for piece in pieces]).astype(np.float32),
        "piece_textures": piece_textures,
        "covers": _bits([piece.covers for piece in pieces], used, len(index)),
        "hides": _bits([piece.hides for piece in pieces], used, len(index)),
        "vertex_ids": index[joined("ids")].astype(np.uint16),
        "vertex_weights": joined("weights").astype(np.float16),
        "vertex_offsets": (joined("offsets") * 1e2).astype(np.float16),  # cm
        "vertex_anchor": _anchors(body, pieces, used).astype(np.uint16),
        "faces": joined("faces").astype(np.uint16),
        "face_uv": joined("uv").astype(np.float16),
        "face_class": joined("face_class").astype(np.uint8),
        "face_part": joined("face_part").astype(np.uint8),
        **join_blobs("rgb_bytes", "rgb_ends", [image["rgb"] for image in images.files.values()]),
        **join_blobs("alpha_bytes", "alpha_ends", [image.get("alpha", b"") for image in images.files.values()]),
        **images.scenery,
    }


def _bits(sets: list[IntArray], used: IntArray, count: int) -> NDArray[np.uint8]:
    """Return sets of vertices as bits [A, ceil(R / 8)]."""
    mask = np.zeros((len(sets), count), bool)
    for row, members in enumerate(sets):
        mask[row, members] = True
    return np.packbits(mask[:, used], axis=1)


def _anchors(body: Mapping[str, Any], pieces: list[Piece], used: IntArray) -> IntArray:
    """Return the nearest visible body vertex of every piece's vertex, as an index into `used`: [n]."""
    template: FloatArray = body["template"]
    visible = used[np.abs(body["normals"][used]).sum(1) > 0]
    targets = torch.from_numpy(template[visible].astype(np.float32))
    placed = torch.from_numpy(np.concatenate([fit_piece(piece, template) for piece in pieces]))
    nearest = torch.cat([torch.cdist(part, targets).argmin(1) for part in torch.split(placed.float(), 4096)])
    return np.asarray(np.searchsorted(used, visible[nearest.numpy()]))


def join_blobs(name: str, ends_name: str, blobs: list[bytes]) -> Arrays:
    """Return files as one array of bytes and the positions at which they end, under two names."""
    ends = np.cumsum([len(blob) for blob in blobs], dtype=np.int64)
    return {name: np.frombuffer(b"".join(blobs), np.uint8), ends_name: ends}


def _split_blobs(data: NDArray[np.uint8], ends: IntArray) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in itertools.pairwise([0, *ends.tolist()])]


def save_pack(arrays: Arrays, path: str | Path) -> Path:
    """Write the arrays of a pack and return the path."""
    path = Path(path)
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    return path


# ------------------------------------------------------------------------------------------------------- reading


def load_pack(path: str | Path, device: torch.device | str = "cpu") -> AssetPack:
    """Open a pack that `save_pack` wrote."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"pack {path}: expected an .npz file, got {error}. Build the pack again.") from error
    return pack_from_arrays(arrays).to(device)


def pack_from_arrays(arrays: Arrays) -> AssetPack:
    """Turn the arrays of a pack into tensors; add gray copies, cloth and, where there are none, skins and eyes."""
    try:
        meta = json.loads(bytes(arrays["meta"]).decode())
        written = meta["format"]
    except (KeyError, ValueError, TypeError) as error:
        raise CheckpointError(
            "pack: expected a pack of synthetic people, got another file. Build the pack again."
        ) from error
    if written != _FORMAT:
        raise CheckpointError(f"pack: expected the format {_FORMAT}, got {written}. Build the pack again.")
    rgb, alpha = (_split_blobs(arrays[f"{name}_bytes"], arrays[f"{name}_ends"]) for name in ("rgb", "alpha"))
    textures, cutout = [decode_textures(rgb, alpha)], [bool(blob) for blob in alpha]
    wardrobe = _read_wardrobe(arrays, meta)
    tinted = torch.isin(wardrobe.slot, torch.tensor([SLOT[name] for name in _TINTED_SLOTS]))
    gray_of = torch.full((len(rgb),), -1)
    for index in sorted(set(wardrobe.textures[tinted].flatten().tolist()) - {-1}):
        gray_of[index] = len(cutout)
        textures.append(gray_copy(textures[0][index])[None])
        cutout.append(cutout[index])
    fabrics = len(cutout) + torch.arange(3)
    textures.append(procedural_fabrics())
    skins = torch.tensor(meta["skins"], dtype=torch.float32).reshape(-1, 5)
    eyes = torch.tensor(meta["eyes"], dtype=torch.int64).reshape(-1, 2)
    if not len(skins):
        first = len(cutout) + 3
        rows = [[first + k, first + k, gender, 0.5, k / 2] for k in range(3) for gender in (0.0, 1.0)]
        skins, eyes = torch.tensor(rows), torch.tensor([[first + 3, 1]])
        textures += [procedural_skins(), procedural_eye()[None]]
    stacked = torch.cat(textures)
    missing = len(stacked) - len(cutout)
    return AssetPack(
        body=_read_body(arrays, meta), poses=_read_poses(arrays), wardrobe=wardrobe, textures=stacked,
        cutout=torch.tensor(cutout + [False] * missing, dtype=torch.bool),
        gray_of=F.pad(gray_of, (0, len(stacked) - len(gray_of)), value=-1), fabrics=fabrics,
        skins=skins[:, :2].long(), skin_traits=skins[:, 2:].contiguous(),
        eyes=eyes[:, 0].contiguous(), eyes_brown=eyes[:, 1] > 0, scenery=_read_scenery(arrays),
    )  # fmt: skip


def _floats(arrays: Arrays, name: str, unit: float = 1.0) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(arrays[name], np.float32) * np.float32(unit))


def _ints(arrays: Arrays, name: str) -> Tensor:
    return torch.from_numpy(arrays[name].astype(np.int64))


def _read_body(arrays: Arrays, meta: JsonObject) -> Body:
    values = _floats(arrays, "weight_values")
    weights = torch.zeros(len(values), len(meta["bone_names"])).scatter_(1, _ints(arrays, "weight_bones"), values)
    known = torch.from_numpy(arrays["keypoint_known"])
    if known.shape != (NUM_KEYPOINTS,):
        raise CheckpointError(f"pack: expected {NUM_KEYPOINTS} keypoints, got {len(known)}. Build the pack again.")
    names = ("vertex_mean", "vertex_basis", "normals", "bone_mean", "bone_basis", "identities", "traits",
             "keypoint_weights", "keypoint_depth")  # fmt: skip
    indices = ("expression_vertices", "keypoint_vertices", "keypoint_bone", "keypoint_end")
    return Body(
        **{name: _floats(arrays, name) for name in names}, **{name: _ints(arrays, name) for name in indices},
        bone_names=tuple(meta["bone_names"]), bone_parents=tuple(meta["bone_parents"]),
        weights=weights / weights.sum(1, keepdim=True), expression_names=tuple(meta["expression_names"]),
        expressions=_floats(arrays, "expressions", 1e-3), keypoint_known=known,
    )  # fmt: skip


def _read_poses(arrays: Arrays) -> Poses:
    return Poses(
        rotations=F.normalize(_floats(arrays, "rotations"), dim=-1),
        bones=_ints(arrays, "rotated_bones"), finger_bones=_ints(arrays, "finger_bones"),
        finger_axes=F.normalize(_floats(arrays, "finger_axes"), dim=-1),
    )  # fmt: skip


def _read_wardrobe(arrays: Arrays, meta: JsonObject) -> Wardrobe:
    counts = torch.from_numpy(arrays["piece_counts"])
    starts = counts.cumsum(0) - counts
    masks = {
        name: torch.from_numpy(np.unpackbits(arrays[name], axis=1, count=len(arrays["vertex_mean"])).astype(bool))
        for name in ("covers", "hides")
    }
    indices = {name: _ints(arrays, name) for name in ("vertex_ids", "vertex_anchor", "faces", "face_part")}
    return Wardrobe(
        names=tuple(meta["piece_names"]), styles=tuple(meta["piece_styles"]), slot=_ints(arrays, "piece_slot"),
        suits=_ints(arrays, "piece_suits"), vertex_start=starts[:, 0], vertex_count=counts[:, 0],
        face_start=starts[:, 1], face_count=counts[:, 1], scale_ids=_ints(arrays, "piece_scale_ids"),
        scale_base=_floats(arrays, "piece_scale_base"), textures=_ints(arrays, "piece_textures"),
        vertex_weights=_floats(arrays, "vertex_weights"), vertex_offsets=_floats(arrays, "vertex_offsets", 1e-2),
        face_uv=_floats(arrays, "face_uv"), face_class=torch.from_numpy(arrays["face_class"]), **masks, **indices,
    )  # fmt: skip


def _read_scenery(arrays: Arrays) -> Scenery:
    """Return the scenery of a pack, empty where it has none; an image gives two squares, its start and end."""
    if "scenery/environments" not in arrays:
        return Scenery.empty()
    environments = torch.from_numpy(arrays["scenery/environments"].astype(np.float32))
    squares: list[np.ndarray] = []
    for blob in _split_blobs(arrays["scenery/jpeg"], arrays["scenery/jpeg_ends"]):
        with Image.open(io.BytesIO(blob)) as opened:
            image = opened.convert("RGB")
        side = min(image.size)
        for left, top in ((0, 0), (image.width - side, image.height - side)):
            square = image.crop((left, top, left + side, top + side))
            squares.append(np.asarray(square.resize((BACKGROUND_SIDE,) * 2, Image.Resampling.LANCZOS)))
    backgrounds = torch.from_numpy(np.stack(squares)) if squares else Scenery.empty().backgrounds
    return Scenery(environments, backgrounds)


# ------------------------------------------------------------------------------------- training and held-out parts

_HELD_OUT = 10  # every tenth identity, and every tenth run of poses, is held out
_POSE_RUN = 20  # neighboring poses come from one recording and stay together
_PIECE_SHARE = 7  # about one garment in seven is held out
_MIN_PIECES = 6  # slots with fewer pieces are shared
_NEVER_WORN = len(SLOTS)  # a slot that does not exist


def training_split(pack: AssetPack) -> AssetPack:
    """Return the part of a pack to train on."""
    return _part(pack, held_out=False)


def held_out_split(pack: AssetPack) -> AssetPack:
    """Return bodies, poses and clothes that `training_split` does not have; skins and backgrounds are shared."""
    return _part(pack, held_out=True)


def _held_out_pieces(pack: AssetPack) -> list[int]:
    """Return the indices of held-out garments; both halves of an outfit go together."""
    slots = pack.wardrobe.slot.tolist()
    many = {slot for slot in slots if slots.count(slot) >= _MIN_PIECES}
    return [
        number
        for number, name in enumerate(pack.wardrobe.names)
        if slots[number] in many and zlib.crc32(name.partition("/")[0].encode()) % _PIECE_SHARE == 0
    ]


def _part(pack: AssetPack, *, held_out: bool) -> AssetPack:
    body, poses = pack.body, pack.poses
    people = torch.arange(len(body.identities), device=body.identities.device) % _HELD_OUT == _HELD_OUT - 1
    runs = torch.arange(len(poses.rotations), device=poses.rotations.device) // _POSE_RUN % _HELD_OUT == _HELD_OUT - 1
    keep_people = people if held_out and people.any() else ~people
    keep_poses = runs if held_out and runs.any() else ~runs
    slot = pack.wardrobe.slot.clone()
    hidden = _held_out_pieces(pack)
    if held_out:
        split = {int(slot[number]) for number in hidden}
        hidden = [number for number in range(len(slot)) if int(slot[number]) in split and number not in hidden]
    slot[hidden] = _NEVER_WORN
    return replace(
        pack,
        body=replace(body, identities=body.identities[keep_people], traits=body.traits[keep_people]),
        poses=replace(poses, rotations=poses.rotations[keep_poses]),
        wardrobe=replace(pack.wardrobe, slot=slot),
    )
