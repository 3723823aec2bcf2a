"""Pointmaps with Sapiens2: a 3D point for each pixel.

The model predicts points for a canonical camera: at the distance they would have if an image was taken with its focal
length. A known camera (`K`, a field of view, EXIF) turns them into meters; otherwise the scale that the model predicts
does. All points of an image are scaled alike, so they project to the same pixels. Without a known camera, its focal
length is estimated from the points and the scale. An estimate that no usual lens has is not used: then the camera is
the canonical one, and points are not metric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images import fit_inside_hw
from vitruvian.images.types import BoolArray, Float32Array
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import PointmapOptions
from vitruvian.pipelines.regions import Region
from vitruvian.pipelines.sources import Frame
from vitruvian.pipelines.tasks.dense_base import DenseContext, DensePipeline
from vitruvian.results import Pointmap
from vitruvian.results.pointmap import IntrinsicsFrom

PointsAndScale = tuple[Tensor, Tensor | None]
# Points [H, W, 3] of the whole image, or [3, h, w] of each region, and the scale [1] of each.
DecodedPoints = tuple[Tensor | list[Tensor], list[Tensor | None]]


class _Scene(NamedTuple):
    """Points of an image.

    Attributes:
        points: In axes of the camera [H, W, 3].
        mask: Where there are points [H, W].
        camera: The camera.
        scale: What the predicted points were divided by.
        metric: Whether they are in meters.
    """

    points: Float32Array
    mask: BoolArray
    camera: Camera
    scale: float | None
    metric: bool


class PointmapPipeline(DensePipeline[Pointmap, PointmapOptions]):
    """A point for each pixel, metric if the scale or the camera is known."""

    task = "pointmap"

    def maps(self, out: ModelOutput) -> list[PointsAndScale]:
        """Return points [3, h, w] of the canonical camera, and the scale [1] or None."""
        scales = out.get("scales")
        points = out["pointmaps"].float()
        return list(zip(points, [None] * len(points) if scales is None else scales.float(), strict=True))

    def full_map(self, prepared: Prepared, maps: list[PointsAndScale]) -> DecodedPoints:
        """Return points and scales."""
        points, scales = [one for one, _ in maps], [scale for _, scale in maps]
        if prepared.context.regions is None:
            return self.whole_map(prepared, points[0]), scales
        return self.region_maps(prepared, points), scales

    def finish(self, prepared: Prepared, decoded: tuple[Any, Tensor | None]) -> Pointmap:
        """Make the points metric and estimate the camera."""
        frame: Frame = prepared.frame
        points_and_scales: DecodedPoints = decoded[0]
        (predicted, raw_scales), person = points_and_scales, decoded[1]
        people: BoolArray = np.ones(frame.size_hw, bool) if person is None else person.numpy()
        scales = [_valid_scale(scale) for scale in raw_scales]
        known = known_camera(frame, K=self.options.K, fov=self.options.fov, exif=self.options.exif)
        if isinstance(predicted, Tensor):
            scene = self._locate_whole(predicted.numpy(), scales[0], known, people)
        else:
            scene = self._locate_regions(prepared, predicted, scales, known, people)
        scene.points[~scene.mask] = 0
        result = Pointmap(
            **self.result_fields(frame, prepared.context.people),
            points=scene.points,
            mask=scene.mask,
            intrinsics=scene.camera.K,
            intrinsics_from=scene.camera.origin,
            metric=scene.metric,
            scale=scene.scale if scene.metric else None,
            note=scene.camera.note,
        )
        return result.to_convention(self.options.convention)

    def _locate_whole(
        self, points: Float32Array, scale: float | None, known: Camera | None, people: BoolArray
    ) -> _Scene:
        """Scale the points [H, W, 3] of a whole image, which is one input of the model."""
        canonical = self._canonical_focal(people.shape)
        mask = in_front(points[..., 2]) & people
        camera = known or estimated_camera(
            fit_focal(points, mask) or canonical / (scale or 1.0), canonical, people.shape
        )
        scale = canonical / camera.focal if known else scale
        if camera.note is None:
            points = points / np.float32(scale or 1.0)
        else:
            points = camera.unproject(points[..., 2])
        return _Scene(points, mask, camera, scale, metric=camera.note is None and scale is not None)

    def _locate_regions(
        self,
        prepared: Prepared,
        predicted: list[Tensor],
        scales: list[float | None],
        known: Camera | None,
        people: BoolArray,
    ) -> _Scene:
        """Blend the points [3, h, w] of regions, each of which is one input of the model.

        Each region is predicted as if it were the whole image; the camera that they share relates their depths.
        """
        context: DenseContext = prepared.context
        canonical, regions = self._canonical_focal(people.shape), context.regions or []
        focals = [self._region_focal(region, is_crop=context.are_crops) for region in regions]
        camera = known or estimated_camera(
            median_focal(predicted, scales, focals, regions) or canonical, canonical, people.shape
        )
        depths = [one[2:] * (camera.focal / focal) for one, focal in zip(predicted, focals, strict=True)]
        blended = self.blend_maps(prepared, depths, channels=1, blend="mean")
        depth: Float32Array = blended["values"][..., 0].numpy()
        mask = in_front(depth) & blended["cover"].numpy() & people
        metric = camera.note is None and (known is not None or any(scale is not None for scale in scales))
        return _Scene(camera.unproject(depth), mask, camera, canonical / camera.focal, metric=metric)

    def _canonical_focal(self, size_hw: tuple[int, int]) -> float:
        """Return the canonical focal length in pixels of an image or tile that is resized to the input."""
        height, width = self.processor.size_hw
        inner = fit_inside_hw(size_hw, (height, width)) if self.processor.do_pad else (height, width)
        return CANONICAL_FOCAL * height * math.sqrt(size_hw[0] / inner[0] * (size_hw[1] / inner[1]))

    def _region_focal(self, region: Region, *, is_crop: bool) -> float:
        """Return the canonical focal length of a region in pixels of the image."""
        if is_crop:  # fills the input
            return CANONICAL_FOCAL * region.height
        return self._canonical_focal((int(region.height), int(region.width)))


def _valid_scale(scale: Tensor | None) -> float | None:
    """Return a scale [1] if it is finite and positive."""
    value = 0.0 if scale is None else float(scale[0])
    return value if math.isfinite(value) and value > 0 else None


# ------------------------------------------------------------------------------------------------ cameras


_MIN_DEPTH = 1e-4
_MAX_FITTED_PIXELS = 1 << 16  # that the focal length is fitted to
# Degrees along the long side of the image that an estimate may have: from a portrait telephoto lens (135 mm on 35 mm
# film has 15.2°) to the wide camera of a telephone (13 mm has 108°).
_FIELD_OF_VIEW = (15.0, 110.0)


@dataclass(frozen=True)
class Camera:
    """A camera matrix [3, 3] in source pixels, its origin, and what is wrong with it."""

    K: Float32Array
    origin: IntrinsicsFrom
    note: str | None = None

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return math.sqrt(float(self.K[0, 0]) * float(self.K[1, 1]))

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


def estimated_camera(focal: float, canonical: float, size_hw: tuple[int, int]) -> Camera:
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


def _centered_matrix(focal: float, size_hw: tuple[int, int]) -> Float32Array:
    """Return the matrix [3, 3] of a camera whose principal point is the center of the image."""
    height, width = size_hw
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]], np.float32)


def in_front(depth: Float32Array) -> BoolArray:
    """Return where a depth [H, W] is in front of the camera."""
    mask: BoolArray = np.isfinite(depth) & (depth > _MIN_DEPTH)
    return mask


def fit_focal(points: Float32Array, mask: BoolArray) -> float | None:
    """Return the focal length in pixels that projects points [H, W, 3] closest to their pixels; None if none does.

    Least squares on (x, y) / z against the distance from the center. The ratio is that of the canonical camera too.
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
