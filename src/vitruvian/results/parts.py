"""`Parts`: the body part of each pixel."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.files.images import write_png_zip
from vitruvian.human import PART_COLORS, PART_NAMES
from vitruvian.images.label_maps import count_labels
from vitruvian.images.types import RgbImage
from vitruvian.results.base import array_of
from vitruvian.results.label_map import LabelMap


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Parts(LabelMap):
    """The body part of each pixel. Left and right are the person's own.

    Attributes:
        labels: Number of the part, uint8 [H, W]; 0 is the background.
        names: Names of the K parts, by default the 29 of Sapiens2.
        colors: RGB of each, uint8 [K, 3].
        score: Confidence of the model at each pixel, float16 [H, W], 0 to 1.
    """

    task = "parts"
    extensions: ClassVar[tuple[str, ...]] = (*LabelMap.extensions, ".parts.zip")
    background = 0
    classes_key = "parts"
    supercategory = "person"
    info_fields = ("names",)

    labels: NDArray[np.uint8] = field(metadata=array_of(np.uint8, "H", "W"))
    names: tuple[str, ...] = PART_NAMES
    colors: NDArray[np.uint8] = field(
        default_factory=lambda: np.array(PART_COLORS, np.uint8), metadata=array_of(np.uint8, "K", 3)
    )
    score: NDArray[np.float16] | None = field(default=None, metadata=array_of(np.float16, "H", "W"))

    def _array_lengths(self) -> dict[str, int]:
        return {"K": len(self.names)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels.max() >= len(self.names):
            raise InputError(
                f"labels: expected numbers from 0 to {len(self.names) - 1}, got {self.labels.max()}. Name each class."
            )

    def _names(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    def write(self, path: Path, extension: str) -> None:
        """Write what any map of labels can be, or a ZIP with a mask for each part that occurs, 255 where it is."""
        if extension == ".parts.zip":
            found = [label for label in count_labels(self.labels) if label != self.background]
            write_png_zip(path, {self.name(part): (self.labels == part).astype(np.uint8) * 255 for part in found})
        else:
            super().write(path, extension)

    def palette(self) -> RgbImage:
        """Return `colors`."""
        return self.colors
