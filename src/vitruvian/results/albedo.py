"""`Albedo`: the colour of the surface, without light and shadow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw.canvas import RgbImage
from vitruvian.files.arrays import JsonObject, srgb_to_linear, write_exr
from vitruvian.files.images import write_image
from vitruvian.results.base import Result


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Albedo(Result):
    """The colour of the surface.

    Attributes:
        albedo: RGB as sRGB values from 0 to 1, float32 [H, W, 3].
        mask: Pixels of people, bool [H, W]; elsewhere albedo is not reliable.
    """

    task: ClassVar[str] = "albedo"
    endings: ClassVar[tuple[str, ...]] = (".png", ".npz", ".exr")

    albedo: NDArray[np.float32]
    mask: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("albedo", np.float32, *self.size_hw, 3)
        if self.mask is not None:
            self.check("mask", np.bool_, *self.size_hw)

    def plot(self) -> Image.Image:
        """Show the albedo, black outside of the mask."""
        return Image.fromarray(self._rgb8())

    def write(self, path: Path, ending: str) -> None:
        """Write 8-bit sRGB as PNG, the arrays as NPZ, or EXR in linear light with the mask as A."""
        if ending == ".png":
            write_image(path, self._rgb8())
        elif ending == ".exr":
            channels = {name: srgb_to_linear(self.albedo[..., i]) for i, name in enumerate("RGB")}
            if self.mask is not None:
                # Colours of EXR are premultiplied: zero where the mask is empty.
                channels = {name: values * self.mask for name, values in channels.items()}
                channels["A"] = self.mask.astype(np.float32)
            write_exr(path, channels, comments="albedo, linear light, sRGB primaries")
        else:
            super().write(path, ending)

    def to_dict(self) -> JsonObject:
        """Return everything but the map, which NPZ and EXR hold."""
        return super().to_dict() | {"pixels": None if self.mask is None else int(self.mask.sum())}

    def _rgb8(self) -> RgbImage:
        values = np.round(np.clip(np.nan_to_num(self.albedo), 0, 1) * 255).astype(np.uint8)
        return values if self.mask is None else np.where(self.mask[..., None], values, 0).astype(np.uint8)
