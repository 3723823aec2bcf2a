"""`Albedo`: the color of the surface, without light and shadow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw.canvas import NEUTRAL
from vitruvian.files.arrays import write_exr
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.srgb import srgb_to_linear
from vitruvian.results.base import Result, array_of


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Albedo(Result):
    """The color of the surface.

    Attributes:
        albedo: RGB as sRGB values from 0 to 1, float32 [H, W, 3].
        mask: Where there is albedo, bool [H, W]: pixels of people, if the background is masked. Elsewhere it is 0. None
            for everywhere.
    """

    task = "albedo"
    extensions = (".png", ".npz", ".exr")

    albedo: NDArray[np.float32] = field(metadata=array_of(np.float32, "H", "W", 3))
    mask: NDArray[np.bool_] | None = field(default=None, metadata=array_of(np.bool_, "H", "W"))

    def plot(self) -> Image.Image:
        """Show the albedo; gray outside of the mask."""
        values = np.round(np.clip(np.nan_to_num(self.albedo), 0, 1) * 255).astype(np.uint8)  # [H, W, 3]
        if self.mask is not None:
            values[~self.mask] = NEUTRAL
        return Image.fromarray(values)

    def write(self, path: Path, extension: str) -> None:
        """Write 8-bit sRGB as PNG, the arrays as NPZ, or EXR in linear light with the mask as A."""
        if extension == ".exr":
            linear = srgb_to_linear(torch.from_numpy(np.clip(self.albedo, 0, 1))).numpy()
            channels = {name: linear[..., i] for i, name in enumerate("RGB")}
            if self.mask is not None:
                # Colors of EXR are premultiplied: zero where the mask is empty.
                channels = {name: values * self.mask for name, values in channels.items()}
                channels["A"] = self.mask.astype(np.float32)
            write_exr(path, channels, comments="albedo, linear light, sRGB primaries")
        else:
            super().write(path, extension)

    def to_dict(self) -> JsonObject:
        """Return everything but the map, which NPZ and EXR hold."""
        return super().to_dict() | {"pixels": None if self.mask is None else int(self.mask.sum())}
