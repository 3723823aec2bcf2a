"""Focal lengths from EXIF, in pixels."""

from __future__ import annotations

import io
import math
from typing import IO, Any

from PIL import Image

from vitruvian.images.decode import is_heif

_EXIF_BLOCK = 0x8769
_FOCAL_LENGTH = 0x920A  # millimetres
_FOCAL_LENGTH_35MM = 0xA405  # millimetres on a film of 36 × 24
_PLANE_RESOLUTION = 0xA20E  # pixels of the sensor a unit, across
_PLANE_UNIT = 0xA210
_STATED_WIDTH = 0xA002
_STATED_HEIGHT = 0xA003
_FILM_DIAGONAL = math.hypot(36.0, 24.0)
_UNIT_IN_MM = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}


def focal_of_file(stream: IO[bytes], size_hw: tuple[int, int]) -> float | None:
    """Return the focal length of the image in a file, whose upright size is known; None if the file does not state it.

    Only the header is read. Images beyond the size limit of Pillow are skipped: it would warn about each of them.
    """
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and size_hw[0] * size_hw[1] > limit:
        return None
    try:
        stream.seek(0)
        head = stream.read(64)
        stream.seek(0)
        if is_heif(head):
            import pillow_heif

            opened: Any = pillow_heif.HeifImageFile
            image: Image.Image = opened(io.BytesIO(stream.read()))
        else:
            image = Image.open(stream)
    except Exception:  # noqa: BLE001 - the pixels were read already, and the focal length is optional
        return None
    return focal_of_image(image, size_hw)


def focal_of_image(image: Image.Image, size_hw: tuple[int, int]) -> float | None:
    """Return the focal length in pixels from the EXIF block of `image`, for an image of `size_hw`; or None."""
    try:
        block = image.getexif().get_ifd(_EXIF_BLOCK)
        film = _positive(block.get(_FOCAL_LENGTH_35MM))
        if film is not None:  # by definition the ratio of diagonals
            return film / _FILM_DIAGONAL * math.hypot(*size_hw)
        focal, density = _positive(block.get(_FOCAL_LENGTH)), _positive(block.get(_PLANE_RESOLUTION))
        unit = _UNIT_IN_MM.get(int(block.get(_PLANE_UNIT, 2)))
        stated = [_positive(block.get(tag)) for tag in (_STATED_WIDTH, _STATED_HEIGHT)]
    except Exception:  # noqa: BLE001 - broken EXIF raises errors of every kind, and the pixels are fine
        return None
    if focal is None or density is None or unit is None:
        return None
    # The image may have been resized since.
    sides = [side for side in stated if side is not None]
    shrunk = max(size_hw) / max(sides) if len(sides) == 2 else 1.0
    return focal * density / unit * shrunk


def _positive(value: object) -> float | None:
    """Return an EXIF value if it is a positive number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None
