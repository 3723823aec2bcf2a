"""Convert decoded images, arrays and tensors to upright 8-bit RGB: EXIF orientation, transparency and white levels.

White levels: bool is 0 and 1, uint8 0..255, uint16 0..65535 (divided by 257, never clipped), floats 0..1. Integers
wider than 16 bits have no defined white level: up to 255 they count as 8-bit, up to 65535 as 16-bit, and anything else
is refused, as are floats outside of 0..1, since stretching them would silently change the image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from PIL import ExifTags, Image
from torch import Tensor

from vitruvian.errors import ImageError
from vitruvian.images.decode import check_pixel_count

_Turn = Image.Transpose
_TO_UPRIGHT = {
    2: _Turn.FLIP_LEFT_RIGHT, 3: _Turn.ROTATE_180, 4: _Turn.FLIP_TOP_BOTTOM, 5: _Turn.TRANSPOSE,
    6: _Turn.ROTATE_270, 7: _Turn.TRANSVERSE, 8: _Turn.ROTATE_90,
}  # fmt: skip
_DEEP_MODES = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
_PLAIN_MODES = {"1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "HSV"}
_FLOAT_TOLERANCE = 1e-3  # resampling and half precision may leave 0..1

_Array = npt.NDArray[np.generic]


def to_upright_rgb(
    image: Image.Image, *, subject: str, background: tuple[int, int, int], copy: bool = True
) -> Image.Image:
    """Return a new RGB image, rotated by its EXIF tag, with alpha composited over `background` and the color profile.

    The EXIF block is dropped, so that an image that is read twice is not rotated twice. Without `copy`, an image that
    is upright RGB already is returned as it is.
    """
    if not copy and is_upright_rgb(image):
        return image
    orientation, profile = _orientation(image), image.info.get("icc_profile")
    rgb = to_rgb(image, subject=subject, background=background)
    del image  # frees its memory, if the caller has no name for it
    if orientation in _TO_UPRIGHT:
        rgb = rgb.transpose(_TO_UPRIGHT[orientation])
    rgb.info = {"icc_profile": profile} if profile else {}
    return rgb


def is_upright_rgb(image: Image.Image) -> bool:
    """Return whether an opened image is RGB without transparency, and its EXIF tag does not rotate it."""
    return image.mode == "RGB" and not image.has_transparency_data and _orientation(image) not in _TO_UPRIGHT


def turn_upright(image: Image.Image) -> Image.Image:
    """Return an image of any mode rotated by its EXIF tag."""
    orientation = _orientation(image)
    return image.transpose(_TO_UPRIGHT[orientation]) if orientation in _TO_UPRIGHT else image


def _orientation(image: Image.Image) -> int | None:
    try:
        orientation: int | None = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # noqa: BLE001 - broken EXIF raises errors of every kind, and the pixels are fine
        return None
    return orientation


def to_array(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return the pixels of an 8-bit image as a new array. Unlike `np.array(image)`, makes no temporary copies."""
    return _to_array(image).view(np.uint8)


def _to_array(image: Image.Image) -> _Array:
    first = np.asarray(image.crop((0, 0, 1, 1)))  # [1, 1] or [1, 1, C]
    array = np.empty((image.height, image.width, *first.shape[2:]), first.dtype)
    for top, bottom in _bands(array.shape):
        array[top:bottom] = np.asarray(image.crop((0, top, image.width, bottom)))
    return array


def _bands(shape_hw: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Yield the first row of bands of about 2**18 pixels, and the row behind the last."""
    height, width = shape_hw[:2]
    rows = max(1, 2**18 // max(1, width))
    return ((top, min(top + rows, height)) for top in range(0, height, rows))


def array_to_rgb(source: _Array | Tensor, *, max_pixels: int, background: tuple[int, int, int]) -> Image.Image:
    """Convert [H, W], [H, W, C] or [C, H, W] values with 1, 3 or 4 channels (RGBA) to an RGB image.

    Ambiguous shapes are [H, W, C] for arrays and [C, H, W] for tensors.
    """
    subject = "tensor" if isinstance(source, Tensor) else "array"
    if isinstance(source, Tensor):
        values = source.detach().cpu()
        source = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    pixels = _channels_last(source, channels_first=subject == "tensor", subject=subject)  # [H, W, C]
    check_pixel_count((pixels.shape[1], pixels.shape[0]), subject=subject, max_pixels=max_pixels)
    pixels = to_uint8(pixels, subject=subject)
    pixels = np.ascontiguousarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)  # [H, W] or [H, W, C]
    return to_rgb(Image.fromarray(pixels), subject=subject, background=background)


def to_uint8(values: _Array, *, subject: str, white: int | None = None) -> npt.NDArray[np.uint8]:
    """Scale values to 0..255 by the white level of their type, or by `white` where the file states one."""
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(values.dtype, np.floating):
        if not (values.min() >= -_FLOAT_TOLERANCE and values.max() <= 1 + _FLOAT_TOLERANCE):  # also false for NaN
            raise ImageError(
                f"{subject}: expected floating-point values from 0 to 1, got {values.min():.4g} to {values.max():.4g}. "
                "Divide by the white level first (255 for 8-bit values)."
            )
        return _by_bands(values, lambda band: np.rint(np.multiply(band, 255, dtype=np.float32)).clip(0, 255))
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
    return _by_bands(values, lambda band: (band.astype(np.uint32) * 255 + white // 2) // white)


def _by_bands(values: _Array, convert: Callable[[_Array], _Array]) -> npt.NDArray[np.uint8]:
    """Convert rows to 0..255 without copies of the whole array in a wider type."""
    result = np.empty(values.shape, np.uint8)
    for top, bottom in _bands(values.shape):
        result[top:bottom] = convert(values[top:bottom])
    return result


def _channels_last(array: _Array, *, channels_first: bool, subject: str) -> _Array:
    """Convert [H, W], [H, W, C] or [C, H, W] to [H, W, C]."""
    if array.ndim == 2:
        return array[..., None]  # [H, W, 1]
    if array.ndim == 3:
        ends = {"first": array.shape[0] in (1, 3, 4), "last": array.shape[-1] in (1, 3, 4)}
        if ends["first"] and (channels_first or not ends["last"]):
            return np.moveaxis(array, 0, -1)  # [H, W, C]
        if ends["last"]:
            return array
    hint = "Pass one image at a time, or the batch to load_images." if array.ndim == 4 else "Reorder or slice it."
    raise ImageError(
        f"{subject}: expected shape [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels, "
        f"got {list(array.shape)}. {hint}"
    )


def to_rgb(image: Image.Image, *, subject: str, background: tuple[int, int, int]) -> Image.Image:
    """Return a new RGB image with the pixels of `image`, without EXIF rotation."""
    if image.mode in _DEEP_MODES:
        gray = to_uint8(_to_array(image), subject=subject, white=_stated_white(image))  # [H, W]
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        return _over_background(image, background)
    if image.mode in _PLAIN_MODES:
        return image.convert("RGB")
    raise ImageError(
        f"{subject}: expected a gray, RGB, CMYK or palette image, got mode {image.mode}. Convert it to RGB first."
    )


def _over_background(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Composite an image with transparency over a color, band by band."""
    canvas = Image.new("RGB", image.size, background)
    for top, bottom in _bands((image.height, image.width)):
        band = image.crop((0, top, image.width, bottom))
        key = band.info.get("transparency")
        if band.mode == "RGB" and isinstance(key, tuple) and max(key) > 255:
            # Pillow reduces a 16-bit PNG to 8 bits, but not its transparent color.
            band.info["transparency"] = tuple(value >> 8 for value in key)
        straight = band.convert("RGBA")  # premultiplied modes become straight
        canvas.paste(straight.convert("RGB"), (0, top), mask=straight.getchannel("A"))
    return canvas


def _stated_white(image: Image.Image) -> int | None:
    """Return the white level that the file states, where its mode does not define it."""
    if image.format in ("PNG", "PPM") and image.mode == "I":
        return 65535
    bits = getattr(image, "tag_v2", {}).get(258)  # BitsPerSample of a TIFF
    return 4095 if image.mode == "I;16" and bits == (12,) else None
