"""`Embedding`: feature vectors of an image, one for the whole and one for each patch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitruvian.draw import principal_colors
from vitruvian.errors import InputError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.results.base import Result, array_of


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Embedding(Result):
    """Features of an image.

    Attributes:
        cls: Vector of the whole image, float32 [C].
        patches: Vectors of its patches, row by row, float32 [h, w, C].
    """

    task = "embed"
    extensions = (".npz", ".json")

    cls: NDArray[np.float32] = field(metadata=array_of(np.float32, "C"))
    patches: NDArray[np.float32] = field(metadata=array_of(np.float32, "h", "w", "C"))

    def similarity(self, other: Embedding) -> float:
        """Return the cosine similarity of the vectors of two images."""
        if len(self.cls) != len(other.cls):
            raise InputError(f"other: expected {len(self.cls)} channels, got {len(other.cls)}. Use one model for both.")
        lengths = float(np.linalg.norm(self.cls)) * float(np.linalg.norm(other.cls))
        return float(self.cls @ other.cls) / max(lengths, 1e-12)

    def plot(self) -> Image.Image:
        """Show the patches in the colors of their first three principal components."""
        return Image.fromarray(principal_colors(self.patches, self.size_hw))

    def to_dict(self) -> JsonObject:
        """Return the vector of the whole image and the grid of the patches, whose vectors NPZ holds."""
        return super().to_dict() | {"cls": self.cls.astype(float).tolist(), "grid_hw": list(self.patches.shape[:2])}
