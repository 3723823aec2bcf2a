"""`Albedo`: the colour of the surface itself, without light and shadow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitruvian.results.base import Picture, Result
from vitruvian.results.checks import check_array
from vitruvian.results.light import srgb_to_linear

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Albedo(Result):
    """The colour of the surface itself.

    Attributes:
        albedo: RGB as sRGB values from 0 to 1, float32 [H, W, 3].
        mask: Pixels of people, bool [H, W]; elsewhere albedo means little.
    """

    task: ClassVar[str] = "albedo"
    endings: ClassVar[tuple[str, ...]] = (".png", ".npz", ".exr")

    albedo: NDArray[np.float32]
    mask: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_array("albedo", self.albedo, dtype=np.float32, shape=(*self.size_hw, 3))
        if self.mask is not None:
            check_array("mask", self.mask, dtype=np.bool_, shape=self.size_hw)

    def picture(self) -> Picture:
        """Return the albedo in 8 bits, uint8 [H, W, 3], black outside the mask."""
        values = np.round(np.clip(np.nan_to_num(self.albedo), 0, 1) * 255).astype(np.uint8)
        return values if self.mask is None else np.where(self.mask[..., None], values, 0).astype(np.uint8)

    def plot(self) -> Image:
        """Show the albedo."""
        from PIL import Image

        return Image.fromarray(self.picture())

    def write(self, path: Path, ending: str) -> None:
        """Write 8-bit sRGB as PNG, the numbers as NPZ, or EXR in linear light with the mask as A."""
        from vitruvian.files.arrays import write_exr
        from vitruvian.files.pictures import write_picture

        if ending == ".png":
            write_picture(path, self.picture())
        elif ending == ".exr":
            channels = {name: srgb_to_linear(self.albedo[..., i]) for i, name in enumerate("RGB")}
            if self.mask is not None:
                # EXR's colours are premultiplied: nothing where the mask is empty.
                channels = {name: values * self.mask for name, values in channels.items()}
                channels["A"] = self.mask.astype(np.float32)
            write_exr(path, channels, comments="albedo, linear light, sRGB primaries")
        else:
            super().write(path, ending)

    def to_dict(self) -> dict[str, Any]:
        """Return what there is beside the map of albedo, which NPZ and EXR hold."""
        return super().to_dict() | {"pixels": None if self.mask is None else int(self.mask.sum())}
