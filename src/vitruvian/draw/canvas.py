"""What all drawings share: colors, checks of options, line widths for an image, and blending.

Arrays are not checked here: results check them on construction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.images.types import RgbImage, SizeHW

Color = tuple[int, int, int]

WHITE: Color = (255, 255, 255)
BLACK: Color = (0, 0, 0)
INK: Color = (24, 24, 28)  # text on white
NEUTRAL: Color = (128, 128, 128)  # unknown values


def check_opacity(opacity: float) -> None:
    """Raise `InputError` unless an opacity is between 0 and 1."""
    if not 0 <= opacity <= 1:
        raise InputError(f"opacity: expected a number from 0 to 1, got {opacity}. 0.5 shows both layers.")


def image_hw(image: NDArray[np.generic]) -> SizeHW:
    """Return height and width of an array [H, W, ...]."""
    return image.shape[0], image.shape[1]


def outline_width(size_hw: SizeHW) -> float:
    """Return the width of outlines and boxes in pixels."""
    return max(1.2, math.hypot(*size_hw) * 0.0018)


def tint(image: RgbImage, color: Sequence[int] | RgbImage, weight: RgbImage) -> RgbImage:
    """Blend one color into an image [H, W, 3] by a weight uint8 [H, W]."""
    mixed = Image.fromarray(image)
    mixed.paste(tuple(int(value) for value in color), mask=Image.fromarray(weight))
    return np.array(mixed)
