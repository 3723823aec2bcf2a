"""Regions of an image, each an input of the model: crops of people, or overlapping tiles."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.limits import get_limits
from vitruvian.ops.crop import crop_windows_numpy
from vitruvian.pipelines.options import MAX_TILE_OVERLAP, MIN_TILE_SIDE
from vitruvian.results.base import People


class Region(NamedTuple):
    """A rectangle of an image. Pixel x extends from x to x + 1."""

    top: float
    left: float
    height: float
    width: float

    def crop(self, pixels: Tensor) -> Tensor:
        """Return a view of the pixels of a region with integer edges: [C, H, W] -> [C, h, w]."""
        top, left, height, width = (int(side) for side in self)
        return pixels[:, top : top + height, left : left + width]

    def pixels(self, size_hw: SizeHW) -> tuple[range, range]:
        """Return the rows and columns of an image whose centers are in the region."""
        rows, columns = (
            range(max(0, math.ceil(start - 0.5)), min(side, math.ceil(start + length - 0.5)))
            for start, length, side in zip(self[:2], self[2:], size_hw, strict=True)
        )
        return rows, columns


def crop_regions(people: People, input_hw: SizeHW) -> list[Region]:
    """Return the regions [P] that `vitruvian.images.crop_boxes` samples for inputs of `input_hw`."""
    center_xy, size_wh = crop_windows_numpy(people.boxes_xywh, input_hw)  # [P, 2] each
    # The first and last samples are on the edges of the crop, in coordinates where pixel x has its center at x; the
    # areas around these samples extend half a step further.
    step_xy = size_wh / np.maximum(1, np.array(input_hw[::-1]) - 1)  # [P, 2]
    start_xy = center_xy - size_wh / 2 - step_xy / 2 + 0.5  # [P, 2]
    spans_xy = step_xy * np.array(input_hw[::-1])  # [P, 2]
    return [
        Region(top, left, height, width)
        for (left, top), (width, height) in zip(start_xy.tolist(), spans_xy.tolist(), strict=True)
    ]


def plan_tiles(size_hw: SizeHW, tile_hw: SizeHW, *, overlap: float = 0.25) -> list[Region]:
    """Cover an image with equally large, evenly spaced tiles, row by row; one tile if the image is not larger.

    Args:
        size_hw: Size of the image.
        tile_hw: Size of a tile. If the image is smaller in one direction, so are its tiles.
        overlap: Minimum share of a tile's side that it has in common with the next.
    """
    if min(size_hw) < 1 or min(tile_hw) < MIN_TILE_SIDE:
        raise InputError(
            f"tile_hw: expected tiles of at least {MIN_TILE_SIDE}×{MIN_TILE_SIDE} pixels, got {tile_hw} for an image "
            f"of {size_hw}."
        )
    if not 0 <= overlap <= MAX_TILE_OVERLAP:
        raise InputError(f"overlap: expected a share from 0 to {MAX_TILE_OVERLAP}, got {overlap}.")
    tops, lefts = (_tile_starts(side, tile, overlap) for side, tile in zip(size_hw, tile_hw, strict=True))
    height, width = (min(side, tile) for side, tile in zip(size_hw, tile_hw, strict=True))
    get_limits().check("tiles", len(tops) * len(lefts), subject="tile")
    return [Region(top, left, height, width) for top in tops for left in lefts]


def _tile_starts(side: int, tile: int, overlap: float) -> list[int]:
    """Return the first pixel of each tile along one side."""
    if side <= tile:
        return [0]
    steps = math.ceil((side - tile) / max(1, tile - math.ceil(overlap * tile)))
    get_limits().check("tiles", steps + 1, subject="tile")
    return [round(number * (side - tile) / steps) for number in range(steps + 1)]
