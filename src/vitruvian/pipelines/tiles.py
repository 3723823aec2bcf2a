"""Very large pictures in overlapping tiles: planned evenly, run one after the other, blended without seams.

picture ── plan_tiles ──▶ windows ── run on each ──▶ maps ── Canvas ──▶ one map [H, W, C]

Tiles are alike in size and spread evenly, so that all overlaps are alike too; each tile's weight falls smoothly over
the overlap while its neighbour's rises. A picture that fits in one tile is run whole, exactly as without tiles.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.pipelines.crops import Blend, Canvas, Pasted, Window
from vitruvian.pipelines.limits import LEAST_TILE, MOST_OVERLAP
from vitruvian.results.base import Picture


def plan_tiles(size_hw: tuple[int, int], tile_hw: tuple[int, int], *, overlap: float = 0.25) -> list[Window]:
    """Cover a picture with tiles of whole pixels, row by row; one tile, the picture itself, where it fits.

    Args:
        size_hw: Size of the picture.
        tile_hw: Size of a tile; a picture smaller than it in one direction has tiles of its own height or width.
        overlap: Lowest share of a tile's side that it has in common with the next.
    """
    if min(size_hw) < 1 or min(tile_hw) < LEAST_TILE:
        least = f"{LEAST_TILE}×{LEAST_TILE}"
        raise InputError(
            f"tile_hw: expected tiles of at least {least} pixels, got {tile_hw} for a picture of {size_hw}."
        )
    if not 0 <= overlap <= MOST_OVERLAP:
        raise InputError(f"overlap: expected a share from 0 to {MOST_OVERLAP}, got {overlap}.")
    starts = [spread(side, tile, overlap) for side, tile in zip(size_hw, tile_hw, strict=True)]
    height, width = (min(side, tile) for side, tile in zip(size_hw, tile_hw, strict=True))
    return [Window(top, left, height, width) for top in starts[0] for left in starts[1]]


def spread(side: int, tile: int, overlap: float) -> list[int]:
    """Return where tiles start along one side."""
    if side <= tile:
        return [0]
    steps = math.ceil((side - tile) / max(1, tile - math.ceil(overlap * tile)))
    return [round(number * (side - tile) / steps) for number in range(steps + 1)]


def tile_canvas(
    size_hw: tuple[int, int], windows: list[Window], *, channels: int, blend: Blend = "mean", overlap: float = 0.25
) -> Canvas:
    """Open a canvas for tiles that `plan_tiles` planned, each with its weight falling over the whole overlap."""
    return Canvas(size_hw, windows, channels=channels, blend=blend, feather=min(0.5, overlap))


def run_tiles(
    picture: Picture,
    run: Callable[[Picture], NDArray[np.float32]],
    *,
    tile_hw: tuple[int, int],
    overlap: float = 0.25,
    blend: Blend = "mean",
    progress: Callable[[int, int], Any] | None = None,
) -> Pasted:
    """Run a function on the tiles of a picture [H, W, 3] and put its maps together.

    Args:
        picture: RGB [H, W, 3].
        run: Takes a picture [h, w, 3] and returns its map [C, h', w'] of any resolution.
        tile_hw: Size of a tile.
        overlap: Lowest share of a tile's side that it has in common with the next.
        blend: As in `Canvas`. Points of tiles must be in one coordinate system already.
        progress: Called after each tile with how many are done and how many there are.
    """
    size_hw = picture.shape[0], picture.shape[1]
    windows = plan_tiles(size_hw, tile_hw, overlap=overlap)
    canvas: Canvas | None = None
    for index, window in enumerate(windows):
        values = run(window.cut(picture))
        if canvas is None:
            canvas = tile_canvas(size_hw, windows, channels=len(values), blend=blend, overlap=overlap)
        canvas.add(index, values)
        if progress is not None:
            progress(index + 1, len(windows))
    assert canvas is not None  # every picture has at least one tile
    return canvas.finish()
