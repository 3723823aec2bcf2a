"""The files of a written set: one picture with its truths ⇄ a few ordinary files.

    SET/set.json                 what the set is: seed, options, size
    SET/annotations.json         COCO: pictures with their cameras, people with boxes, masks and 308 keypoints
    SET/contact-sheet.jpg        the first pictures and their truths
    SET/images/000000.jpg        the picture
    SET/matte/000000.png         people cut out: straight sRGB and alpha, 8 bit
    SET/albedo/000000.png        surface colour without light, sRGB, 8 bit
    SET/parts/000000.png         one of 29 classes a pixel, as palette indices
    SET/geometry/000000.npz      `normals` float16 [3, H, W]; `depth` uint16 [H, W] in steps, see `read_depth`
    SET/records/000000.json      annotations of eight pictures: what `annotations.json` is joined from

Axes are the camera's (x right, y down, z forward); `camera.points_from_depth` makes points of depth and the camera.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitruvian.errors import CheckpointError, ImageError
from vitruvian.human import PART_COLOURS
from vitruvian.images import image_to_tensor, load_image

FORMAT: Final = "vitruvian-people-set-1"
SET_FILE: Final = "set.json"
ANNOTATIONS_FILE: Final = "annotations.json"
SHEET_FILE: Final = "contact-sheet.jpg"
FOLDERS: Final = ("images", "matte", "albedo", "parts", "geometry", "records")
DEPTH_STEPS: Final = 65534  # codes 1 to 65535; 0 is nothing

ImageFormat = Literal["jpg", "png"]
Maps = frozenset({"matte", "albedo", "parts", "geometry"})


@dataclass(frozen=True)
class PictureMaps:
    """One picture and the maps that were asked for; sizes are the picture's."""

    image: Tensor  # [3, H, W] uint8, sRGB
    matte: Tensor | None = None  # [4, H, W] float32 0..1: straight colour, alpha
    albedo: Tensor | None = None  # [3, H, W] float32 0..1, sRGB
    parts: Tensor | None = None  # [H, W] uint8
    normals: Tensor | None = None  # [3, H, W] float32, zero where there is nobody
    depth: Tensor | None = None  # [H, W] float32 metres, zero where there is nobody


def file_names(index: int, image_format: ImageFormat) -> dict[str, str]:
    """Names of a picture's files, relative to the set."""
    stem = f"{index:06d}"
    endings = {"images": image_format, "matte": "png", "albedo": "png", "parts": "png", "geometry": "npz"}
    return {folder: f"{folder}/{stem}.{ending}" for folder, ending in endings.items()}


def write_maps(folder: Path, names: dict[str, str], maps: PictureMaps, *, quality: int) -> None:
    """Write a picture and all its maps; what is there is replaced."""
    if any(getattr(maps, field.name) is None for field in fields(maps)):
        raise CheckpointError(f"{folder}: expected all maps of a picture to write, got some of them. Pass every map.")
    options: dict[str, Any] = {"quality": quality, "subsampling": 0} if names["images"].endswith("jpg") else {}
    Image.fromarray(maps.image.permute(1, 2, 0).numpy()).save(folder / names["images"], **options)
    Image.fromarray(_as_bytes(maps.matte)).save(folder / names["matte"])
    Image.fromarray(_as_bytes(maps.albedo)).save(folder / names["albedo"])
    labels = Image.fromarray(_array(maps.parts)).convert("L")
    labels.putpalette([channel for colour in PART_COLOURS for channel in colour])  # turns it into palette mode
    labels.save(folder / names["parts"])
    codes, low, step = code_depth(_array(maps.depth))
    with (folder / names["geometry"]).open("wb") as file:
        np.savez_compressed(
            file,
            normals=_array(maps.normals).astype(np.float16),
            depth=codes,
            depth_low=np.float64(low),
            depth_step=np.float64(step),
        )


def read_maps(folder: Path, names: dict[str, str], wanted: frozenset[str] = Maps) -> PictureMaps:
    """Read a picture and those of its maps that are `wanted`: "matte", "albedo", "parts", "geometry"."""
    image = image_to_tensor(load_image(folder / names["images"]))  # [3, H, W]
    size_hw = (image.shape[1], image.shape[2])
    found: dict[str, Tensor] = {}
    for kind, channels in (("matte", 4), ("albedo", 3)):
        if kind in wanted:
            found[kind] = _read_colours(folder / names[kind], channels, size_hw)
    if "parts" in wanted:
        found["parts"] = torch.from_numpy(_read_png(folder / names["parts"], ("P", "L"), size_hw).copy())
    if "geometry" in wanted:
        found["normals"], found["depth"] = read_geometry(folder / names["geometry"], size_hw)
    return PictureMaps(image=image, **found)


def code_depth(depth: NDArray[np.float32]) -> tuple[NDArray[np.uint16], float, float]:
    """Turn depth [H, W] (0: nothing) into codes, with the depth of code 1 and the step to the next."""
    seen = depth > 0
    if not seen.any():
        return np.zeros(depth.shape, np.uint16), 1.0, 1.0
    low, high = float(depth[seen].min()), float(depth[seen].max())
    step = max((high - low) / (DEPTH_STEPS - 1), 1e-9)
    codes = np.rint((depth.astype(np.float64) - low) / step) + 1
    return np.where(seen, codes, 0).astype(np.uint16), low, step


def read_depth(codes: NDArray[np.uint16], low: float, step: float) -> NDArray[np.float32]:
    """Undo `code_depth`: depth = low + step · (code − 1), and 0 where the code is 0."""
    depth = low + step * (codes.astype(np.float64) - 1)
    return np.where(codes > 0, depth, 0.0).astype(np.float32)


def read_geometry(path: Path, size_hw: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Read normals [3, H, W] and depth [H, W] of a picture of this size."""
    try:
        with np.load(path, allow_pickle=False) as file:
            normals = file["normals"].astype(np.float32)
            depth = read_depth(file["depth"], float(file["depth_low"]), float(file["depth_step"]))
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise CheckpointError(f"{path}: expected normals and depth, but {error}. Write the set again.") from error
    if normals.shape != (3, *size_hw) or depth.shape != size_hw:
        raise CheckpointError(
            f"{path}: expected maps of {size_hw[0]}×{size_hw[1]}, got normals {list(normals.shape)} and depth "
            f"{list(depth.shape)}. Write the set again."
        )
    return torch.from_numpy(normals), torch.from_numpy(depth)


def _array(values: Tensor | None) -> NDArray[Any]:
    return np.zeros(0) if values is None else values.contiguous().numpy()


def _as_bytes(values: Tensor | None) -> NDArray[np.uint8]:
    """[C, H, W] in 0..1 -> [H, W, C] uint8."""
    table = np.clip(np.rint(_array(values) * 255.0), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(table.transpose(1, 2, 0))


def _read_colours(path: Path, channels: int, size_hw: tuple[int, int]) -> Tensor:
    """Read a colour map as float32 [C, H, W] in 0..1."""
    pixels = _read_png(path, ("RGBA",) if channels == 4 else ("RGB",), size_hw)
    return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32) / 255.0)


def _read_png(path: Path, modes: tuple[str, ...], size_hw: tuple[int, int]) -> NDArray[np.uint8]:
    try:
        with Image.open(path) as image:
            mode, pixels = image.mode, np.asarray(image)
    except (OSError, SyntaxError) as error:
        raise ImageError(f"{path}: expected a PNG of the set, but {error}. Write the set again.") from error
    if mode not in modes or pixels.shape[:2] != size_hw:
        raise ImageError(
            f"{path}: expected {modes[0]} of {size_hw[0]}×{size_hw[1]}, got {mode} of {pixels.shape[0]}×"
            f"{pixels.shape[1]}. Write the set again."
        )
    return np.asarray(pixels, np.uint8)
