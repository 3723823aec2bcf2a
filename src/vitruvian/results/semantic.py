"""`Semantic`: the class of each pixel."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitruvian.draw import class_colors
from vitruvian.errors import InputError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images.types import RgbImage
from vitruvian.results.base import array_of
from vitruvian.results.label_map import LabelMap


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Semantic(LabelMap):
    """The class of each pixel.

    Attributes:
        labels: Number of the class, int32 [H, W], from 0.
        id2label: Names by number. Numbers without a name are called "class N".
    """

    task = "semantic"

    labels: NDArray[np.int32] = field(metadata=array_of(np.int32, "H", "W"))
    id2label: dict[int, str]

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high > 65535:
            raise InputError(f"labels: expected numbers from 0 to 65535, got {low} to {high}.")

    def _names(self) -> dict[int, str]:
        return self.id2label

    def palette(self) -> RgbImage:
        """Return a color for each class up to the largest that is named or occurs, uint8 [K, 3]."""
        return class_colors(max(int(self.labels.max()), *self.id2label, 0) + 1)

    def info(self) -> JsonObject:
        """Return everything but the arrays."""
        return super().info() | {"id2label": {str(label): name for label, name in self.id2label.items()}}
