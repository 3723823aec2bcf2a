"""Surface normals with Sapiens2."""

from __future__ import annotations

from torch import Tensor

from vitruvian.images.types import BoolArray, Float32Array
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import NormalsOptions
from vitruvian.pipelines.tasks.dense_base import DensePipeline, FullMap, normalize_vectors
from vitruvian.results import Normals


class NormalsPipeline(DensePipeline[Normals, NormalsOptions]):
    """A unit vector for each pixel."""

    task = "normals"
    channels = 3
    blend = "unit"

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return unit vectors [3, h, w], so that neither resizing nor blending favors long ones."""
        return list(normalize_vectors(out["normals"].float(), dim=1))

    def full_map(self, prepared: Prepared, maps: list[Tensor]) -> FullMap:
        """Normalize again: an interpolated vector is shorter."""
        values, cover = super().full_map(prepared, maps)
        return normalize_vectors(values, dim=-1), cover

    def build(self, fields: ResultFields, values: Float32Array, mask: BoolArray | None) -> Normals:
        """Build the result."""
        return Normals(**fields, normals=values, mask=mask, convention="opengl").to_convention(self.options.convention)
