"""Patch features as colours: their three main directions of variation become red, green and blue."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw.canvas import NEUTRAL, Picture, checked_mask
from vitruvian.errors import InputError

_ROUNDS = 24
_SPARE = 8  # directions followed beside the three: they make the three settle sooner


def principal_colours(patches: Any, size_hw: tuple[int, int] | None = None, *, mask: Any = None) -> Picture:
    """Colour patches by their principal components: alike patches, alike colours.

    Args:
        patches: [h, w, C] floating point.
        size_hw: Size of the result; None: one pixel a patch.
        mask: [h, w], the patches to look at, for instance those on people; others are neutral grey.

    Returns:
        uint8 [H, W, 3]. The main direction of variation is red, the second green, the third blue; each spans the middle
        98 percent of the patches. Patches that are all alike are grey.
    """
    features = np.asarray(patches, dtype=np.float32)
    if features.ndim != 3 or 0 in features.shape:
        raise InputError(f"patches: expected the shape [h, w, C], got {list(features.shape)}. Leave out the CLS token.")
    if size_hw is not None and min(size_hw) < 1:
        raise InputError(f"size_hw: expected a height and a width over 0, got {size_hw}.")
    grid_hw = features.shape[0], features.shape[1]
    inside = np.isfinite(features).all(-1)  # [h, w]
    if mask is not None:
        inside &= checked_mask(mask, size_hw=grid_hw)
    colours = np.full((*grid_hw, 3), NEUTRAL, dtype=np.uint8)
    if inside.any():
        colours[inside] = _spread(_projected(features[inside]))
    if size_hw is None or size_hw == grid_hw:
        return colours
    image = Image.fromarray(colours).resize((size_hw[1], size_hw[0]), Image.Resampling.BICUBIC)
    return np.array(image)


def _projected(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Coordinates of rows [N, C] along their three main directions, [N, 3]; zero where there are fewer directions."""
    centred = rows - rows.mean(0)
    count = min(3 + _SPARE, *centred.shape)
    # Repeated multiplication turns any few directions to the main ones: far cheaper than all C of them.
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((centred.shape[1], count)).astype(np.float32))[0]
    for _ in range(_ROUNDS):
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]  # [C, count]
    small = centred @ basis  # [N, count]
    turn = np.linalg.svd(small, full_matrices=False)[2][:3]  # [3, count]
    main = turn @ basis.T  # [3, C]
    strongest = np.abs(main).argmax(1)
    main *= np.where(main[np.arange(len(main)), strongest] < 0, -1, 1)[:, None]  # either sign is right: pick one
    found = np.zeros((len(rows), 3), dtype=np.float32)
    found[:, : len(main)] = centred @ main.T
    return found


def _spread(values: NDArray[np.float32]) -> Picture:
    """Scale each column of [N, 3] to 0..255, its middle at grey."""
    low, high = np.percentile(values, (1, 99), axis=0)
    flat = high - low <= 1e-6 * max(1e-12, float(np.abs(values).max()))
    scaled = (values - low) / np.where(flat, 1, high - low)
    scaled[:, flat] = 0.5
    colours: Picture = np.rint(np.clip(scaled, 0, 1) * 255).astype(np.uint8)
    return colours
