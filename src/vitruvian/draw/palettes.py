"""Colors: distinct ones for classes and objects, for the sides and fingers of a body, and a color map for depth.

Class colors are distinct for normal and for red-green blind vision as far as their number allows; the first `count`
colors are the same for every count. ``class_colors.txt`` lists them: after the first eight, each is the color of a
grid (without black, white, gray and neon) that is farthest from all earlier ones in OKLab.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import Final

import numpy as np

from vitruvian.draw.canvas import Color
from vitruvian.images.types import RgbImage

LEFT: Final[Color] = (48, 176, 255)
RIGHT: Final[Color] = (255, 138, 36)
MIDDLE: Final[Color] = (236, 236, 244)
FINGERS: Final[dict[str, Color]] = {
    "thumb": (255, 214, 64),
    "forefinger": (52, 211, 153),
    "middle_finger": (84, 140, 255),
    "ring_finger": (190, 130, 255),
    "pinky_finger": (255, 105, 160),
}

# Turbo as evenly spaced colors to interpolate linearly: our own fit, within 5 of 255 everywhere.
_TURBO: Final = (
    "30113b", "3e3894", "465dd3", "4880f9", "3ca2ff", "23c3e5", "15dec2", "29f09f", "5afc71", "8fff48",
    "b5f934", "d6e735", "f1cd3b", "feb036", "fe8a26", "f36114", "e14008", "c72703", "a51201", "7a0302",
)  # fmt: skip


def class_colors(count: int) -> RgbImage:
    """Return `count` distinct colors, uint8 [count, 3]; they repeat after about two thousand."""
    table = _class_table()
    return table[np.arange(count) % len(table)]


@lru_cache(maxsize=1)
def _class_table() -> RgbImage:
    """Read all class colors, uint8 [K, 3]."""
    text = resources.files(__package__).joinpath("class_colors.txt").read_text(encoding="ascii")
    return np.frombuffer(bytes.fromhex(text), np.uint8).reshape(-1, 3)


@lru_cache(maxsize=1)
def davis_colors() -> RgbImage:
    """Return the palette of the annotations in DAVIS, uint8 [256, 3]."""
    colors = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
    number = np.arange(22)[:, None] >> np.arange(3)  # [22, 3]
    colors[:22] = np.minimum((number & 1) * 128 + (number >> 3 & 1) * 64, 191)
    return colors


def identity_colors(ids: Sequence[int]) -> RgbImage:
    """Return a color for each identity, uint8 [N, 3]: the same one in every frame; they repeat after 64."""
    return class_colors(64)[np.asarray(ids, dtype=np.int64) % 64]


@lru_cache(maxsize=1)
def turbo_map(levels: int = 1024) -> RgbImage:
    """Return the color map Turbo as a table uint8 [levels, 3]."""
    points = np.array([list(bytes.fromhex(color)) for color in _TURBO], dtype=np.float64)  # [points, 3]
    where, ends = np.linspace(0, 1, levels), np.linspace(0, 1, len(points))
    table = np.stack([np.interp(where, ends, channel) for channel in points.T], -1)  # [levels, 3]
    return table.round().astype(np.uint8)
