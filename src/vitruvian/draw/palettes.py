"""Colours: distinct ones for classes and objects, the sides and features of a body, and colour maps for depth.

Everything is the same on every run. Class colours keep apart for normal and for red-green blind eyes as far as their
number allows; the first `count` colours are the same for every count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw.canvas import Colour, Picture
from vitruvian.errors import InputError, near_matches

ColourMap = Literal["turbo", "inferno", "grey"]

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

# Where the generated colours start from: strong, well apart, and told apart by red-green blind eyes.
_FIRST: Final[tuple[Colour, ...]] = (
    (0, 114, 206), (255, 149, 0), (0, 150, 110), (240, 130, 190), (86, 196, 244), (196, 64, 16), (245, 222, 60),
    (92, 24, 122),
)  # fmt: skip
_LEVELS: Final = 14  # of red, green and blue each, among which further colours are looked for

_MAPS: Final[dict[str, tuple[str, ...]]] = {
    # Evenly spaced colours, low to high; between two of them colours run straight.
    # The first two are our own fits, of twenty points each, to the maps of these names: within 5 of 255 everywhere.
    "turbo": (
        "30113b", "3e3894", "465dd3", "4880f9", "3ca2ff", "23c3e5", "15dec2", "29f09f", "5afc71", "8fff48",
        "b5f934", "d6e735", "f1cd3b", "feb036", "fe8a26", "f36114", "e14008", "c72703", "a51201", "7a0302",
    ),
    "inferno": (
        "000002", "07051d", "180d3d", "2f0a5c", "460a6a", "5c126e", "711a6e", "87216b", "9c2964", "b1315b",
        "c53c4e", "d74a40", "e55b30", "f17020", "f8870c", "fca005", "fbba1e", "f7d440", "f0ee70", "faffa7",
    ),
    "grey": ("000000", "ffffff"),
}  # fmt: skip


def class_colours(count: int) -> Picture:
    """Return `count` distinct colours, uint8 [count, 3]; after about two thousand they start again."""
    if count < 0:
        raise InputError(f"count: expected a number of colours, got {count}. Ask for 0 or more.")
    if count <= len(_FIRST):
        return np.array(_FIRST[:count], dtype=np.uint8).reshape(-1, 3)  # [count, 3]
    rounded = 1 << (count - 1).bit_length()  # few sizes, so that most calls find theirs made already
    table = _distinct(min(rounded, _LEVELS**3))
    return table[np.arange(count) % len(table)]


def colours_of(ids: Sequence[int]) -> Picture:
    """Return a colour for each identity, uint8 [N, 3]: the same one in every frame; after 64 they start again."""
    return class_colours(64)[np.asarray(ids, dtype=np.int64).reshape(-1) % 64]


@lru_cache(maxsize=16)
def _distinct(count: int) -> Picture:
    """Add to the first colours, one at a time, the candidate furthest from all chosen ones: uint8 [count, 3]."""
    steps = np.linspace(0, 255, _LEVELS).round()
    lattice = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1).reshape(-1, 3)  # [candidates, 3]
    first = np.array(_FIRST, dtype=np.float64)
    light = _perceived(lattice)[:, 0]
    chroma = np.hypot(*_perceived(lattice)[:, 1:3].T)
    lattice = lattice[
        (light > 0.38) & (light < 0.94) & (chroma > 0.035) & (chroma < 0.25)
    ]  # not black, white, grey, neon
    places, chosen = _perceived(lattice), [*first]
    gap = np.min([_apart(places, place) for place in _perceived(first)], axis=0)  # [candidates]
    while len(chosen) < min(count, len(lattice)):
        best = int(gap.argmax())
        chosen.append(lattice[best])
        gap = np.minimum(gap, _apart(places, places[best]))
    return np.array(chosen, dtype=np.uint8)  # [count, 3]


def _apart(places: NDArray[np.float64], place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distance of colours [N, 6] to one colour: what normal eyes see plus what red-green blind eyes see."""
    difference = (places - place) ** 2
    gap: NDArray[np.float64] = np.sqrt(difference[:, :3].sum(1)) + 0.7 * np.sqrt(difference[:, 3:].sum(1))
    return gap


def _perceived(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Colours [N, 3] as lightness and two opponent axes (OKLab), for normal eyes and without green cones: [N, 6]."""
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


@lru_cache(maxsize=8)
def colour_map(name: ColourMap, levels: int = 1024) -> Picture:
    """Return a colour map as a table uint8 [levels, 3]."""
    if name not in _MAPS:
        raise InputError(f"colours: expected one of {', '.join(_MAPS)}, got {name!r}.{near_matches(str(name), _MAPS)}")
    points = np.array([list(bytes.fromhex(colour)) for colour in _MAPS[name]], dtype=np.float64)  # [points, 3]
    where, ends = np.linspace(0, 1, levels), np.linspace(0, 1, len(points))
    table = np.stack([np.interp(where, ends, channel) for channel in points.T], -1)  # [levels, 3]
    return table.round().astype(np.uint8)
