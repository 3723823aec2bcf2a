"""`Pointmap`: a 3D point for each pixel, with the camera that sees it there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.results.base import Picture, Result
from vitruvian.results.camera import CONVENTIONS, Convention, check_intrinsics, flip_axes, fov_degrees
from vitruvian.results.checks import check_array, check_choice
from vitruvian.results.surface import depth_edges, grid_triangles, usable_pixels

if TYPE_CHECKING:
    from PIL.Image import Image

IntrinsicsFrom = Literal["given", "exif", "field of view", "estimated"]
EDGE_THRESHOLD = 0.04  # of the depth: about the thickness of an arm at two metres
NO_COLOUR = 200


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pointmap(Result):
    """A 3D point for each pixel, in the camera's axes.

    | convention | x | y | z | depth |
    |---|---|---|---|---|
    | "opencv" | right | down | away from the camera | z |
    | "opengl" | right | up | to the camera | −z |

    The model's points are those of its canonical camera; metric points are they divided by `scale`, and that is done
    here already: `points` are in metres where `metric` is true, else in a unit that is not known.

    Attributes:
        points: float32 [H, W, 3].
        mask: Pixels of people, bool [H, W]; elsewhere points mean little.
        intrinsics: The camera, float32 [3, 3], in source pixels.
        intrinsics_from: Where they come from: "given", "exif", "field of view" or "estimated" from the points.
        metric: Whether points are in metres.
        scale: What the model's points were divided by, where they were.
        convention: The axes.
    """

    task: ClassVar[str] = "pointmap"
    endings: ClassVar[tuple[str, ...]] = (".ply", ".glb", ".npz", ".exr", ".png", ".16.png", ".json")

    points: NDArray[np.float32]
    mask: NDArray[np.bool_]
    intrinsics: NDArray[np.float32]
    intrinsics_from: IntrinsicsFrom
    metric: bool
    scale: float | None = None
    convention: Convention = "opencv"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_array("points", self.points, dtype=np.float32, shape=(*self.size_hw, 3))
        check_array("mask", self.mask, dtype=np.bool_, shape=self.size_hw)
        check_array("intrinsics", self.intrinsics, dtype=np.float32, shape=(3, 3))
        check_intrinsics(self.intrinsics)
        check_choice("intrinsics_from", self.intrinsics_from, get_args(IntrinsicsFrom))
        check_choice("convention", self.convention, CONVENTIONS)
        if self.scale is not None and not 0 < self.scale < np.inf:
            raise InputError(f"scale: expected a number above 0, got {self.scale}.")

    @property
    def depth(self) -> NDArray[np.float32]:
        """Distance along the camera's axis, float32 [H, W]."""
        return self.points[..., 2] if self.convention == "opencv" else -self.points[..., 2]

    @property
    def focal(self) -> float:
        """Focal length in source pixels: the mean of both directions, which seldom differ."""
        return float(self.intrinsics[0, 0] + self.intrinsics[1, 1]) / 2

    def to_convention(self, convention: Convention) -> Pointmap:
        """Return the same points in other axes; intrinsics stay, they belong to the picture."""
        check_choice("convention", convention, CONVENTIONS)
        if convention == self.convention:
            return self
        return replace(self, points=flip_axes(self.points), convention=convention)

    def cloud(
        self, *, edge_threshold: float | None = EDGE_THRESHOLD, max_points: int | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Return the points of the mask, float32 [N, 3], and their colours, uint8 [N, 3] (grey without a picture).

        Args:
            edge_threshold: Points where depth jumps by more than this share of it are left out, since they hang between
                what is in front and what is behind; None keeps them.
            max_points: Take at most so many, spread evenly at random (always the same ones).
        """
        keep = self._usable()
        if edge_threshold is not None:
            keep &= ~depth_edges(self.depth, keep, threshold=edge_threshold)
        chosen = np.flatnonzero(keep)
        if max_points is not None:
            if max_points < 1:
                raise InputError(f"max_points: expected at least 1, got {max_points}.")
            if len(chosen) > max_points:
                chosen = np.sort(np.random.default_rng(0).choice(chosen, max_points, replace=False))
        return self.points.reshape(-1, 3)[chosen], self._colours().reshape(-1, 3)[chosen]

    def surface(
        self, *, edge_threshold: float = EDGE_THRESHOLD
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8], NDArray[np.uint32]]:
        """Return the points [N, 3], colours [N, 3] and triangles [M, 3] of the surface, open where depth jumps."""
        triangles = grid_triangles(self.depth, self._usable(), threshold=edge_threshold)
        used = np.zeros(self.points[..., 0].size, bool)
        used[triangles] = True
        renumbered = (np.cumsum(used) - 1).astype(np.uint32)
        return self.points.reshape(-1, 3)[used], self._colours().reshape(-1, 3)[used], renumbered[triangles]

    def save(
        self,
        path: str | Path,
        *,
        mesh: bool = False,
        edge_threshold: float | None = EDGE_THRESHOLD,
        max_points: int | None = None,
    ) -> Path:
        """Write the result; the ending of the name says how, see `endings`. Returns the path.

        | ending | holds |
        |---|---|
        | .ply | the cloud, in the axes of `convention` |
        | .glb | the cloud, or with `mesh` the surface, in glTF's axes, which are OpenGL's |
        | .exr | R, G, B: x, y, z; Z: depth; A: the mask |
        | .png | depth in colours |
        | .16.png | depth in millimetres (thousandths of the unit where not metric), 0 for none, at most 65535 |
        | .npz | everything |
        | .json | the camera |

        `edge_threshold` and `max_points` are those of `cloud`.
        """
        target = Path(path)
        ending = target.suffix.lower()
        if mesh and ending != ".glb":
            raise InputError(f"mesh: expected a name that ends in .glb, got {target.name}.")
        if mesh and (edge_threshold is None or max_points is not None):
            raise InputError("mesh: expected an edge_threshold and no max_points, got the options of a cloud.")
        if ending == ".ply":
            self._write_ply(target, edge_threshold, max_points)
        elif ending == ".glb":
            self._write_glb(target, mesh, edge_threshold, max_points)
        else:
            return super().save(target)
        return target

    def write(self, path: Path, ending: str) -> None:
        """Write what is no cloud; `save` is the way in."""
        from vitruvian.files.arrays import write_exr
        from vitruvian.files.pictures import write_picture, write_png16

        if ending == ".png":
            write_picture(path, np.asarray(self.plot()))
        elif ending == ".16.png":
            thousandths = np.where(self._usable(), np.nan_to_num(self.depth) * 1000, 0)
            write_png16(path, np.clip(np.round(thousandths), 0, 65535).astype(np.uint16))
        elif ending == ".exr":
            channels = {name: self.points[..., axis] for axis, name in enumerate("RGB")}
            channels |= {"Z": self.depth, "A": self.mask.astype(np.float32)}
            write_exr(path, channels, comments=self._describe())
        else:
            super().write(path, ending)

    def plot(self, *, near: float | None = None, far: float | None = None) -> Image:
        """Show depth in colours, warm near and cold far; `near` and `far` set the ends, in the unit of the points."""
        from PIL import Image

        from vitruvian.draw import colour_depth

        return Image.fromarray(colour_depth(self.depth, self._usable(), near=near, far=far))

    def info(self) -> dict[str, Any]:
        """Return what there is beside arrays."""
        return super().info() | {
            "intrinsics_from": self.intrinsics_from,
            "metric": self.metric,
            "scale": self.scale,
            "convention": self.convention,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the camera and the range of depth; the points are in NPZ, EXR, PLY and GLB."""
        depth = self.depth[self._usable()]
        wide, tall = fov_degrees(self.intrinsics, self.size_hw)
        return super().to_dict() | {
            "intrinsics": self.intrinsics.astype(float).tolist(),
            "focal": self.focal,
            "fov_degrees": {"horizontal": round(wide, 4), "vertical": round(tall, 4)},
            "pixels": len(depth),
            "depth_range": [float(depth.min()), float(depth.max())] if len(depth) else None,
        }

    def _usable(self) -> NDArray[np.bool_]:
        return usable_pixels(self.points, self.depth, self.mask)

    def _colours(self) -> Picture:
        return np.full((*self.size_hw, 3), NO_COLOUR, np.uint8) if self.image is None else self.image

    def _describe(self) -> str:
        unit = "metres" if self.metric else "a unit that is not known"
        return f"points x, y, z in {self.convention} camera axes, in {unit}"

    def _write_ply(self, path: Path, edge_threshold: float | None, max_points: int | None) -> None:
        from vitruvian.files.points import write_ply

        points, colours = self.cloud(edge_threshold=edge_threshold, max_points=max_points)
        write_ply(path, points, colours, comments=self._describe())

    def _write_glb(self, path: Path, mesh: bool, edge_threshold: float | None, max_points: int | None) -> None:
        from vitruvian.files.points import write_glb

        upright = self.to_convention("opengl")
        if mesh and edge_threshold is not None:
            write_glb(path, *upright.surface(edge_threshold=edge_threshold))
        else:
            write_glb(path, *upright.cloud(edge_threshold=edge_threshold, max_points=max_points))
