"""Surface normals, with Sapiens2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitruvian.auto import AutoModelForNormalEstimation
from vitruvian.models.sapiens2.modeling import Sapiens2ForNormalEstimation
from vitruvian.pipelines.dense import DenseOptions, DensePipeline, Values, unit_vectors
from vitruvian.results import Normals
from vitruvian.results.camera import Convention


@dataclass(frozen=True, kw_only=True)
class NormalsOptions(DenseOptions):
    """Options of normals.

    Args:
        convention: "opengl" (x right, y up, z towards the viewer: the model's own) or "opencv" (x right, y down, z
            away: those of pointmaps).
    """

    convention: Convention = "opengl"


class NormalsPipeline(DensePipeline[Normals, NormalsOptions]):
    """A unit vector for each pixel."""

    task = "normals"
    checkpoints = ("facebook/sapiens2-normal-0.4b", "facebook/sapiens2-normal-1b")
    auto = AutoModelForNormalEstimation
    accepts = (Sapiens2ForNormalEstimation,)
    options_class = NormalsOptions
    channels = 3
    blend = "unit"

    def maps(self, out: Any) -> list[Tensor]:
        """Unit vectors [3, h, w], so that neither stretching nor blending favours long ones."""
        return list(unit_vectors(out.normals.float(), dim=1))

    def polished(self, one: Tensor) -> Tensor:
        """Between two directions a vector is shorter: make it a unit again."""
        return unit_vectors(one, dim=-1)

    def build(
        self, about: dict[str, Any], values: Values, cover: npt.NDArray[np.bool_] | None, options: NormalsOptions
    ) -> Normals:
        """Build the result."""
        found = Normals(**about, normals=values, mask=cover, convention="opengl")
        return found.to_convention(options.convention)
