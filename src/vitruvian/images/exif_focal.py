"""Focal lengths from EXIF, in pixels."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.ExifTags import IFD, Base

from vitruvian.images.decode import is_heif

_FILM_DIAGONAL = math.hypot(36.0, 24.0)  # millimeters
_UNIT_IN_MM = {2: 25.4, 3: 10.0, 4: 1.0, 5: 0.001}
_PLAUSIBLE = (0.01, 1000.0)  # focal lengths in units of the longer side: wider than any lens, longer than any telescope


def exif_focal(item: object, size_hw: tuple[int, ...]) -> float | None:
    """Return the focal length of an image whose upright size is known; None if its EXIF block does not state it.

    Args:
        item: A PIL image, or the path or bytes of a file, of which only the header is read. Others state none.
        size_hw: Height and width. Files beyond the size limit of Pillow are skipped: it would warn about each of them.
    """
    if isinstance(item, Image.Image):
        return _focal_of(item, size_hw)
    limit = Image.MAX_IMAGE_PIXELS
    if not isinstance(item, Path | bytes | bytearray | memoryview) or (limit and math.prod(size_hw) > limit):
        return None
    try:
        with item.open("rb") if isinstance(item, Path) else io.BytesIO(item) as stream:
            head = stream.read(64)
            stream.seek(0)
            if not is_heif(head):
                return _focal_of(Image.open(stream), size_hw)
            import pillow_heif

            opened: Any = pillow_heif.HeifImageFile
            return _focal_of(opened(stream), size_hw)
    except Exception:  # noqa: BLE001 - the pixels were read already, and the focal length is optional
        return None


def _focal_of(image: Image.Image, size_hw: tuple[int, ...]) -> float | None:
    """Return the focal length in pixels from the EXIF block of `image`, for an image of `size_hw`; or None."""
    try:
        block = image.getexif().get_ifd(IFD.Exif)
        film = _positive(block.get(Base.FocalLengthIn35mmFilm))
        if film is not None:  # by definition the ratio of diagonals
            return _plausible(film / _FILM_DIAGONAL * math.hypot(*size_hw), size_hw)
        focal, density = (_positive(block.get(tag)) for tag in (Base.FocalLength, Base.FocalPlaneXResolution))
        unit = _UNIT_IN_MM.get(int(block.get(Base.FocalPlaneResolutionUnit, 2)))
        stated = [_positive(block.get(tag)) for tag in (Base.ExifImageWidth, Base.ExifImageHeight)]
    except Exception:  # noqa: BLE001 - broken EXIF raises errors of every kind, and the pixels are fine
        return None
    if focal is None or density is None or unit is None:
        return None
    # The image may have been resized since.
    sides = [side for side in stated if side is not None]
    shrunk = max(size_hw) / max(sides) if len(sides) == 2 else 1.0
    return _plausible(focal * density / unit * shrunk, size_hw)


def _plausible(focal_px: float, size_hw: tuple[int, ...]) -> float | None:
    """Return a focal length if a camera can have it."""
    lowest, highest = _PLAUSIBLE
    return focal_px if lowest <= focal_px / max(size_hw) <= highest else None


def _positive(value: object) -> float | None:
    """Return an EXIF value if it is a positive number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None
