"""Image files: 8-bit RGB, straight RGBA, label maps with a palette, and 16-bit PNG."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.atomic import atomic_write
from vitruvian.errors import InputError

_Options = dict[str, int | bool]

_PNG_LEVEL = 3  # zlib level: several times faster than the default 6, for files a few per cent larger
_JPEG: tuple[str, _Options] = ("JPEG", {"quality": 95, "subsampling": 0})
_FORMATS: dict[str, tuple[str, _Options]] = {
    ".png": ("PNG", {"compress_level": _PNG_LEVEL}),
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": ("WEBP", {"quality": 95}),
}
_RGBA_FORMATS: dict[str, tuple[str, _Options]] = {
    ".png": _FORMATS[".png"],
    # "exact" keeps the colour under full transparency, which WebP otherwise changes.
    ".webp": ("WEBP", {"lossless": True, "exact": True, "quality": 60}),
}
_MAX_SIDE = {"JPEG": 65535, "WEBP": 16383}


def write_image(path: str | Path, image: NDArray[np.uint8]) -> None:
    """Write RGB, uint8 [H, W, 3], as .png, .jpg or .webp (quality 95), by the suffix of the name."""
    _check_pixels(image, np.uint8, channels=(3,))
    _write(path, Image.fromarray(image), _FORMATS)


def write_png(path: str | Path, image: NDArray[np.uint8]) -> None:
    """Write RGB [H, W, 3] or gray [H, W], uint8, as PNG whatever the name."""
    _check_pixels(image, np.uint8, channels=(1, 3))
    with atomic_write(path) as temporary:
        Image.fromarray(image).save(temporary, "PNG", compress_level=_PNG_LEVEL)


def write_rgba(path: str | Path, image: NDArray[np.uint8]) -> None:
    """Write RGBA with straight (not premultiplied) alpha, uint8 [H, W, 4], as .png or .webp (both lossless)."""
    _check_pixels(image, np.uint8, channels=(4,))
    _write(path, Image.fromarray(image), _RGBA_FORMATS)


def write_indexed_png(path: str | Path, labels: NDArray[np.uint8], colours: NDArray[np.uint8]) -> None:
    """Write labels, uint8 [H, W], as a PNG with a palette [K, 3]: pixels hold the labels, viewers show colours."""
    _check_pixels(labels, np.uint8, channels=(1,))
    if colours.ndim != 2 or colours.shape[1] != 3 or colours.dtype != np.uint8 or not 1 <= len(colours) <= 256:
        raise InputError(
            f"colours: expected uint8 [K, 3] with K from 1 to 256, got {colours.dtype} {list(colours.shape)}."
        )
    if labels.max() >= len(colours):
        raise InputError(f"labels: expected numbers from 0 to {len(colours) - 1}, got {labels.max()}. Add colours.")
    image = Image.fromarray(labels, "L")
    image.putpalette(colours.tobytes())
    with atomic_write(path) as temporary:
        image.save(temporary, "PNG", compress_level=_PNG_LEVEL, bits=8)


def write_png16(path: str | Path, image: NDArray[np.uint16]) -> None:
    """Write a 16-bit PNG: uint16, gray [H, W], RGB [H, W, 3] or straight RGBA [H, W, 4].

    Pillow writes 16 bits in gray only. Each row is stored as the difference to the row above (PNG filter 2), which
    compresses smooth maps well.
    """
    _check_pixels(image, np.uint16, channels=(1, 3, 4))
    height, width = image.shape[:2]
    colour_type = {1: 0, 3: 2, 4: 6}[image.shape[2] if image.ndim == 3 else 1]
    rows = image.astype(">u2").reshape(height, -1).view(np.uint8)  # [H, 2·W·C] bytes, high one first
    filtered = np.empty((height, 1 + rows.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])  # wraps around at 256, as the format requires
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(filtered.tobytes(), _PNG_LEVEL), b"IEND": b""}
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, data in chunks.items():
            file.write(struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)))


def _check_pixels(image: object, dtype: type[np.generic], *, channels: tuple[int, ...]) -> None:
    """Raise `InputError` unless this is [H, W] (one channel) or [H, W, C] of the type, with at least one pixel."""
    shapes = ["[H, W]" if count == 1 else f"[H, W, {count}]" for count in channels]
    if not isinstance(image, np.ndarray):
        got = type(image).__name__
    else:
        got = f"{image.dtype} {list(image.shape)}"
        count = 1 if image.ndim == 2 else image.shape[2] if image.ndim == 3 and image.shape[2] > 1 else 0
        if image.dtype == dtype and 0 not in image.shape and count in channels:
            return
    raise InputError(f"image: expected {np.dtype(dtype).name} {' or '.join(shapes)}, got {got}.")


def _write(path: str | Path, image: Image.Image, formats: dict[str, tuple[str, _Options]]) -> None:
    suffix = Path(path).suffix.lower()
    if suffix not in formats:
        raise InputError(f"{Path(path).name}: expected an ending {', '.join(formats)}, got {suffix or 'none'!r}.")
    name, options = formats[suffix]
    side = max(image.size)
    if side > _MAX_SIDE.get(name, side):
        raise InputError(
            f"{Path(path).name}: expected at most {_MAX_SIDE[name]} pixels a side for {name}, got {side}. "
            "Write .png instead."
        )
    with atomic_write(path) as temporary:
        image.save(temporary, name, **options)
