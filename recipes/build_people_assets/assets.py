"""Read a folder of assets: clothes and hair (.obj + .mhclo), textures, tables for the body, poses.

The README of the folder describes its files. `build_asset_pack` reads it once; rendering people does not need it.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.human import PART_INDEX
from vitruvian.images.types import IntArray
from vitruvian.training.synthetic.asset_pack import (
    ANYONE,
    BACKGROUND_SIDE,
    MEN,
    WOMEN,
    Arrays,
    FloatArray,
    Piece,
    join_blobs,
    keep_faces,
)

_SEX = {"any": ANYONE, "male": MEN, "female": WOMEN}
# Halves of outfits that do not go with every other piece; the shirt of dungarees has no front.
_STYLES = {
    "male_worksuit01/upper": "under_bib", "male_worksuit01/lower": "bib", "female_sportsuit01/upper": "crop",
    "female_casualsuit02/lower": "shorts",
}  # fmt: skip
_SLOT_OF_KIND = {
    "hat": "hat", "shoes": "shoes", "hair": "hair", "eyebrows": "brows", "eyelashes": "lashes", "teeth": "teeth",
    "tongue": "tongue",
}  # fmt: skip


@dataclass(frozen=True)
class AssetIndex:
    """The folder and its `index.json`."""

    folder: Path
    assets: dict[str, dict[str, Any]]
    skins: dict[str, dict[str, Any]]
    eyes: dict[str, dict[str, Any]]


def read_index(folder: str | Path) -> AssetIndex:
    """Open an assets folder."""
    folder = Path(folder)
    try:
        index = json.loads((folder / "index.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"assets folder {folder}: expected a readable index.json, got {error}. Point to a people-assets folder."
        ) from error
    return AssetIndex(folder, index["assets"], index["skins"], index["eyes"])


def read_table(path: Path) -> Arrays:
    """Read every array of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as table:
            return {name: table[name] for name in table.files}
    except (OSError, ValueError) as error:
        raise InputError(f"table {path}: expected an .npz file, got {error}. Check the assets folder.") from error


def _read_obj(path: Path) -> tuple[IntArray, FloatArray, IntArray]:
    """Read an .obj file: triangles [f, 3], their texture coordinates [f, 3, 2], and the `f` line of each [f]."""
    coordinates: list[tuple[float, float]] = []
    faces: list[tuple[int, int, int]] = []
    corners: list[tuple[int, int, int]] = []
    polygon: list[int] = []
    polygons = 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if not words:
            continue
        if words[0] == "vt":
            coordinates.append((float(words[1]), float(words[2])))
        elif words[0] == "f":
            refs = [[*word.split("/"), ""][:2] for word in words[1:]]
            v = [int(ref[0]) - 1 for ref in refs]
            t = [int(ref[1]) - 1 if ref[1] else 0 for ref in refs]
            for k in range(1, len(refs) - 1):
                faces.append((v[0], v[k], v[k + 1]))
                corners.append((t[0], t[k], t[k + 1]))
                polygon.append(polygons)
            polygons += 1
    if not faces:
        raise InputError(f"mesh {path}: expected an .obj file with faces, got none. Check the assets folder.")
    uv = np.array(coordinates or [(0.0, 0.0)], np.float32)
    return np.array(faces, np.int64), uv[np.array(corners, np.int64)], np.array(polygon, np.int64)


def _read_mhclo(path: Path) -> dict[str, Any]:
    """Read a .mhclo file: the fields of a `Piece` that bind it to the body, in the body's axes (meters, z up).

    The axes of the file are y up, z front, in decimeters.
    """
    rows: list[tuple[float, ...]] = []
    scale_ids, scale_base = np.zeros((3, 2), np.int64), np.zeros(3, np.float32)
    axis_of = {"x_scale": 0, "z_scale": 1, "y_scale": 2}
    section = ""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] in axis_of:
            axis = axis_of[words[0]]
            scale_ids[axis] = int(words[1]), int(words[2])
            scale_base[axis] = float(words[3]) / 10
        elif words[0] in ("verts", "delete_verts"):
            section = words[0]
        elif section == "verts" and words[0].lstrip("-").replace(".", "").isdigit():
            numbers = [float(word) for word in words]
            if len(numbers) == 1:
                numbers = [numbers[0]] * 3 + [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
            rows.append(tuple(numbers[:9]))
    if not rows:
        raise InputError(f"binding {path}: expected vertex lines after 'verts', got none. Check the assets folder.")
    table = np.array(rows, np.float32)
    x, y, z = table[:, 6], table[:, 7], table[:, 8]
    offsets = np.stack([x, -z, y], 1) / 10
    return {
        "ids": table[:, :3].astype(np.int64), "weights": table[:, 3:6], "offsets": offsets, "scale_ids": scale_ids,
        "scale_base": scale_base,
    }  # fmt: skip


def read_pieces(index: AssetIndex) -> list[Piece]:
    """Read every asset of the folder; an outfit gives two pieces, its upper and its lower half."""
    tables = read_table(index.folder / "classes.npz")
    pieces = []
    for name, entry in index.assets.items():
        faces, uv, polygon = _read_obj(index.folder / entry["obj"])
        number = tables[f"{name}/face_piece"][polygon].astype(np.int64)
        face_class = tables[f"{name}/face_class"][polygon].astype(np.int64)
        hides = tables.get(f"{name}/delete_vertices", np.zeros(0, np.int64)).astype(np.int64)
        mask = tables.get(f"{name}/delete_piece_mask", np.zeros(len(hides), np.int64)).astype(np.int64)
        sock = np.isin(face_class, [PART_INDEX["Left_Sock"], PART_INDEX["Right_Sock"]])
        piece = Piece(
            name=name, slot=_SLOT_OF_KIND.get(entry["kind"], "upper"), faces=faces, uv=uv, face_class=face_class,
            face_part=sock.astype(np.int64), hides=hides, textures=_texture_files(entry), suits=_SEX[entry["sex"]],
            **_read_mhclo(index.folder / entry["mhclo"]),
        )  # fmt: skip
        if entry["kind"] != "full":
            pieces.append(piece)
            continue
        for part, slot in enumerate(("upper", "lower")):
            half, hidden = f"{name}/{slot}", hides[(mask >> part) & 1 == 1]
            changes = {"name": half, "slot": slot, "style": _STYLES.get(half, ""), "hides": hidden}
            pieces.append(replace(keep_faces(piece, number == part), **changes))
    return pieces


def _texture_files(entry: dict[str, Any]) -> tuple[str, ...]:
    files = [(material.get("diffuse") or {}).get("file") for material in entry["materials"]]
    return tuple(dict.fromkeys(file for file in files if file))


def encode_texture(path: Path, *, size: int, box: tuple[float, float, float, float] | None = None) -> dict[str, bytes]:
    """Re-encode an image as `rgb` (JPEG) and, where it has holes, `alpha` (PNG), both `size` px square.

    `box` crops left, top, right, bottom first, as shares of the image.
    """
    with Image.open(path) as source:
        image = source.convert("RGBA")
    if box is not None:
        w, h = image.size
        image = image.crop((round(box[0] * w), round(box[1] * h), round(box[2] * w), round(box[3] * h)))
    pixels = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))  # Pillow weights color by alpha here
    alpha = pixels[..., 3]
    # Color under full transparency comes out black and would darken the edge of every strand: use the mean instead.
    mean = np.average(pixels[..., :3], axis=(0, 1), weights=np.repeat(alpha[..., None] + 1e-3, 3, 2))
    color = np.where(alpha[..., None] > 8, pixels[..., :3], mean.round().astype(np.uint8))
    files = {"rgb": _encoded(Image.fromarray(color), "JPEG", quality=86)}
    if alpha.min() < 250:
        files["alpha"] = _encoded(Image.fromarray(alpha), "PNG", optimize=True)
    return files


def read_scenery(assets: str | Path, backgrounds: str | Path | None = None) -> Arrays:
    """Read `hdri/env_64x128.npz` and `backgrounds/*.jpg` of an assets folder into the scenery of a pack, about 2 MB.

    `backgrounds` is a further folder of images (.jpg, .png, .webp) without people.
    """
    folder = Path(assets)
    probes = folder / "hdri" / "env_64x128.npz"
    if not probes.is_file():
        raise InputError(f"{folder}: expected the file hdri/env_64x128.npz, got none. Point to a people-assets folder.")
    paths = sorted((folder / "backgrounds").glob("*.jpg"))
    if backgrounds is not None:
        more = [path for path in Path(backgrounds).iterdir() if path.suffix.lower() in (".jpg", ".png", ".webp")]
        if not more:
            raise InputError(f"{backgrounds}: expected images (.jpg, .png, .webp), got none.")
        paths += sorted(more)
    encoded: list[bytes] = []
    for path in paths:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        ratio = BACKGROUND_SIDE / min(image.size)
        if ratio < 1:
            size = (round(image.width * ratio), round(image.height * ratio))
            image = image.resize(size, Image.Resampling.LANCZOS)
        encoded.append(_encoded(image, "JPEG", quality=80))
    environments = read_table(probes)["rgb"].astype(np.float16)
    return {"scenery/environments": environments, **join_blobs("scenery/jpeg", "scenery/jpeg_ends", encoded)}


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
