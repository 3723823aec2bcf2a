"""Mattes with Sapiens2: alpha and foreground colour of each pixel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitruvian.auto import AutoModelForImageMatting
from vitruvian.models.sapiens2.modeling import Sapiens2ForImageMatting
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.tasks.dense_base import DenseOptions, DensePipeline, Floats, Mask
from vitruvian.results import Matte


class MattePipeline(DensePipeline[Matte, DenseOptions]):
    """Alpha and premultiplied foreground; both are zero outside of the people that are processed."""

    task = "matte"
    auto = AutoModelForImageMatting
    accepts = (Sapiens2ForImageMatting,)
    options_class = DenseOptions
    channels = 4
    blend = "alpha"

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return premultiplied colour, then alpha: [4, h, w]."""
        return list(torch.cat((out["foregrounds"], out["alphas"]), dim=1).float())

    def build(self, fields: ResultFields, values: Floats, cover: Mask | None) -> Matte:
        """Build the result."""
        alpha, foreground = np.ascontiguousarray(values[..., 3]), np.ascontiguousarray(values[..., :3])
        return Matte(**fields, alpha=alpha.clip(0, 1), foreground=foreground.clip(0, 1))
