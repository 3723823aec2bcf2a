"""Camera intrinsics of an image, from a focal length, a field of view or a pointmap.

Camera axes are x right, y down, z forward (OpenCV) or x right, y up, z backward (OpenGL). A point in OpenCV axes
projects to column fx·x/z + cx and row fy·y/z + cy, where whole numbers are centers of pixels, so the middle of a row of
W pixels is at (W − 1)/2.

Sapiens2 predicts the pointmap of a canonical camera, whose focal length is 768 pixels at 1024×768, and a scale =
canonical focal length / actual focal length; metric points = pointmap / scale. Where the focal length is known,
`scale_from_focal` computes the scale.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.results.base import check_choice

Convention = Literal["opencv", "opengl"]
Axis = Literal["horizontal", "vertical", "diagonal"]

CONVENTIONS: tuple[Convention, ...] = ("opencv", "opengl")
_CANONICAL_FOCAL = 0.75  # relative to the height of the model's input: 768 pixels at 1024×768
_MAX_SAMPLES = 200_000  # pixels that a focal length is estimated from
_MIN_SAMPLES = 8
_MAX_ITERATIONS = 50


def flip_axes(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert OpenCV axes to OpenGL axes, or back: y and z of [..., 3] change sign."""
    return vectors * np.array([1, -1, -1], np.float32)


def intrinsics_from_focal(
    focal: float, size_hw: tuple[int, int], *, principal_xy: tuple[float, float] | None = None
) -> NDArray[np.float32]:
    """Return intrinsics, float32 [3, 3], for a focal length in pixels; the principal point is the center by default."""
    if not (math.isfinite(focal) and focal > 0):
        raise InputError(f"focal: expected pixels above 0, got {focal}.")
    x, y = _center_xy(size_hw) if principal_xy is None else principal_xy
    return np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]], np.float32)


def intrinsics_from_fov(degrees: float, size_hw: tuple[int, int], *, axis: Axis = "horizontal") -> NDArray[np.float32]:
    """Return intrinsics, float32 [3, 3], for a horizontal, vertical or diagonal field of view in degrees."""
    if not (math.isfinite(degrees) and 0 < degrees < 180):
        raise InputError(f"field of view: expected degrees between 0 and 180, got {degrees}.")
    check_choice("axis", axis, ("horizontal", "vertical", "diagonal"))
    extent = {"horizontal": size_hw[1], "vertical": size_hw[0], "diagonal": math.hypot(*size_hw)}[axis]
    return intrinsics_from_focal(extent / 2 / math.tan(math.radians(degrees) / 2), size_hw)


def fov_degrees(intrinsics: NDArray[np.float32], size_hw: tuple[int, int]) -> tuple[float, float]:
    """Return the field of view (horizontal, vertical) in degrees."""
    focal = float(intrinsics[0, 0]), float(intrinsics[1, 1])
    wide, tall = (2 * math.degrees(math.atan(side / 2 / f)) for side, f in zip(size_hw[::-1], focal, strict=True))
    return wide, tall


def check_intrinsics(intrinsics: object) -> NDArray[np.float32]:
    """Return 3×3 numbers as float32 [3, 3], or raise `InputError` where they are not camera intrinsics."""
    try:
        matrix = np.array(intrinsics, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"intrinsics: expected 3×3 numbers, got {type(intrinsics).__name__}.") from error
    if matrix.shape != (3, 3):
        raise InputError(f"intrinsics: expected the shape [3, 3], got {list(matrix.shape)}.")
    if not (np.isfinite(matrix).all() and matrix[[0, 1], [0, 1]].min() > 0 and np.allclose(matrix[2], [0, 0, 1])):
        raise InputError(
            f"intrinsics: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]] with fx and fy above 0, "
            f"got {matrix.tolist()}. Focal lengths are in pixels."
        )
    return matrix


def scale_from_focal(focal: float, *, size_hw: tuple[int, int], input_hw: tuple[int, int]) -> float:
    """Return the scale for a focal length in pixels of an image of `size_hw` that was resized into `input_hw`.

    The image keeps its aspect ratio inside of the model's input.
    """
    if not (math.isfinite(focal) and focal > 0):
        raise InputError(f"focal: expected pixels above 0, got {focal}.")
    return _CANONICAL_FOCAL * input_hw[0] / (focal * _resize_factor(size_hw, input_hw))


def focal_from_scale(scale: float, *, size_hw: tuple[int, int], input_hw: tuple[int, int]) -> float:
    """Return the focal length in pixels of the image for a scale of the model, the inverse of `scale_from_focal`."""
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale: expected a number above 0, got {scale}.")
    return _CANONICAL_FOCAL * input_hw[0] / (scale * _resize_factor(size_hw, input_hw))


def _resize_factor(size_hw: tuple[int, int], input_hw: tuple[int, int]) -> float:
    """Return the factor by which an image is resized to fit inside the model's input."""
    return min(input_hw[0] / size_hw[0], input_hw[1] / size_hw[1])


def _center_xy(size_hw: tuple[int, int]) -> tuple[float, float]:
    """Return the point in the middle of an image."""
    return (size_hw[1] - 1) / 2, (size_hw[0] - 1) / 2


def estimate_focal(
    points: NDArray[np.float32],
    mask: NDArray[np.bool_] | None = None,
    *,
    principal_xy: tuple[float, float] | None = None,
) -> float | None:
    """Estimate the focal length in pixels from a pointmap [H, W, 3] in OpenCV axes.

    Each point should lie on the ray of its pixel: (x, y) / z = (pixel − principal point) / f. The 1/f with the least
    sum of distances between both sides is found by iteratively reweighted least squares, which is robust to outliers.
    The scale of the points does not matter. Returns None for too few points in front of the camera.
    """
    usable = np.isfinite(points).all(-1) & (points[..., 2] > 0)
    if mask is not None:
        usable &= mask
    rows, columns = np.nonzero(usable)
    step = max(1, len(rows) // _MAX_SAMPLES)
    rows, columns = rows[::step], columns[::step]
    center = _center_xy((points.shape[0], points.shape[1])) if principal_xy is None else principal_xy
    pixel = np.stack([columns, rows], axis=-1) - np.array(center)  # [N, 2]
    xyz = points[rows, columns].astype(np.float64)  # [N, 3]
    ray = xyz[:, :2] / xyz[:, 2:]  # [N, 2]
    keep = (pixel**2).sum(1) >= 1  # rays near the optical axis carry no information
    pixel, ray = pixel[keep], ray[keep]
    if len(pixel) < _MIN_SAMPLES:
        return None
    inverse = float(np.median((pixel * ray).sum(1) / (pixel**2).sum(1)))
    for _ in range(_MAX_ITERATIONS):
        distance = np.sqrt(((ray - inverse * pixel) ** 2).sum(1))
        weight = 1 / np.maximum(distance, 1e-6)
        better = float((weight * (pixel * ray).sum(1)).sum() / (weight * (pixel**2).sum(1)).sum())
        converged = abs(better - inverse) <= 1e-7 * abs(inverse)
        inverse = better
        if converged:
            break
    return 1 / inverse if inverse > 1e-9 else None
