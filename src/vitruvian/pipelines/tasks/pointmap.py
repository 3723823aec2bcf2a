"""Pointmaps with Sapiens2: a 3D point for each pixel.

The model predicts points for a canonical camera: at the distance they would have if an image was taken with its focal
length. A known camera (`K`, a field of view, EXIF) turns them into meters; otherwise the scale that the model predicts
does. All points of an image are scaled alike, so they project to the same pixels. Without a known camera, its focal
length is estimated from the points and the scale. An estimate that no usual lens has is not used: then the camera is
the canonical one, and points are not metric.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from vitruvian.images import fit_inside_hw
from vitruvian.images.types import BoolArray, Float32Array, SizeHW
from vitruvian.models.sapiens2.configuration import CANONICAL_FOCAL
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import PointmapOptions
from vitruvian.pipelines.pinhole_camera import Camera, estimated_camera, fit_focal, in_front, known_camera, median_focal
from vitruvian.pipelines.regions import Region
from vitruvian.pipelines.sources import Frame
from vitruvian.pipelines.tasks.dense_base import DenseContext, DensePipeline
from vitruvian.results import Pointmap

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
        points, scales = [points_map for points_map, _ in maps], [scale for _, scale in maps]
        if prepared.context.regions is None:
            return self.resize_to_image(prepared, points[0]), scales
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
        depths = [region[2:] * (camera.focal / focal) for region, focal in zip(predicted, focals, strict=True)]
        blended = self.blend_maps(prepared, depths, channels=1, blend="mean")
        depth: Float32Array = blended["values"][..., 0].numpy()
        mask = in_front(depth) & blended["cover"].numpy() & people
        metric = camera.note is None and (known is not None or any(scale is not None for scale in scales))
        return _Scene(camera.unproject(depth), mask, camera, canonical / camera.focal, metric=metric)

    def _canonical_focal(self, size_hw: SizeHW) -> float:
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
