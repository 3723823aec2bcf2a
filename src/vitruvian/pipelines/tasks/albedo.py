"""Albedo with Sapiens2: colours without light and shadow."""

from __future__ import annotations

from torch import Tensor

from vitruvian.auto import AutoModelForAlbedoEstimation
from vitruvian.models.sapiens2.modeling import Sapiens2ForAlbedoEstimation
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.tasks.dense_base import DenseOptions, DensePipeline, Floats, Mask
from vitruvian.results import Albedo


class AlbedoPipeline(DensePipeline[Albedo, DenseOptions]):
    """A colour for each pixel."""

    task = "albedo"
    auto = AutoModelForAlbedoEstimation
    accepts = (Sapiens2ForAlbedoEstimation,)
    options_class = DenseOptions
    channels = 3

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return colours [3, h, w] from 0 to 1."""
        return list(out["albedos"].float().clamp(0, 1))

    def build(self, fields: ResultFields, values: Floats, cover: Mask | None) -> Albedo:
        """Build the result."""
        return Albedo(**fields, albedo=values, mask=cover)
