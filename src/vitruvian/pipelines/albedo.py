"""Colour without light and shadow, with Sapiens2."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from vitruvian.auto import AutoModelForAlbedoEstimation
from vitruvian.models.sapiens2.modeling import Sapiens2ForAlbedoEstimation
from vitruvian.pipelines.dense import DenseOptions, DensePipeline, Values
from vitruvian.results import Albedo


class AlbedoPipeline(DensePipeline[Albedo, DenseOptions]):
    """A colour for each pixel."""

    task = "albedo"
    checkpoints = ("path/to/a/folder/of/Sapiens2ForAlbedoEstimation",)  # none is published on the Hub
    auto = AutoModelForAlbedoEstimation
    accepts = (Sapiens2ForAlbedoEstimation,)
    options_class = DenseOptions
    channels = 3

    def maps(self, out: Any) -> list[Tensor]:
        """Colours [3, h, w] from 0 to 1."""
        return list(out.albedos.float().clamp(0, 1))

    def build(
        self, about: dict[str, Any], values: Values, cover: npt.NDArray[np.bool_] | None, options: DenseOptions
    ) -> Albedo:
        """Build the result."""
        return Albedo(**about, albedo=values, mask=cover)
