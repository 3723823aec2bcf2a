"""Albedo with Sapiens2: colors without light and shadow."""

from __future__ import annotations

from torch import Tensor

from vitruvian.images.types import BoolArray, Float32Array
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.options import MaskedOptions
from vitruvian.pipelines.tasks.dense_base import DensePipeline
from vitruvian.results import Albedo


class AlbedoPipeline(DensePipeline[Albedo, MaskedOptions]):
    """A color for each pixel."""

    task = "albedo"
    channels = 3

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return colors [3, h, w] from 0 to 1."""
        return list(out["albedos"].float().clamp(0, 1))

    def build(self, fields: ResultFields, values: Float32Array, mask: BoolArray | None) -> Albedo:
        """Build the result."""
        return Albedo(**fields, albedo=values, mask=mask)
