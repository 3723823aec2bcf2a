"""From a map of points to clouds and surfaces: where depth jumps, and which pixels make triangles."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def usable_pixels(
    points: NDArray[np.float32], depth: NDArray[np.float32], mask: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return the pixels [H, W] of the mask whose points [H, W, 3] are finite and in front of the camera."""
    finite = np.isfinite(points[..., 0]) & np.isfinite(points[..., 1]) & np.isfinite(points[..., 2])
    with np.errstate(invalid="ignore"):
        return mask & finite & (depth > 0)


def depth_edges(depth: NDArray[np.float32], usable: NDArray[np.bool_], *, threshold: float) -> NDArray[np.bool_]:
    """Return the pixels [H, W] where depth jumps: points there hang between what is in front and what is behind.

    A pixel is at a jump where depths among it and its eight neighbours, as far as they are usable, differ by more than
    `threshold` times the nearest of them.
    """
    near = extreme(np.where(usable, depth, np.inf), np.minimum, np.inf)
    far = extreme(np.where(usable, depth, -np.inf), np.maximum, -np.inf)
    with np.errstate(invalid="ignore"):
        return usable & (far - near > threshold * near)


def extreme(values: NDArray[np.float32], choose: np.ufunc, border: float) -> NDArray[np.float32]:
    """Return the least or greatest value of each 3×3 window of a map [H, W]."""
    padded = np.pad(values, 1, constant_values=border)
    rows = choose(choose(padded[:-2], padded[1:-1]), padded[2:])  # [H, W + 2]
    result: NDArray[np.float32] = choose(choose(rows[:, :-2], rows[:, 1:-1]), rows[:, 2:])  # [H, W]
    return result


def grid_triangles(depth: NDArray[np.float32], usable: NDArray[np.bool_], *, threshold: float) -> NDArray[np.uint32]:
    """Join neighbouring usable pixels of a map [H, W] to triangles [M, 3] of pixel numbers (row · W + column).

    Each square of four pixels gives two. Triangles over a jump of depth, more than `threshold` times their nearest
    corner, are left out. Seen from the camera they run counter-clockwise.
    """
    height, width = depth.shape
    number = np.arange(height * width, dtype=np.uint32).reshape(height, width)
    corners = {
        (down, right): np.s_[down : height - 1 + down, right : width - 1 + right] for down in (0, 1) for right in (0, 1)
    }
    triangles = []
    for three in (((0, 0), (1, 0), (0, 1)), ((0, 1), (1, 0), (1, 1))):
        depths = np.stack([depth[corners[place]] for place in three])  # [3, H − 1, W − 1]: quicker to reduce than last
        whole: NDArray[np.bool_] = np.all(np.stack([usable[corners[place]] for place in three]), axis=0)
        with np.errstate(invalid="ignore"):
            near = depths.min(0)
            whole &= depths.max(0) - near <= threshold * near
        triangles.append(np.stack([number[corners[place]][whole] for place in three], axis=-1))  # [m, 3]
    return np.concatenate(triangles)  # [M, 3]
