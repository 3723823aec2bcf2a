"""Small images, shared by the tests of this folder."""

import io
from typing import Any

import numpy as np
from PIL import Image


def photo_array(height: int = 24, width: int = 20) -> np.ndarray[Any, Any]:
    """A smooth color image without any symmetry: uint8 [H, W, 3]."""
    rows, columns = np.mgrid[0:height, 0:width]
    planes = [rows * 255 / max(height - 1, 1), columns * 255 / max(width - 1, 1), (rows * 3 + columns * 5) % 200]
    return np.stack(planes, axis=-1).round().astype(np.uint8)


def photo(height: int = 24, width: int = 20) -> Image.Image:
    return Image.fromarray(photo_array(height, width))


def encode(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def exif_bytes(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()
