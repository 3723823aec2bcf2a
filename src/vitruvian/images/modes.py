"""Pixels of every kind → 8-bit RGB: PIL modes, EXIF orientation, alpha, 16-bit and float values, arrays.

White levels: bool is 0 and 1, uint8 0..255, uint16 0..65535 (divided by 257, never clipped), floats 0..1. Integers
wider than 16 bits name no white level: up to 255 they count as 8-bit, up to 65535 as 16-bit, and anything else is
refused, as are floats outside 0..1: stretching them from minimum to maximum would change a picture without a word.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from vitruvian.errors import ImageError
from vitruvian.images.decode import check_pixel_count

_ORIENTATION_TAG = 0x0112
_TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DEEP_MODES = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
_PLAIN_MODES = {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"}
_FLOAT_SLACK = 1e-3  # what resampling and half precision may add to 0..1

Array = npt.NDArray[Any]


def to_upright_rgb(image: Image.Image, *, subject: str, background: tuple[int, int, int]) -> Image.Image:
    """Return a new RGB image, upright by its EXIF tag, alpha laid over `background`, colour profile kept aside.

    The EXIF block is left behind: a picture that is read twice must not be turned twice.
    """
    orientation = _orientation(image)
    rgb = to_rgb(image, subject=subject, background=background)
    if orientation in _TO_UPRIGHT:
        rgb = rgb.transpose(_TO_UPRIGHT[orientation])
    rgb.info = {"icc_profile": image.info["icc_profile"]} if image.info.get("icc_profile") else {}
    return rgb


def array_to_rgb(
    array: Array, *, channels_first: bool, subject: str, max_pixels: int, background: tuple[int, int, int]
) -> Image.Image:
    """Turn [H, W], [H, W, C] or [C, H, W] values with 1, 3 or 4 channels (RGBA) into an RGB image.

    Where both ends of the shape could be channels, `channels_first` decides.
    """
    values = _channels_last(array, channels_first=channels_first, subject=subject)  # [H, W, C]
    check_pixel_count((values.shape[1], values.shape[0]), subject=subject, max_pixels=max_pixels)
    pixels = to_uint8(values, subject=subject)
    pixels = np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)  # [H, W] or [H, W, C]
    return to_rgb(Image.fromarray(pixels), subject=subject, background=background)


def to_uint8(values: Array, *, subject: str, white: int | None = None) -> npt.NDArray[np.uint8]:
    """Bring values to 0..255 by the white level of their type, or by `white` where the file states one."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(values.dtype, np.floating):
        return _float_to_uint8(values, subject=subject)
    if not np.issubdtype(values.dtype, np.integer):
        raise ImageError(
            f"{subject}: expected bool, integer or float values, got {values.dtype}. Convert them to uint8 first."
        )
    low, high = int(values.min()), int(values.max())
    if white is None:
        sixteen_bit = values.dtype.kind == "u" and values.dtype.itemsize == 2  # in either byte order
        white = 65535 if sixteen_bit or high > 255 else 255
    if low < 0 or high > white:
        raise ImageError(
            f"{subject}: expected integers from 0 to {white}, got {low} to {high}. "
            "Scale them to uint8 (0 to 255) or uint16 (0 to 65535) first."
        )
    return ((values.astype(np.uint32) * 255 + white // 2) // white).astype(np.uint8)


def _float_to_uint8(values: Array, *, subject: str) -> npt.NDArray[np.uint8]:
    low, high = float(values.min()), float(values.max())  # NaN passes through both
    if not (low >= -_FLOAT_SLACK and high <= 1 + _FLOAT_SLACK):
        raise ImageError(
            f"{subject}: expected floating-point values from 0 to 1, got {low:.4g} to {high:.4g}. "
            "Divide by the white level first (255 for 8-bit values)."
        )
    scaled = np.multiply(values, 255, dtype=np.float32)
    return np.rint(scaled, out=scaled).clip(0, 255, out=scaled).astype(np.uint8)


def _channels_last(array: Array, *, channels_first: bool, subject: str) -> Array:
    """Bring [H, W], [H, W, C] or [C, H, W] to [H, W, C]."""
    if array.ndim == 2:
        return array[..., None]  # [H, W, 1]
    if array.ndim == 3:
        ends = {"first": array.shape[0] in (1, 3, 4), "last": array.shape[-1] in (1, 3, 4)}
        if ends["first"] and (channels_first or not ends["last"]):
            return np.moveaxis(array, 0, -1)  # [H, W, C]
        if ends["last"]:
            return array
    hint = "Pass one picture at a time, or the batch to load_images." if array.ndim == 4 else "Reorder or slice it."
    raise ImageError(
        f"{subject}: expected shape [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels, "
        f"got {list(array.shape)}. {hint}"
    )


def to_rgb(image: Image.Image, *, subject: str, background: tuple[int, int, int]) -> Image.Image:
    """Return a new RGB image with the pixels of `image` where they are: no turning by EXIF."""
    if image.mode in _DEEP_MODES:
        gray = to_uint8(np.asarray(image), subject=subject, white=_stated_white(image))  # [H, W]
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        straight = _to_rgba(image)
        canvas = Image.new("RGB", image.size, background)
        canvas.paste(straight.convert("RGB"), mask=straight.getchannel("A"))
        return canvas
    if image.mode in _PLAIN_MODES:
        return image.convert("RGB")
    raise ImageError(
        f"{subject}: expected a gray, RGB, CMYK or palette image, got mode {image.mode}. Convert it to RGB first."
    )


def _to_rgba(image: Image.Image) -> Image.Image:
    """Give `image` an alpha channel; premultiplied modes are divided out on the way."""
    key = image.info.get("transparency")
    if image.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
        # Pillow cuts a 16-bit PNG down to 8 bits, but leaves its transparent colour at 16.
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in key)
    return image.convert("RGBA")


def _stated_white(image: Image.Image) -> int | None:
    """Return the largest value that the file's own format allows, where it says so and the mode does not."""
    if image.format in ("PNG", "PPM") and image.mode == "I":
        return 65535
    bits = getattr(image, "tag_v2", {}).get(258)  # BitsPerSample of a TIFF
    return 4095 if image.mode == "I;16" and bits == (12,) else None


def _orientation(image: Image.Image) -> int | None:
    """Read the EXIF orientation; a block that cannot be read counts as absent, as viewers do."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # noqa: BLE001 - broken EXIF raises errors of every kind, and the pixels are fine
        return None
    return orientation if isinstance(orientation, int) else None
