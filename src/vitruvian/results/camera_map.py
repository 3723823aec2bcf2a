"""`CameraMap`, the base of results in camera axes.

Camera axes are x right, y down, z forward (OpenCV) or x right, y up, z backward (OpenGL). A point in OpenCV axes
projects to column fx·x/z + cx and row fy·y/z + cy, where whole numbers are centers of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self, get_args

import numpy as np

from vitruvian.errors import check_choice
from vitruvian.results.base import Result
from vitruvian.tasks import Convention


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class CameraMap(Result):
    """Base of results with a vector for each pixel, in camera axes.

    Attributes:
        vectors: Name of the field with the vectors [H, W, 3].
        convention: The axes.
    """

    vectors: ClassVar[str]

    convention: Convention = "opencv"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("convention", self.convention, get_args(Convention))

    def to_convention(self, convention: Convention) -> Self:
        """Return the same result in other axes."""
        check_choice("convention", convention, get_args(Convention))
        if convention == self.convention:
            return self
        flipped = getattr(self, self.vectors) * np.array([1, -1, -1], np.float32)
        return replace(self, convention=convention, **{self.vectors: flipped})
