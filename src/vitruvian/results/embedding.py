"""`Embedding`: what a picture shows, as vectors: one for the whole and one for each patch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError
from vitruvian.results.base import Result
from vitruvian.results.checks import check_array

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Embedding(Result):
    """Features of a picture.

    Attributes:
        cls: Vector of the whole picture, float32 [C].
        patches: Vectors of its patches, row by row, float32 [h, w, C].
    """

    task: ClassVar[str] = "embed"
    endings: ClassVar[tuple[str, ...]] = (".npz", ".json")

    cls: NDArray[np.float32]
    patches: NDArray[np.float32]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_array("cls", self.cls, dtype=np.float32, shape=("C",))
        check_array("patches", self.patches, dtype=np.float32, shape=("h", "w", len(self.cls)))

    def similarity(self, other: Embedding) -> float:
        """Return the cosine between the vectors of two pictures: 1 for alike, about 0 for unrelated."""
        if len(self.cls) != len(other.cls):
            raise InputError(f"other: expected {len(self.cls)} channels, got {len(other.cls)}. Use one model for both.")
        lengths = float(np.linalg.norm(self.cls)) * float(np.linalg.norm(other.cls))
        return float(self.cls @ other.cls) / max(lengths, 1e-12)

    def plot(self) -> Image:
        """Show the patches in the colours of their three main directions of variation."""
        from PIL import Image

        from vitruvian.draw import principal_colours

        return Image.fromarray(principal_colours(self.patches, self.size_hw))

    def to_dict(self) -> dict[str, Any]:
        """Return the vector of the whole picture, and the grid of the patches, whose vectors NPZ holds."""
        return super().to_dict() | {"cls": self.cls.astype(float).tolist(), "grid_hw": list(self.patches.shape[:2])}
