"""Image files: 8-bit RGB and RGBA, label maps with a palette, 16-bit PNG, and ZIP archives of PNGs."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.filesystem.atomic import atomic_write

_Options = dict[str, int | bool]

_PNG_LEVEL = 3  # zlib level: several times faster than the default 6, for files a few per cent larger
_PNG: tuple[str, _Options] = ("PNG", {"compress_level": _PNG_LEVEL})
_JPEG: tuple[str, _Options] = ("JPEG", {"quality": 95, "subsampling": 0})
# Pillow's name and options by channels and suffix.
_FORMATS: dict[int, dict[str, tuple[str, _Options]]] = {
    3: {".png": _PNG, ".jpg": _JPEG, ".jpeg": _JPEG, ".webp": ("WEBP", {"quality": 95})},
    # "exact" keeps the color under full transparency, which WebP otherwise changes.
    4: {".png": _PNG, ".webp": ("WEBP", {"lossless": True, "exact": True, "quality": 60})},
}
_MAX_SIDE = {"JPEG": 65535, "WEBP": 16383}


def write_image(path: str | Path, image: NDArray[np.uint8]) -> None:
    """Write an image in the format of the file name's suffix.

    RGB, uint8 [H, W, 3], is written as .png, .jpg or .webp (quality 95); RGBA with straight (not premultiplied) alpha,
    uint8 [H, W, 4], as .png or .webp (both lossless).
    """
    shape = list(image.shape)
    if image.dtype != np.uint8 or image.ndim != 3 or 0 in shape or shape[2] not in _FORMATS:
        raise InputError(f"image: expected uint8 [H, W, 3] or [H, W, 4], got {image.dtype} {shape}.")
    name, formats, suffix = Path(path).name, _FORMATS[shape[2]], Path(path).suffix.lower()
    if suffix not in formats:
        raise InputError(f"{name}: expected an extension {', '.join(formats)}, got {suffix or 'none'!r}.")
    pil_format, options = formats[suffix]
    side = max(shape)
    if side > _MAX_SIDE.get(pil_format, side):
        raise InputError(
            f"{name}: expected at most {_MAX_SIDE[pil_format]} pixels a side for {pil_format}, got {side}. "
            f"Write .png instead."
        )
    with atomic_write(path) as temporary:
        Image.fromarray(image).save(temporary, pil_format, **options)


def write_label_png(path: str | Path, labels: NDArray[np.integer], colors: NDArray[np.uint8]) -> None:
    """Write labels [H, W] from 0 to 65535 as a PNG whose pixels hold the labels.

    Up to 255 it has the palette `colors`, uint8 [K, 3], which viewers show; with larger labels it is 16-bit gray.
    """
    if labels.max() > 255:
        write_png16(path, labels.astype(np.uint16))
        return
    image = Image.fromarray(labels.astype(np.uint8), "L")
    image.putpalette(colors[:256].tobytes())
    with atomic_write(path) as temporary:
        image.save(temporary, "PNG", compress_level=_PNG_LEVEL, bits=8)


def write_png16(path: str | Path, image: NDArray[np.uint16]) -> None:
    """Write a 16-bit PNG: uint16, gray [H, W] or RGB [H, W, 3].

    Pillow writes 16 bits in gray only. Each row is stored as the difference to the row above (PNG filter 2), which
    compresses smooth maps well.
    """
    height, width = image.shape[:2]
    color_type = 0 if image.ndim == 2 else 2  # gray, RGB
    rows = image.astype(">u2").reshape(height, -1).view(np.uint8)  # [H, 2·W·C] bytes, high one first
    filtered = np.empty((height, 1 + rows.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])  # wraps around at 256, as the format requires
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(filtered.tobytes(), _PNG_LEVEL), b"IEND": b""}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in chunks.items():
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))


def write_png_zip(path: str | Path, images: Mapping[str, NDArray[np.uint8]]) -> None:
    """Write images uint8 [H, W], [H, W, 3] or [H, W, 4] as PNGs of these names into one ZIP file, atomically."""
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, image in images.items():
            stream = io.BytesIO()
            Image.fromarray(image).save(stream, format="png")
            # A fixed date, so that the same results are the same bytes.
            archive.writestr(zipfile.ZipInfo(f"{name}.png", (1980, 1, 1, 0, 0, 0)), stream.getvalue())
