"""Camera axes and intrinsics.

Camera axes are x right, y down, z forward (OpenCV) or x right, y up, z backward (OpenGL). A point in OpenCV axes
projects to column fx·x/z + cx and row fy·y/z + cy, where whole numbers are centres of pixels.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError

Convention = Literal["opencv", "opengl"]
CONVENTIONS: tuple[Convention, ...] = ("opencv", "opengl")


def flip_axes(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert OpenCV axes to OpenGL axes, or back: y and z of [..., 3] change sign."""
    return vectors * np.array([1, -1, -1], np.float32)


def fov_degrees(intrinsics: NDArray[np.float32], size_hw: tuple[int, int]) -> tuple[float, float]:
    """Return the field of view (horizontal, vertical) in degrees."""
    height, width = size_hw
    fx, fy = float(intrinsics[0, 0]), float(intrinsics[1, 1])
    return 2 * math.degrees(math.atan(width / 2 / fx)), 2 * math.degrees(math.atan(height / 2 / fy))


def check_intrinsics(matrix: NDArray[np.float32]) -> None:
    """Raise `InputError` unless [3, 3] numbers are camera intrinsics."""
    if not (np.isfinite(matrix).all() and matrix[[0, 1], [0, 1]].min() > 0 and np.allclose(matrix[2], [0, 0, 1])):
        raise InputError(
            f"intrinsics: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]] with fx and fy above 0, "
            f"got {matrix.tolist()}. Focal lengths are in pixels."
        )
