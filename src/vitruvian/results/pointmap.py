"""`Pointmap`: a 3D point for each pixel, and the camera."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn import functional as F

from vitruvian.draw import add_depth_bar, color_depth
from vitruvian.errors import InputError, check_choice
from vitruvian.files.arrays import write_exr
from vitruvian.files.images import write_png16
from vitruvian.files.point_clouds import write_glb, write_ply
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.types import RgbImage
from vitruvian.results.base import array_of, with_format
from vitruvian.results.camera_map import CameraMap

IntrinsicsFrom = Literal["given", "exif", "field of view", "estimated", "assumed"]
_EDGE_THRESHOLD = 0.04  # relative to the depth: about the thickness of an arm at two meters
_NO_COLOR = 200


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pointmap(CameraMap):
    """A 3D point for each pixel, in camera axes.

    | convention | x | y | z | depth |
    |---|---|---|---|---|
    | "opencv" | right | down | away from the camera | z |
    | "opengl" | right | up | to the camera | −z |

    `points` are in meters where `metric` is true, else in an unknown unit. They are the points of the model's canonical
    camera divided by `scale`.

    Attributes:
        points: float32 [H, W, 3].
        mask: Where there are points, bool [H, W]: pixels of people, if the background is masked. Elsewhere they are 0.
        intrinsics: The camera, float32 [3, 3], in source pixels.
        intrinsics_from: Their origin: "given", "exif", "field of view", "estimated" from the points, or "assumed" where
            the estimate is not plausible: the canonical camera of the model.
        metric: Whether points are in meters.
        scale: What the points of the model were divided by, or None.
        note: Why the camera is assumed, or None.
        convention: The axes.
    """

    task = "pointmap"
    vectors = "points"
    extensions = (".ply", ".glb", ".mesh.glb", ".npz", ".exr", ".png", ".16.png", ".json")
    info_fields = ("intrinsics_from", "metric", "scale", "note", "convention")

    points: NDArray[np.float32] = field(metadata=array_of(np.float32, "H", "W", 3))
    mask: NDArray[np.bool_] = field(metadata=array_of(np.bool_, "H", "W"))
    intrinsics: NDArray[np.float32] = field(metadata=array_of(np.float32, 3, 3))
    intrinsics_from: IntrinsicsFrom
    metric: bool
    scale: float | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        matrix = self.intrinsics
        if not (np.isfinite(matrix).all() and matrix[[0, 1], [0, 1]].min() > 0 and np.allclose(matrix[2], [0, 0, 1])):
            raise InputError(
                f"intrinsics: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]] with fx and fy above 0, "
                f"got {matrix.tolist()}. Focal lengths are in pixels."
            )
        check_choice("intrinsics_from", self.intrinsics_from, get_args(IntrinsicsFrom))
        if self.scale is not None and not 0 < self.scale < np.inf:
            raise InputError(f"scale: expected a number above 0, got {self.scale}.")

    @property
    def depth(self) -> NDArray[np.float32]:
        """Distance along the optical axis, float32 [H, W]."""
        return self.points[..., 2] if self.convention == "opencv" else -self.points[..., 2]

    @property
    def focal(self) -> float:
        """Focal length in source pixels: the geometric mean of fx and fy."""
        return focal_length(self.intrinsics)

    def cloud(
        self, *, edge_threshold: float | None = _EDGE_THRESHOLD, max_points: int | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the points of the mask, float32 [N, 3], and their colors, uint8 [N, 3] (gray without an image).

        Args:
            edge_threshold: Points where depth changes by more than this share of it are left out, since they lie
                between foreground and background; None keeps them.
            max_points: Write a random subset of at most this many points, chosen with a fixed seed.
        """
        keep = self._usable()
        if edge_threshold is not None:
            keep &= ~_depth_edges(self.depth, keep, threshold=edge_threshold)
        chosen = np.flatnonzero(keep)
        if max_points is not None:
            if max_points < 1:
                raise InputError(f"max_points: expected at least 1, got {max_points}.")
            if len(chosen) > max_points:
                chosen = np.sort(np.random.default_rng(0).choice(chosen, max_points, replace=False))
        return self.points.reshape(-1, 3)[chosen], self._colors().reshape(-1, 3)[chosen]

    def surface(
        self, *, edge_threshold: float = _EDGE_THRESHOLD
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint32]]:
        """Return the points [N, 3], colors [N, 3] and triangles [M, 3] of the surface, open at depth edges."""
        triangles = _grid_triangles(self.depth, self._usable(), threshold=edge_threshold)
        used = np.zeros(self.points[..., 0].size, bool)
        used[triangles] = True
        renumbered = (np.cumsum(used) - 1).astype(np.uint32)
        return self.points.reshape(-1, 3)[used], self._colors().reshape(-1, 3)[used], renumbered[triangles]

    def save(  # type: ignore[override]  # further options
        self,
        path: str | Path | IO[bytes],
        format: str | None = None,
        *,
        mesh: bool = False,
        edge_threshold: float | None = _EDGE_THRESHOLD,
        max_points: int | None = None,
    ) -> Path | None:
        """Write the result in the format of the file name's suffix, or to a file object. Returns the path.

        | extension | holds |
        |---|---|
        | .ply | the cloud, in the axes of `convention` |
        | .glb | the cloud, or with `mesh` the surface, in the axes of glTF, which are OpenGL's |
        | .mesh.glb | the surface |
        | .exr | R, G, B: x, y, z; Z: depth; A: the mask |
        | .png | depth in colors |
        | .16.png | depth in millimeters (thousandths of the unit where not metric), 0 for none, at most 65535 |
        | .npz | everything |
        | .json | the camera |

        `edge_threshold` and `max_points` are those of `cloud`.
        """
        if not isinstance(path, str | os.PathLike):
            self._save_to_stream(path, format, mesh=mesh, edge_threshold=edge_threshold, max_points=max_points)
            return None
        target = with_format(path, format)
        extension = target.suffix.lower()
        mesh = mesh or target.name.lower().endswith(".mesh.glb")
        if mesh and extension != ".glb":
            raise InputError(f"mesh: expected a name that ends in .glb, got {target.name}.")
        if mesh and (edge_threshold is None or max_points is not None):
            raise InputError("mesh: needs an edge_threshold; max_points is for point clouds. Leave both out.")
        if extension == ".ply":
            cloud = self.cloud(edge_threshold=edge_threshold, max_points=max_points)
            write_ply(target, *cloud, comments=self._describe())
        elif extension == ".glb":
            upright = self.to_convention("opengl")
            if mesh and edge_threshold is not None:
                write_glb(target, *upright.surface(edge_threshold=edge_threshold))
            else:
                write_glb(target, *upright.cloud(edge_threshold=edge_threshold, max_points=max_points))
        else:
            return super().save(target)
        return target

    def write(self, path: Path, extension: str) -> None:
        """Write the formats that are not point clouds."""
        if extension == ".16.png":
            thousandths = np.where(self._usable(), np.nan_to_num(self.depth) * 1000, 0)
            write_png16(path, np.clip(np.round(thousandths), 0, 65535).astype(np.uint16))
        elif extension == ".exr":
            channels = {name: self.points[..., axis] for axis, name in enumerate("RGB")}
            channels |= {"Z": self.depth, "A": self.mask.astype(np.float32)}
            write_exr(path, channels, comments=self._describe())
        else:
            super().write(path, extension)

    def plot(self, *, near: float | None = None, far: float | None = None, color_bar: bool = False) -> Image.Image:
        """Show depth in colors, warm near and cold far; `near` and `far` set the ends, in the unit of the points.

        With `color_bar`, the colors and the depths at both ends are drawn into the lower left corner.
        """
        usable = self._usable()
        drawn = color_depth(self.depth, usable, near=near, far=far)
        if color_bar:
            unit = " m" if self.metric else ""
            drawn = add_depth_bar(drawn, self.depth[usable], near=near, far=far, unit=unit)
        return Image.fromarray(drawn)

    def to_dict(self) -> JsonObject:
        """Return the camera and the range of depth; the points are in NPZ, EXR, PLY and GLB."""
        depth = self.depth[self._usable()]
        height, width = self.size_hw
        fx, fy = self.intrinsics[[0, 1], [0, 1]].tolist()
        horizontal, vertical = np.degrees(2 * np.arctan([width / 2 / fx, height / 2 / fy])).tolist()
        return super().to_dict() | {
            "intrinsics": self.intrinsics.astype(float).tolist(),
            "focal": self.focal,
            "fov_degrees": {"horizontal": round(horizontal, 4), "vertical": round(vertical, 4)},
            "pixels": len(depth),
            "depth_range": [float(depth.min()), float(depth.max())] if len(depth) else None,
        }

    def _usable(self) -> NDArray[np.bool_]:
        """Return the pixels [H, W] of the mask whose points are finite and in front of the camera."""
        with np.errstate(invalid="ignore"):
            return self.mask & np.isfinite(self.points).all(axis=-1) & (self.depth > 0)

    def _colors(self) -> RgbImage:
        return np.full((*self.size_hw, 3), _NO_COLOR, np.uint8) if self.image is None else self.image

    def _describe(self) -> str:
        unit = "meters" if self.metric else "an unknown unit"
        return f"points x, y, z in {self.convention} camera axes, in {unit}"


def focal_length(K: NDArray[np.float32]) -> float:
    """Return the geometric mean of fx and fy of a camera matrix [3, 3]."""
    return math.sqrt(float(K[0, 0]) * float(K[1, 1]))


def _depth_edges(depth: NDArray[np.float32], usable: NDArray[np.bool_], *, threshold: float) -> NDArray[np.bool_]:
    """Return the pixels [H, W] at depth discontinuities, where points lie between foreground and background.

    That is where the depths of its usable 3×3 neighbors differ by more than `threshold` times the nearest of them.
    """
    far = _max_3x3(np.where(usable, depth, -np.inf))
    near = -_max_3x3(np.where(usable, -depth, -np.inf))
    with np.errstate(invalid="ignore"):
        return usable & (far - near > threshold * near)


def _max_3x3(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the maximum of each 3×3 window of a map [H, W]."""
    return F.max_pool2d(torch.from_numpy(values)[None], 3, stride=1, padding=1)[0].numpy()


def _grid_triangles(depth: NDArray[np.float32], usable: NDArray[np.bool_], *, threshold: float) -> NDArray[np.uint32]:
    """Triangulate the usable pixels of a map [H, W]: triangles [M, 3] of pixel numbers (row · W + column).

    Each square of four pixels gives two. Triangles whose depth range exceeds `threshold` times their nearest corner
    are left out. Seen from the camera they run counter-clockwise.
    """
    height, width = depth.shape
    number = np.arange(height * width, dtype=np.uint32).reshape(height, width)
    corners = {
        (down, right): np.s_[down : height - 1 + down, right : width - 1 + right] for down in (0, 1) for right in (0, 1)
    }
    triangles = []
    for three in (((0, 0), (1, 0), (0, 1)), ((0, 1), (1, 0), (1, 1))):
        depths = np.stack([depth[corners[corner]] for corner in three])  # [3, H − 1, W − 1]
        whole: NDArray[np.bool_] = np.all(np.stack([usable[corners[corner]] for corner in three]), axis=0)
        with np.errstate(invalid="ignore"):
            near = depths.min(0)
            whole &= depths.max(0) - near <= threshold * near
        triangles.append(np.stack([number[corners[corner]][whole] for corner in three], axis=-1))  # [m, 3]
    return np.concatenate(triangles)  # [M, 3]
