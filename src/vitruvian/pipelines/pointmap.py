"""A point in space for each pixel, with Sapiens2.

The model answers for a canonical camera: points as far away as they would be if its focal length had taken the picture.
What is known of the real camera (`K`, a field of view, EXIF) turns them into metres; otherwise the model's own guess,
its scale, does. All points of a picture are stretched alike, so the pixels they project to stay the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitruvian.auto import AutoModelForPointmapEstimation
from vitruvian.errors import InputError
from vitruvian.images import fit_inside_hw
from vitruvian.models.sapiens2.modeling import CANONICAL_FOCAL, Sapiens2ForPointmapEstimation
from vitruvian.pipelines.crops import Window
from vitruvian.pipelines.dense import DenseOptions, DensePipeline, Values
from vitruvian.pipelines.runner import Prepared
from vitruvian.pipelines.sources import Frame
from vitruvian.results import Pointmap
from vitruvian.results.camera import Convention
from vitruvian.results.pointmap import IntrinsicsFrom

NEAREST = 1e-4  # depth below which there is no point
FITTED = 1 << 16  # pixels that the focal length is fitted to


@dataclass(frozen=True, kw_only=True)
class PointmapOptions(DenseOptions):
    """Options of pointmaps: what is known of the camera.

    Args:
        K: Camera matrix [3, 3] in pixels of the upright picture, the centre of the first pixel being (0, 0); or one
            for each picture [N, 3, 3].
        fov: Horizontal field of view in degrees.
        exif: Whether to believe the focal length in a file's EXIF block, where nothing else is given.
        convention: "opencv" (x right, y down, z away) or "opengl" (x right, y up, z towards the viewer).
    """

    K: Any = None
    fov: float | None = None
    exif: bool = True
    convention: Convention = "opencv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.K is not None and self.fov is not None:
            raise InputError("K and fov: expected one of them, got both. Drop one.")
        if self.fov is not None and not 0 < self.fov < 180:
            raise InputError(f"fov: expected degrees between 0 and 180, got {self.fov}.")


class PointmapPipeline(DensePipeline[Pointmap, PointmapOptions]):
    """A point for each pixel, metric where the scale or the camera is known."""

    task = "pointmap"
    checkpoints = ("facebook/sapiens2-pointmap-0.4b", "facebook/sapiens2-pointmap-1b")
    auto = AutoModelForPointmapEstimation
    accepts = (Sapiens2ForPointmapEstimation,)
    options_class = PointmapOptions

    def maps(self, out: Any) -> list[tuple[Tensor, Tensor | None]]:
        """Points [3, h, w] of the canonical camera, and the scale [1] or None."""
        scales = [None] * len(out.pointmaps) if out.scales is None else list(out.scales.float())
        return list(zip(out.pointmaps.float(), scales, strict=True))

    def decode(self, prepared: Prepared, outputs: list[Any], options: PointmapOptions) -> Any:
        """Return points [H, W, 3] of the whole picture, or those of windows [3, h, w], and the scales."""
        points = self.stretched(prepared, [points for points, _ in outputs])
        return {"points": points, "scales": [scale for _, scale in outputs]}

    def finish(self, prepared: Prepared, decoded: Any, options: PointmapOptions) -> Pointmap:
        """Make the points metric and find the camera."""
        frame, looked = prepared.frame, prepared.note
        camera = known_camera(frame, options)
        scales = [None if scale is None else float(scale[0]) for scale in decoded["scales"]]
        told = [scale if scale is not None and math.isfinite(scale) and scale > 0 else None for scale in scales]
        canonical = self.canonical_focal(frame.size_hw)
        metric = camera is not None or any(scale is not None for scale in told)
        if looked.windows is None:
            points: Values = decoded["points"].numpy()  # [H, W, 3]
            there = in_front(points[..., 2])
            scale = canonical / camera.focal if camera is not None else told[0]
            if camera is None:
                focal = fitted_focal(points, there) or canonical / (scale or 1.0)
                camera = Camera(camera_matrix(focal, frame.size_hw), "estimated")
            points = points / np.float32(scale or 1.0)
        else:
            focals = [self.window_focal(window, looked.persons) for window in looked.windows]
            if camera is None:
                camera = estimated_camera(decoded["points"], told, focals, looked.windows, frame.size_hw, canonical)
            # Windows see their own part as if it were all; what they share is the camera, through depth.
            depths = [one[2:] * (camera.focal / focal) for one, focal in zip(decoded["points"], focals, strict=True)]
            found = self.pasted(prepared, depths, options, channels=1, blend="mean")
            there = in_front(found.values[..., 0]) & found.cover
            points = camera.unprojected(found.values[..., 0])
            scale = canonical / camera.focal if metric else None
        points[~there] = 0
        result = Pointmap(
            **self.about(frame, options, looked.people),
            points=points,
            mask=there,
            intrinsics=camera.K,
            intrinsics_from=camera.origin,
            metric=metric,
            scale=scale,
        )
        return result.to_convention(options.convention)

    def canonical_focal(self, size_hw: tuple[int, int]) -> float:
        """Return the canonical focal length in pixels of a picture or tile that is fitted into the input."""
        height, width = self.processor.size_hw
        inner = fit_inside_hw(size_hw, (height, width)) if self.processor.do_pad else (height, width)
        return CANONICAL_FOCAL * height * math.sqrt(size_hw[0] / inner[0] * (size_hw[1] / inner[1]))

    def window_focal(self, window: Window, person: bool) -> float:
        """Return the canonical focal length of a window in pixels of the picture."""
        if person:  # fills the input
            return CANONICAL_FOCAL * window.height
        return self.canonical_focal((int(window.height), int(window.width)))


@dataclass(frozen=True)
class Camera:
    """A camera matrix [3, 3] in source pixels, and where it is from."""

    K: npt.NDArray[np.float32]
    origin: IntrinsicsFrom

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return math.sqrt(float(self.K[0, 0]) * float(self.K[1, 1]))

    def unprojected(self, depth: Values) -> Values:
        """Return the points [H, W, 3] at depth [H, W] that pixels show."""
        height, width = depth.shape
        rows, columns = np.mgrid[0:height, 0:width].astype(np.float32)
        y = (rows - self.K[1, 2]) / self.K[1, 1]
        x = (columns - self.K[0, 2] - self.K[0, 1] * y) / self.K[0, 0]
        return np.stack([x * depth, y * depth, depth], axis=-1).astype(np.float32)  # [H, W, 3]


def known_camera(frame: Frame, options: PointmapOptions) -> Camera | None:
    """Return what is known of the camera: given, from a field of view, or from EXIF."""
    if options.K is not None:
        return Camera(checked_matrix(options.K, frame), "given")
    if options.fov is not None:
        focal = frame.size_hw[1] / 2 / math.tan(math.radians(options.fov) / 2)
        return Camera(camera_matrix(focal, frame.size_hw), "field of view")
    if options.exif and frame.exif_focal_px is not None:
        return Camera(camera_matrix(frame.exif_focal_px, frame.size_hw), "exif")
    return None


def checked_matrix(K: Any, frame: Frame) -> npt.NDArray[np.float32]:
    """Read a camera matrix, or the one of this picture among several."""
    try:
        table = np.array(K.detach().cpu() if isinstance(K, Tensor) else K, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"K: expected a camera matrix [3, 3], got {type(K).__name__}.") from error
    if table.ndim == 3:
        if frame.index >= len(table):
            raise InputError(f"K: expected a matrix for each picture, got {len(table)}, none for {frame.name}.")
        table = table[frame.index]
    if table.shape != (3, 3):
        raise InputError(f"K: expected the shape [3, 3], got {list(table.shape)}.")
    if not np.isfinite(table).all() or table[0, 0] <= 0 or table[1, 1] <= 0:
        raise InputError(f"K: expected finite numbers and positive focal lengths, got {table.tolist()}.")
    return table


def camera_matrix(focal: float, size_hw: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Return the matrix [3, 3] of a camera that looks at the middle of the picture."""
    height, width = size_hw
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]], np.float32)


def in_front(depth: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Tell where depth [H, W] is that of a point in front of the camera."""
    there: npt.NDArray[np.bool_] = np.isfinite(depth) & (depth > NEAREST)
    return there


def fitted_focal(points: npt.NDArray[np.float32], there: npt.NDArray[np.bool_]) -> float | None:
    """Return the focal length in pixels that projects points [H, W, 3] closest to their pixels, None where none does.

    Least squares on (x, y) / z against the distance from the middle; that ratio is the same in the canonical camera.
    """
    height, width = there.shape
    step = max(1, math.isqrt(height * width // FITTED))
    rows, columns = np.mgrid[0:height:step, 0:width:step]
    chosen = there[::step, ::step]
    if not chosen.any():
        return None
    near = points[::step, ::step][chosen].astype(np.float64)  # [n, 3]
    away = np.stack([columns - (width - 1) / 2, rows - (height - 1) / 2], axis=-1)[chosen]  # [n, 2]
    ratio = near[:, :2] / near[:, 2:]  # [n, 2]
    total = float((ratio * ratio).sum())
    focal = float((ratio * away).sum()) / total if total > 0 else 0.0
    return focal if math.isfinite(focal) and focal > 1 else None


def estimated_camera(
    maps: list[Tensor],
    scales: list[float | None],
    canonical: list[float],
    windows: list[Window],
    size_hw: tuple[int, int],
    otherwise: float,
) -> Camera:
    """Guess the camera from what the windows of a picture say: the median of their focal lengths.

    A window tells it by its scale, or by how its points [3, h, w] fan out.
    """
    focals = []
    for points, scale, own, window in zip(maps, scales, canonical, windows, strict=True):
        if scale is not None:
            focals.append(own / scale)
            continue
        small = np.ascontiguousarray(points.permute(1, 2, 0).numpy())  # [h, w, 3]
        fan = fitted_focal(small, in_front(small[..., 2]))
        if fan is not None:
            focals.append(fan * window.height / small.shape[0])
    return Camera(camera_matrix(float(np.median(focals)) if focals else otherwise, size_hw), "estimated")
