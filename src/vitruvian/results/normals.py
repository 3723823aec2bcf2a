"""`Normals`: the direction of the surface at each pixel."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw import color_normals
from vitruvian.files.arrays import write_exr
from vitruvian.files.images import write_png16
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.results.base import array_of
from vitruvian.results.camera_map import CameraMap
from vitruvian.tasks import Convention


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Normals(CameraMap):
    """Surface normals: unit vectors that point out of the surface, in camera axes.

    | convention | x | y | z | a surface that faces the camera |
    |---|---|---|---|---|
    | "opencv" | right | down | away from the camera | (0, 0, −1) |
    | "opengl" | right | up | to the camera | (0, 0, 1) |

    Attributes:
        normals: float32 [H, W, 3].
        mask: Where there are normals, bool [H, W]: pixels of people, if the background is masked. Elsewhere they are 0.
            None for everywhere.
        convention: The axes.
    """

    task = "normals"
    vectors = "normals"
    extensions = (".png", ".16.png", ".npz", ".exr")
    info_fields = ("convention",)

    normals: NDArray[np.float32] = field(metadata=array_of(np.float32, "H", "W", 3))
    mask: NDArray[np.bool_] | None = field(default=None, metadata=array_of(np.bool_, "H", "W"))
    convention: Convention = "opengl"

    def plot(self) -> Image.Image:
        """Show directions in the usual colors: red to the right, green up, blue to the viewer; gray where masked."""
        return Image.fromarray(color_normals(self.normals, self.mask, convention=self.convention))

    def write(self, path: Path, extension: str) -> None:
        """Write the usual colors as 8-bit or 16-bit PNG (x right, y up, z to the viewer, whatever the convention),
        or the values as NPZ, or as EXR: R, G, B are x, y, z, and A is the mask.
        """
        if extension == ".16.png":
            write_png16(path, self._colors16())
        elif extension == ".exr":
            channels = {name: self.normals[..., axis] for axis, name in enumerate("RGB")}
            if self.mask is not None:
                channels["A"] = self.mask.astype(np.float32)
            write_exr(path, channels, comments=f"surface normals x, y, z in {self.convention} camera axes")
        else:
            super().write(path, extension)

    def _colors16(self) -> NDArray[np.uint16]:
        """Return the usual colors in 16 bits, [H, W, 3]: (n + 1) / 2 · 65535 in OpenGL axes, 0 outside of the mask."""
        normals = self.to_convention("opengl").normals
        known: NDArray[np.bool_] = np.all(np.isfinite(normals), axis=-1)  # [H, W]
        if self.mask is not None:
            known = known & self.mask
        values = np.round((np.clip(normals, -1, 1) + 1) * (65535 / 2))  # [H, W, 3]
        return np.where(known[..., None], values, 0).astype(np.uint16)

    def to_dict(self) -> JsonObject:
        """Return everything but the map of normals, which NPZ and EXR hold."""
        return super().to_dict() | {"pixels": None if self.mask is None else int(self.mask.sum())}
