"""Surface normals with Sapiens2."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.engine.task import Prepared
from vitruvian.pipelines.tasks.dense_base import DensePipeline, Floats, FullMap, Mask, MaskedOptions, normalize_vectors
from vitruvian.results import Normals
from vitruvian.results.camera import Convention


@dataclass(frozen=True, kw_only=True)
class NormalsOptions(MaskedOptions):
    """Options of normals.

    Args:
        convention: "opengl" (x right, y up, z towards the viewer, as the model has it) or "opencv" (x right, y down, z
            away, as pointmaps have it).
    """

    convention: Convention = "opengl"


class NormalsPipeline(DensePipeline[Normals, NormalsOptions]):
    """A unit vector for each pixel."""

    task = "normals"
    options_class = NormalsOptions
    channels = 3
    blend = "unit"

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return unit vectors [3, h, w], so that neither resizing nor blending favours long ones."""
        return list(normalize_vectors(out["normals"].float(), dim=1))

    def full_map(self, prepared: Prepared, maps: list[Tensor]) -> FullMap:
        """Normalize again: an interpolated vector is shorter."""
        values, cover = super().full_map(prepared, maps)
        return normalize_vectors(values, dim=-1), cover

    def build(self, fields: ResultFields, values: Floats, mask: Mask | None) -> Normals:
        """Build the result."""
        return Normals(**fields, normals=values, mask=mask, convention="opengl").to_convention(self.options.convention)
