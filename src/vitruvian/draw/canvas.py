"""What drawings are made on: checks of what comes in, sizes that fit the picture, and blending in a small window.

A *picture* is uint8 [H, W, 3], RGB. No function of this room changes what it is given.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.errors import ImageError, InputError

Picture = NDArray[np.uint8]
Floats = NDArray[np.float32]
Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
NEUTRAL: Colour = (128, 128, 128)  # where there is nothing to show


def checked_picture(picture: Any, *, name: str = "picture") -> Picture:
    """Return `picture` when it is uint8 [H, W, 3] with at least one pixel; refuse it otherwise."""
    if not isinstance(picture, np.ndarray):
        raise ImageError(
            f"{name}: expected a numpy array uint8 [H, W, 3], got {type(picture).__name__}. "
            "Convert a PIL image with numpy.asarray(image.convert('RGB'))."
        )
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ImageError(
            f"{name}: expected RGB of the shape [H, W, 3], got {list(picture.shape)}. "
            "Repeat the one channel of a gray picture three times; drop alpha."
        )
    if picture.dtype != np.uint8:
        raise ImageError(f"{name}: expected uint8, got {picture.dtype}. Scale to 0..255 and convert first.")
    return picture


def checked_map(values: Any, *, name: str, size_hw: tuple[int, int] | None = None) -> NDArray[Any]:
    """Return `values` as an array [H, W], of the size of the picture where one is given."""
    array = np.asarray(values)
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name}: expected the shape [H, W], got {list(array.shape)}. Pass one value a pixel.")
    if size_hw is not None and array.shape != size_hw:
        raise InputError(
            f"{name}: expected the size of the picture, {list(size_hw)}, got {list(array.shape)}. Resize one of them."
        )
    return array


def checked_field(values: Any, *, name: str, channels: int = 3) -> NDArray[Any]:
    """Return `values` as a floating array [H, W, C]."""
    array = np.asarray(values)
    if array.ndim != 3 or array.shape[2] != channels or 0 in array.shape:
        raise InputError(
            f"{name}: expected the shape [H, W, {channels}], got {list(array.shape)}. "
            "Move the channels to the end: array.transpose(1, 2, 0)."
        )
    if array.dtype.kind != "f":
        raise InputError(f"{name}: expected floating point, got {array.dtype}. Convert it with astype(numpy.float32).")
    return array


def checked_mask(mask: Any, *, size_hw: tuple[int, int], name: str = "mask") -> NDArray[np.bool_]:
    """Return a mask as bool [H, W] of the given size."""
    return np.asarray(checked_map(mask, name=name, size_hw=size_hw)).astype(bool, copy=False)


def checked_colours(colours: Any, *, count: int | None = None, name: str = "colours") -> Picture:
    """Return colours as uint8 [K, 3]; `count` is how many there must be at least."""
    array = np.asarray(colours)
    if array.ndim != 2 or array.shape[1] != 3 or array.dtype.kind not in "ui" or (count is not None and not len(array)):
        raise InputError(
            f"{name}: expected whole numbers of the shape [K, 3], got {array.dtype} {list(array.shape)}. "
            "Give each class red, green and blue from 0 to 255."
        )
    if array.size and (array.min() < 0 or array.max() > 255):
        raise InputError(f"{name}: expected values from 0 to 255, got {array.min()} to {array.max()}.")
    if count is not None and len(array) < count:
        raise InputError(f"{name}: expected at least {count} rows, got {len(array)}. Give every class a colour.")
    return array.astype(np.uint8)


def checked_opacity(opacity: float) -> float:
    """Return an opacity between 0 and 1."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity: expected a number from 0 to 1, got {opacity}. 0.5 shows both layers.")
    return float(opacity)


def size_of(picture: NDArray[Any]) -> tuple[int, int]:
    """Height and width of an array [H, W, ...]."""
    return picture.shape[0], picture.shape[1]


def diagonal(size_hw: tuple[int, int]) -> float:
    """Length of the diagonal in pixels: what line widths and text sizes are measured against."""
    return math.hypot(*size_hw)


def fine_width(size_hw: tuple[int, int]) -> float:
    """Width of outlines and boxes in pixels: a thousandth and a half of the diagonal, never under one and a bit."""
    return max(1.2, diagonal(size_hw) * 0.0018)


def luminance(colour: Any) -> float:
    """How light a colour looks, 0 to 1."""
    red, green, blue = (float(value) / 255 for value in colour)
    return math.pow(red, 2.2) * 0.2126 + math.pow(green, 2.2) * 0.7152 + math.pow(blue, 2.2) * 0.0722


def blend(picture: Picture, layer: Picture, weight: Picture) -> Picture:
    """Mix two pictures [H, W, 3] by a weight uint8 [H, W]; 255 shows the layer."""
    mixed = Image.composite(Image.fromarray(layer), Image.fromarray(picture), Image.fromarray(weight))
    return np.array(mixed)


def tint(picture: Picture, colour: Any, weight: Picture) -> Picture:
    """Mix one colour into a picture [H, W, 3] by a weight uint8 [H, W]."""
    mixed = Image.fromarray(picture)
    mixed.paste(tuple(int(value) for value in colour), mask=Image.fromarray(weight))
    return np.array(mixed)
