"""Pictures as files: 8-bit RGB, straight RGBA, label maps with a palette, and 16-bit PNG."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.files.atomic import replacing

# zlib's 3 is several times quicker than the usual 6, for files a few per cent larger.
PNG_LEVEL = 3
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", {"compress_level": PNG_LEVEL}),
    ".jpg": ("JPEG", {"quality": 95, "subsampling": 0}),
    ".jpeg": ("JPEG", {"quality": 95, "subsampling": 0}),
    ".webp": ("WEBP", {"quality": 95}),
}
LARGEST_SIDE = {"JPEG": 65535, "WEBP": 16383}


def write_picture(path: str | Path, picture: NDArray[np.uint8]) -> None:
    """Write RGB, uint8 [H, W, 3], as .png, .jpg or .webp (quality 95), by the ending of the name."""
    check_pixels(picture, np.uint8, channels=(3,))
    _write(path, Image.fromarray(picture))


def write_png(path: str | Path, picture: NDArray[np.uint8]) -> None:
    """Write RGB [H, W, 3] or gray [H, W], uint8, as PNG whatever the name."""
    check_pixels(picture, np.uint8, channels=(1, 3))
    with replacing(path) as temporary:
        Image.fromarray(picture).save(temporary, "PNG", compress_level=PNG_LEVEL)


def write_rgba(path: str | Path, picture: NDArray[np.uint8]) -> None:
    """Write RGBA with straight (not premultiplied) alpha, uint8 [H, W, 4], as .png or .webp (both lossless)."""
    check_pixels(picture, np.uint8, channels=(4,))
    # "exact" keeps the colour under full transparency, which WebP otherwise makes up.
    _write(path, Image.fromarray(picture), {".png": {}, ".webp": {"lossless": True, "exact": True, "quality": 60}})


def write_indexed_png(path: str | Path, labels: NDArray[np.uint8], colours: NDArray[np.uint8]) -> None:
    """Write a map of numbers, uint8 [H, W], as a PNG with a palette [K, 3]: the numbers stay, viewers show colours."""
    check_pixels(labels, np.uint8, channels=(1,))
    if colours.ndim != 2 or colours.shape[1] != 3 or colours.dtype != np.uint8 or not 1 <= len(colours) <= 256:
        raise InputError(
            f"colours: expected uint8 [K, 3] with K from 1 to 256, got {colours.dtype} {list(colours.shape)}."
        )
    if labels.max() >= len(colours):
        raise InputError(f"labels: expected numbers from 0 to {len(colours) - 1}, got {labels.max()}. Add colours.")
    image = Image.fromarray(labels, "L")
    image.putpalette(colours.tobytes())
    with replacing(path) as temporary:
        image.save(temporary, "PNG", compress_level=PNG_LEVEL, bits=8)


def write_png16(path: str | Path, picture: NDArray[np.uint16]) -> None:
    """Write a 16-bit PNG: uint16, gray [H, W], RGB [H, W, 3] or straight RGBA [H, W, 4]."""
    check_pixels(picture, np.uint16, channels=(1, 3, 4))
    with replacing(path) as temporary:
        temporary.write_bytes(png16_bytes(picture))


def png16_bytes(picture: NDArray[np.uint16]) -> bytes:
    """Return the file of a 16-bit PNG; Pillow writes those in gray only.

    Each row is stored as the difference to the row above (PNG's filter 2), which suits smooth maps.
    """
    height, width = picture.shape[:2]
    channels = picture.shape[2] if picture.ndim == 3 else 1
    rows = picture.astype(">u2").reshape(height, -1).view(np.uint8)  # [H, 2·W·C] bytes, high one first
    filtered = np.empty((height, 1 + rows.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])  # wraps around at 256, as the format asks
    header = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    body = zlib.compress(filtered.tobytes(), PNG_LEVEL)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def check_pixels(picture: Any, dtype: type[np.generic], *, channels: tuple[int, ...]) -> None:
    """Raise `InputError` unless this is [H, W] (one channel) or [H, W, C] of the type, with at least one pixel."""
    shapes = ["[H, W]" if count == 1 else f"[H, W, {count}]" for count in channels]
    fits = isinstance(picture, np.ndarray) and picture.dtype == dtype and 0 not in picture.shape
    if not fits or (1 if picture.ndim == 2 else picture.shape[2] if picture.ndim == 3 else 0) not in channels:
        got = f"{picture.dtype} {list(picture.shape)}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise InputError(f"picture: expected {np.dtype(dtype).name} {' or '.join(shapes)}, got {got}.")
    if picture.ndim == 3 and picture.shape[2] == 1:
        raise InputError(f"picture: expected [H, W] for one channel, got {list(picture.shape)}.")


def _write(path: str | Path, image: Image.Image, allowed: dict[str, dict[str, Any]] | None = None) -> None:
    ending = Path(path).suffix.lower()
    known = list(FORMATS if allowed is None else allowed)
    if ending not in known:
        raise InputError(f"{Path(path).name}: expected an ending {', '.join(known)}, got {ending or 'none'!r}.")
    name, options = FORMATS[ending]
    side = max(image.size)
    if side > LARGEST_SIDE.get(name, side):
        raise InputError(
            f"{Path(path).name}: expected at most {LARGEST_SIDE[name]} pixels a side for {name}, got {side}. "
            "Write .png instead."
        )
    with replacing(path) as temporary:
        image.save(temporary, name, **(options | (allowed or {}).get(ending, {})))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
