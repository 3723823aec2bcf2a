"""Mattes: how much of each pixel is the person, and in what colour, with Sapiens2."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.auto import AutoModelForImageMatting
from vitruvian.models.sapiens2.modeling import Sapiens2ForImageMatting
from vitruvian.pipelines.dense import DenseOptions, DensePipeline, Values
from vitruvian.results import Matte


class MattePipeline(DensePipeline[Matte, DenseOptions]):
    """Alpha and premultiplied foreground; both are zero where nobody was looked at."""

    task = "matte"
    checkpoints = ("facebook/sapiens2-matting-1b",)
    auto = AutoModelForImageMatting
    accepts = (Sapiens2ForImageMatting,)
    options_class = DenseOptions
    channels = 4
    blend = "alpha"

    def maps(self, out: Any) -> list[Tensor]:
        """Premultiplied colour, then alpha: [4, h, w]."""
        return list(torch.cat((out.foregrounds, out.alphas), dim=1).float())

    def build(
        self, about: dict[str, Any], values: Values, cover: npt.NDArray[np.bool_] | None, options: DenseOptions
    ) -> Matte:
        """Build the result."""
        alpha, foreground = np.ascontiguousarray(values[..., 3]), np.ascontiguousarray(values[..., :3])
        return Matte(**about, alpha=alpha.clip(0, 1), foreground=foreground.clip(0, 1))
