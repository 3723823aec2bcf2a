"""Cameras: the 3×3 intrinsics of a picture, from what is known of it or from its pointmap.

A camera looks along its own axes: x right, y down, z forward (OpenCV's) or x right, y up, z backward (OpenGL's). A
point in OpenCV's axes appears in column fx·x/z + cx and row fy·y/z + cy, where whole numbers are centres of pixels, so
the middle of a row of W pixels is at (W − 1)/2.

Sapiens2 sees pictures through a canonical camera, whose focal length is 768 pixels at 1024×768, and tells beside its
pointmap a scale = canonical focal length / actual focal length; metric points = pointmap / scale. Where the focal
length is known, `scale_from_focal` gives the true scale in its place.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.results.checks import check_choice

Convention = Literal["opencv", "opengl"]
Axis = Literal["horizontal", "vertical", "diagonal"]

CONVENTIONS: tuple[Convention, ...] = ("opencv", "opengl")
CANONICAL_FOCAL = 0.75  # of the height of the model's input: 768 pixels at 1024×768
MOST_SAMPLES = 200_000  # pixels that are looked at to estimate a focal length
FEWEST_SAMPLES = 8
ROUNDS = 50


def flip_axes(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Go from OpenCV's axes to OpenGL's, or back: y and z change sign in [..., 3]."""
    return vectors * np.array([1, -1, -1], np.float32)


def intrinsics_from_focal(
    focal: float, size_hw: tuple[int, int], *, principal_xy: tuple[float, float] | None = None
) -> NDArray[np.float32]:
    """Return intrinsics, float32 [3, 3], for a focal length in pixels; the principal point is the middle by default."""
    if not (math.isfinite(focal) and focal > 0):
        raise InputError(f"focal: expected pixels above 0, got {focal}.")
    x, y = middle_xy(size_hw) if principal_xy is None else principal_xy
    return np.array([[focal, 0, x], [0, focal, y], [0, 0, 1]], np.float32)


def intrinsics_from_fov(degrees: float, size_hw: tuple[int, int], *, axis: Axis = "horizontal") -> NDArray[np.float32]:
    """Return intrinsics, float32 [3, 3], for a field of view in degrees: across, down, or from corner to corner."""
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


def check_intrinsics(intrinsics: Any) -> NDArray[np.float32]:
    """Return intrinsics given as anything 3×3 as float32 [3, 3], or raise `InputError` where they are none."""
    try:
        matrix = np.asarray(intrinsics, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"intrinsics: expected 3×3 numbers, got {type(intrinsics).__name__}.") from error
    if matrix.shape != (3, 3):
        raise InputError(f"intrinsics: expected the shape [3, 3], got {list(matrix.shape)}.")
    fits = np.isfinite(matrix).all() and min(matrix[0, 0], matrix[1, 1]) > 0 and np.allclose(matrix[2], [0, 0, 1])
    if not fits:
        raise InputError(
            f"intrinsics: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]] with fx and fy above 0, "
            f"got {matrix.tolist()}. Focal lengths are in pixels."
        )
    return matrix


def scale_from_focal(focal: float, *, size_hw: tuple[int, int], input_hw: tuple[int, int]) -> float:
    """Return the scale of a picture of known focal length (in its pixels) that was fitted into the model's input.

    `size_hw` is the picture's size and `input_hw` the model's; the picture keeps its aspect ratio inside it.
    """
    if not (math.isfinite(focal) and focal > 0):
        raise InputError(f"focal: expected pixels above 0, got {focal}.")
    return CANONICAL_FOCAL * input_hw[0] / (focal * fitted(size_hw, input_hw))


def focal_from_scale(scale: float, *, size_hw: tuple[int, int], input_hw: tuple[int, int]) -> float:
    """Return the focal length in the picture's pixels that a scale of the model stands for; see `scale_from_focal`."""
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"scale: expected a number above 0, got {scale}.")
    return CANONICAL_FOCAL * input_hw[0] / (scale * fitted(size_hw, input_hw))


def fitted(size_hw: tuple[int, int], input_hw: tuple[int, int]) -> float:
    """Return by what a picture is enlarged to fit inside the model's input."""
    return min(input_hw[0] / size_hw[0], input_hw[1] / size_hw[1])


def middle_xy(size_hw: tuple[int, int]) -> tuple[float, float]:
    """Return the point in the middle of a picture."""
    return (size_hw[1] - 1) / 2, (size_hw[0] - 1) / 2


def estimate_focal(
    points: NDArray[np.float32],
    mask: NDArray[np.bool_] | None = None,
    *,
    principal_xy: tuple[float, float] | None = None,
) -> float | None:
    """Return the focal length in pixels that best explains a pointmap [H, W, 3] in OpenCV's axes.

    Each point should lie on the ray of its pixel: (x, y) / z = (pixel − principal point) / f. The 1/f with the least
    sum of distances between the two sides is found by reweighted least squares: distances, not their squares, and on
    the side of the rays, so that stray points count little however far out they are. Scaling all points alike does not
    change it. None where too few points lie in front of the camera to tell.
    """
    usable = np.isfinite(points).all(-1) & (points[..., 2] > 0)
    if mask is not None:
        usable &= mask
    rows, columns = np.nonzero(usable)
    step = max(1, len(rows) // MOST_SAMPLES)
    rows, columns = rows[::step], columns[::step]
    middle = middle_xy((points.shape[0], points.shape[1])) if principal_xy is None else principal_xy
    pixel = np.stack([columns, rows], axis=-1) - np.array(middle)  # [N, 2]
    found = points[rows, columns].astype(np.float64)  # [N, 3]
    ray = found[:, :2] / found[:, 2:]  # [N, 2]
    keep = (pixel**2).sum(1) >= 1  # along the axis all focal lengths are alike
    pixel, ray = pixel[keep], ray[keep]
    if len(pixel) < FEWEST_SAMPLES:
        return None
    inverse = float(np.median((pixel * ray).sum(1) / (pixel**2).sum(1)))
    for _ in range(ROUNDS):
        distance = np.sqrt(((ray - inverse * pixel) ** 2).sum(1))
        weight = 1 / np.maximum(distance, 1e-6)
        better = float((weight * (pixel * ray).sum(1)).sum() / (weight * (pixel**2).sum(1)).sum())
        settled = abs(better - inverse) <= 1e-7 * abs(inverse)
        inverse = better
        if settled:
            break
    return 1 / inverse if inverse > 1e-9 else None
