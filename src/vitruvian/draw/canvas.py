"""What all drawings share: checked inputs, line widths for an image, and blending."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitruvian.errors import ImageError, InputError

RgbImage = NDArray[np.uint8]  # [H, W, 3]
Floats = NDArray[np.float32]
Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
NEUTRAL: Colour = (128, 128, 128)  # for unknown values


def checked_image(image: object, *, name: str = "image") -> RgbImage:
    """Return `image` when it is uint8 [H, W, 3] with at least one pixel; refuse it otherwise."""
    if not isinstance(image, np.ndarray):
        raise ImageError(
            f"{name}: expected a numpy array uint8 [H, W, 3], got {type(image).__name__}. "
            "Convert a PIL image with numpy.asarray(image.convert('RGB'))."
        )
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise ImageError(
            f"{name}: expected RGB of the shape [H, W, 3], got {list(image.shape)}. "
            "Repeat the one channel of a gray image three times; drop alpha."
        )
    if image.dtype != np.uint8:
        raise ImageError(f"{name}: expected uint8, got {image.dtype}. Scale to 0..255 and convert first.")
    return image


def checked_map(values: ArrayLike, *, name: str, size_hw: tuple[int, int] | None = None) -> NDArray[np.generic]:
    """Return `values` as an array [H, W], of the size of the image if there is one."""
    array = np.asarray(values)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name}: expected the shape [H, W], got {list(array.shape)}. Pass one value a pixel.")
    if size_hw is not None and array.shape != size_hw:
        raise InputError(
            f"{name}: expected the size of the image, {list(size_hw)}, got {list(array.shape)}. Resize one of them."
        )
    return array


def checked_field(values: ArrayLike, *, name: str) -> NDArray[np.floating]:
    """Return `values` as a floating-point array [H, W, 3]."""
    array = np.asarray(values)
    if array.ndim != 3 or array.shape[2] != 3 or 0 in array.shape:
        raise InputError(
            f"{name}: expected the shape [H, W, 3], got {list(array.shape)}. "
            "Move the channels to the end: array.transpose(1, 2, 0)."
        )
    if array.dtype.kind != "f":
        raise InputError(f"{name}: expected floating point, got {array.dtype}. Convert it with astype(numpy.float32).")
    return array


def checked_mask(mask: ArrayLike, *, size_hw: tuple[int, int], name: str = "mask") -> NDArray[np.bool_]:
    """Return a mask as bool [H, W] of the given size."""
    return checked_map(mask, name=name, size_hw=size_hw).astype(bool, copy=False)


def checked_colours(colours: ArrayLike, *, count: int | None = None) -> RgbImage:
    """Return colours as uint8 [K, 3], at least `count` of them."""
    array = np.asarray(colours)
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "ui" or (count is not None and not len(array)):
        raise InputError(
            f"colours: expected whole numbers of the shape [K, 3], got {array.dtype} {list(array.shape)}. "
            "Give each class red, green and blue from 0 to 255."
        )
    if array.size and (array.min() < 0 or array.max() > 255):
        raise InputError(f"colours: expected values from 0 to 255, got {array.min()} to {array.max()}.")
    if count is not None and len(array) < count:
        raise InputError(f"colours: expected at least {count} rows, got {len(array)}. Give every class a colour.")
    return array.astype(np.uint8)


def checked_opacity(opacity: float) -> float:
    """Return an opacity between 0 and 1."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity: expected a number from 0 to 1, got {opacity}. 0.5 shows both layers.")
    return float(opacity)


def size_of(image: NDArray[np.generic]) -> tuple[int, int]:
    """Return height and width of an array [H, W, ...]."""
    return image.shape[0], image.shape[1]


def diagonal(size_hw: tuple[int, int]) -> float:
    """Return the length of the diagonal in pixels, which line widths and text sizes are relative to."""
    return math.hypot(*size_hw)


def fine_width(size_hw: tuple[int, int]) -> float:
    """Return the width of outlines and boxes in pixels."""
    return max(1.2, diagonal(size_hw) * 0.0018)


def luminance(colour: Colour) -> float:
    """Return the relative luminance of a colour, 0 to 1."""
    red, green, blue = (float(value) / 255 for value in colour)
    return math.pow(red, 2.2) * 0.2126 + math.pow(green, 2.2) * 0.7152 + math.pow(blue, 2.2) * 0.0722


def blend(image: RgbImage, layer: RgbImage, weight: RgbImage) -> RgbImage:
    """Blend two images [H, W, 3] by a weight uint8 [H, W]; 255 shows the layer."""
    mixed = Image.composite(Image.fromarray(layer), Image.fromarray(image), Image.fromarray(weight))
    return np.array(mixed)


def tint(image: RgbImage, colour: Sequence[int] | RgbImage, weight: RgbImage) -> RgbImage:
    """Blend one colour into an image [H, W, 3] by a weight uint8 [H, W]."""
    mixed = Image.fromarray(image)
    mixed.paste(tuple(int(value) for value in colour), mask=Image.fromarray(weight))
    return np.array(mixed)
