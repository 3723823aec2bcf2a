"""Surface normals with Sapiens2."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.auto import AutoModelForNormalEstimation
from vitruvian.models.sapiens2.modeling import Sapiens2ForNormalEstimation
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.tasks.dense_base import DenseOptions, DensePipeline, Floats, Mask, normalize_vectors
from vitruvian.results import Normals
from vitruvian.results.camera import Convention


@dataclass(frozen=True, kw_only=True)
class NormalsOptions(DenseOptions):
    """Options of normals.

    Args:
        convention: "opengl" (x right, y up, z towards the viewer, as the model has it) or "opencv" (x right, y down, z
            away, as pointmaps have it).
    """

    convention: Convention = "opengl"


class NormalsPipeline(DensePipeline[Normals, NormalsOptions]):
    """A unit vector for each pixel."""

    task = "normals"
    auto = AutoModelForNormalEstimation
    accepts = (Sapiens2ForNormalEstimation,)
    options_class = NormalsOptions
    channels = 3
    blend = "unit"

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return unit vectors [3, h, w], so that neither resizing nor blending favours long ones."""
        return list(normalize_vectors(out["normals"].float(), dim=1))

    def after_resize(self, one: Tensor) -> Tensor:
        """Normalize again: an interpolated vector is shorter."""
        return normalize_vectors(one, dim=-1)

    def build(self, fields: ResultFields, values: Floats, cover: Mask | None) -> Normals:
        """Build the result."""
        return Normals(**fields, normals=values, mask=cover, convention="opengl").to_convention(self.options.convention)
