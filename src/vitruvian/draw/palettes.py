"""Colours: distinct ones for classes and objects, for the sides and fingers of a body, and a colour map for depth.

Everything is deterministic. Class colours are distinct for normal and for red-green blind vision as far as their number
allows; the first `count` colours are the same for every count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.canvas import Colour, RgbImage
from vitruvian.errors import InputError

LEFT: Final[Colour] = (48, 176, 255)
RIGHT: Final[Colour] = (255, 138, 36)
MIDDLE: Final[Colour] = (236, 236, 244)
FINGERS: Final[dict[str, Colour]] = {
    "thumb": (255, 214, 64),
    "forefinger": (52, 211, 153),
    "middle_finger": (84, 140, 255),
    "ring_finger": (190, 130, 255),
    "pinky_finger": (255, 105, 160),
}

# The first class colours: strong, and distinct for red-green blind vision.
_FIRST: Final[tuple[Colour, ...]] = (
    (0, 114, 206), (255, 149, 0), (0, 150, 110), (240, 130, 190), (86, 196, 244), (196, 64, 16), (245, 222, 60),
    (92, 24, 122),
)  # fmt: skip
_LEVELS: Final = 14  # of red, green and blue each: the candidates for further colours

# Turbo as evenly spaced colours to interpolate linearly: our own fit, within 5 of 255 everywhere.
_TURBO: Final = (
    "30113b", "3e3894", "465dd3", "4880f9", "3ca2ff", "23c3e5", "15dec2", "29f09f", "5afc71", "8fff48",
    "b5f934", "d6e735", "f1cd3b", "feb036", "fe8a26", "f36114", "e14008", "c72703", "a51201", "7a0302",
)  # fmt: skip


def class_colours(count: int) -> RgbImage:
    """Return `count` distinct colours, uint8 [count, 3]; they repeat after about two thousand."""
    if count < 0:
        raise InputError(f"count: expected a number of colours, got {count}. Ask for 0 or more.")
    if count <= len(_FIRST):
        return np.array(_FIRST[:count], dtype=np.uint8).reshape(-1, 3)  # [count, 3]
    rounded = 1 << (count - 1).bit_length()  # few sizes, so that most calls are cached
    table = _distinct(min(rounded, _LEVELS**3))
    return table[np.arange(count) % len(table)]


def colours_of(ids: Sequence[int]) -> RgbImage:
    """Return a colour for each identity, uint8 [N, 3]: the same one in every frame; they repeat after 64."""
    return class_colours(64)[np.asarray(ids, dtype=np.int64).reshape(-1) % 64]


@lru_cache(maxsize=16)
def _distinct(count: int) -> RgbImage:
    """Extend the first colours greedily by the candidate farthest from all chosen ones: uint8 [count, 3]."""
    steps = np.linspace(0, 255, _LEVELS).round()
    lattice = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)  # [candidates, 3]
    first = np.array(_FIRST, dtype=np.float64)
    light = _perceived(lattice)[:, 0]
    chroma = np.hypot(*_perceived(lattice)[:, 1:3].T)
    lattice = lattice[
        (light > 0.38) & (light < 0.94) & (chroma > 0.035) & (chroma < 0.25)
    ]  # not black, white, grey, neon
    lab, chosen = _perceived(lattice), [*first]
    gap = np.min([_distance(lab, colour) for colour in _perceived(first)], axis=0)  # [candidates]
    while len(chosen) < min(count, len(lattice)):
        best = int(gap.argmax())
        chosen.append(lattice[best])
        gap = np.minimum(gap, _distance(lab, lab[best]))
    return np.array(chosen, dtype=np.uint8)  # [count, 3]


def _distance(colours: NDArray[np.float64], colour: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of colours [N, 6] to one colour, for normal plus red-green blind vision."""
    difference = (colours - colour) ** 2
    gap: NDArray[np.float64] = np.sqrt(difference[:, :3].sum(1)) + 0.7 * np.sqrt(difference[:, 3:].sum(1))
    return gap


def _perceived(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Convert RGB [N, 3] to OKLab, for normal vision and for deuteranopia: [N, 6]."""
    linear = (rgb / 255) ** 2.2
    blind = np.stack([linear @ (0.29, 0.71, 0.0), linear @ (0.29, 0.71, 0.0), linear @ (-0.02, 0.02, 1.0)], -1)
    return np.concatenate([_oklab(linear), _oklab(blind.clip(0, 1))], -1)


def _oklab(linear: NDArray[np.float64]) -> NDArray[np.float64]:
    cones = linear @ np.array(
        [[0.4122214708, 0.2119034982, 0.0883024619],
         [0.5363325363, 0.6806995451, 0.2817188376],
         [0.0514459929, 0.1073969566, 0.6299787005]]
    )  # fmt: skip
    lab: NDArray[np.float64] = np.cbrt(cones) @ np.array(
        [[0.2104542553, 1.9779984951, 0.0259040371],
         [0.7936177850, -2.4285922050, 0.7827717662],
         [-0.0040720468, 0.4505937099, -0.8086757660]]
    )  # fmt: skip
    return lab


@lru_cache(maxsize=1)
def turbo_map(levels: int = 1024) -> RgbImage:
    """Return the colour map Turbo as a table uint8 [levels, 3]."""
    points = np.array([list(bytes.fromhex(colour)) for colour in _TURBO], dtype=np.float64)  # [points, 3]
    where, ends = np.linspace(0, 1, levels), np.linspace(0, 1, len(points))
    table = np.stack([np.interp(where, ends, channel) for channel in points.T], -1)  # [levels, 3]
    return table.round().astype(np.uint8)
