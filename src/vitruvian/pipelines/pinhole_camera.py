"""The camera of an image: known (a matrix, a field of view, EXIF), estimated from predicted points, or assumed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.types import BoolArray, Float32Array, SizeHW
from vitruvian.pipelines.regions import Region
from vitruvian.pipelines.sources import Frame
from vitruvian.results.pointmap import IntrinsicsFrom, focal_length

_MIN_DEPTH = 1e-4
_MAX_FITTED_PIXELS = 1 << 16  # number of pixels that the focal length is fitted to
# Range of plausible fields of view along the long side of the image, in degrees: from a portrait telephoto lens (135 mm
# on 35 mm film has 15.2°) to the wide camera of a telephone (13 mm has 108°).
_FIELD_OF_VIEW = (15.0, 110.0)


@dataclass(frozen=True)
class Camera:
    """A pinhole camera.

    Attributes:
        K: Camera matrix [3, 3] in source pixels.
        origin: Where the matrix comes from.
        note: Why the camera is assumed, or None.
    """

    K: Float32Array
    origin: IntrinsicsFrom
    note: str | None = None

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return focal_length(self.K)

    def unproject(self, depth: Float32Array) -> Float32Array:
        """Return the points of pixels at a depth: [H, W] -> [H, W, 3]."""
        height, width = depth.shape
        rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
        y = (rows - self.K[1, 2]) / self.K[1, 1]
        x = (columns - self.K[0, 2] - self.K[0, 1] * y) / self.K[0, 0]
        return np.stack([x * depth, y * depth, depth], axis=-1).astype(np.float32)  # [H, W, 3]


def known_camera(frame: Frame, *, K: ArrayLike | Tensor | None, fov: float | None, exif: bool) -> Camera | None:
    """Return the camera from the matrix `K`, the field of view or, if `exif`, the EXIF block; None if none has it."""
    if K is not None:
        return Camera(_camera_matrix(K, frame), "given")
    if fov is not None:
        focal = frame.size_hw[1] / 2 / math.tan(math.radians(fov) / 2)
        return Camera(_centered_matrix(focal, frame.size_hw), "field of view")
    if exif and frame.exif_focal_px is not None:
        return Camera(_centered_matrix(frame.exif_focal_px, frame.size_hw), "exif")
    return None


def estimated_camera(focal: float, canonical: float, size_hw: SizeHW) -> Camera:
    """Return the camera of an estimated focal length if a lens may have it, else the canonical one."""
    degrees = math.degrees(2 * math.atan(max(size_hw) / 2 / focal))
    low, high = _FIELD_OF_VIEW
    if low <= degrees <= high:
        return Camera(_centered_matrix(focal, size_hw), "estimated")
    note = (
        f"the estimated field of view, {degrees:.0f}°, is outside of {low:.0f}° to {high:.0f}°; the camera is assumed, "
        "and points are not in meters"
    )
    return Camera(_centered_matrix(canonical, size_hw), "assumed", note)


def _camera_matrix(K: ArrayLike | Tensor, frame: Frame) -> Float32Array:
    """Read a camera matrix [3, 3], or the one of this image among several [N, 3, 3]."""
    try:
        table = np.array(K.detach().cpu() if isinstance(K, Tensor) else K, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"K: expected a camera matrix [3, 3], got {type(K).__name__}.") from error
    if table.ndim == 3:
        if frame.index >= len(table):
            raise InputError(f"K: expected a matrix for each image, got {len(table)}, none for {frame.name}.")
        table = table[frame.index]
    if table.shape != (3, 3):
        raise InputError(f"K: expected the shape [3, 3], got {list(table.shape)}.")
    if not np.isfinite(table).all() or table[0, 0] <= 0 or table[1, 1] <= 0:
        raise InputError(f"K: expected finite numbers and positive focal lengths, got {table.tolist()}.")
    return table


def _centered_matrix(focal: float, size_hw: SizeHW) -> Float32Array:
    """Return the matrix [3, 3] of a camera whose principal point is the center of the image."""
    height, width = size_hw
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]], np.float32)


def in_front(depth: Float32Array) -> BoolArray:
    """Return where a depth [H, W] is in front of the camera."""
    mask: BoolArray = np.isfinite(depth) & (depth > _MIN_DEPTH)
    return mask


def fit_focal(points: Float32Array, mask: BoolArray) -> float | None:
    """Return the focal length in pixels that projects points [H, W, 3] closest to their pixels; None if there is none.

    Least squares of the distance from the center against (x, y) / z, which is the same for points of the canonical
    camera and for metric points.
    """
    height, width = mask.shape
    step = max(1, math.isqrt(height * width // _MAX_FITTED_PIXELS))
    rows, columns = np.mgrid[0:height:step, 0:width:step]
    chosen = mask[::step, ::step]
    if not chosen.any():
        return None
    sampled = points[::step, ::step][chosen].astype(np.float64)  # [n, 3]
    offsets = np.stack([columns - (width - 1) / 2, rows - (height - 1) / 2], axis=-1)[chosen]  # [n, 2]
    ratio = sampled[:, :2] / sampled[:, 2:]  # [n, 2]
    total = float((ratio * ratio).sum())
    focal = float((ratio * offsets).sum()) / total if total > 0 else 0.0
    return focal if math.isfinite(focal) and focal > 1 else None


def median_focal(
    maps: list[Tensor], scales: list[float | None], canonical: list[float], regions: list[Region]
) -> float | None:
    """Return the median focal length of regions, weighted by area, from their scale or fitted to their points."""
    focals, areas = [], []
    for points, scale, region_focal, region in zip(maps, scales, canonical, regions, strict=True):
        focal = None if scale is None else region_focal / scale
        if focal is None:
            array = np.ascontiguousarray(points.permute(1, 2, 0).numpy())  # [h, w, 3]
            fitted = fit_focal(array, in_front(array[..., 2]))
            focal = None if fitted is None else fitted * region.height / array.shape[0]
        if focal is not None:
            focals.append(focal)
            areas.append(region.height * region.width)
    if not focals:
        return None
    order = np.argsort(focals)
    middle = np.searchsorted(np.cumsum(np.array(areas)[order]), sum(areas) / 2)
    return float(focals[order[middle]])
