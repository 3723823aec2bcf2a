"""Mattes with Sapiens2: alpha and foreground color of each pixel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitruvian.images.guided_filter import foreground_colors
from vitruvian.images.types import BoolArray, Float32Array
from vitruvian.outputs import ModelOutput
from vitruvian.pipelines.base import ResultFields
from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import DenseOptions
from vitruvian.pipelines.tasks.dense_base import DensePipeline, FullMap
from vitruvian.results import Matte


class MattePipeline(DensePipeline[Matte, DenseOptions]):
    """Alpha and premultiplied foreground; both are zero outside of the people that are processed.

    Colors are those of the image, without the background's at the fringe; with ``refine=False`` the model's.
    """

    task = "matte"
    channels = 4
    blend = "alpha"

    def maps(self, out: ModelOutput) -> list[Tensor]:
        """Return premultiplied color, then alpha: [4, h, w]."""
        return list(torch.cat((out["foregrounds"], out["alphas"]), dim=1).float())

    def full_map(self, prepared: Prepared, maps: list[Tensor]) -> FullMap:
        """Return premultiplied color, then alpha: [H, W, 4]."""
        if not self.options.refine:
            unrefined: FullMap = super().full_map(prepared, maps)
            return unrefined
        alpha = self.full_alpha(prepared, [region[3:] for region in maps])  # [H, W]
        colors = foreground_colors(self.image_of(prepared, alpha.device), alpha)  # [3, H, W]
        return torch.cat((colors * alpha, alpha[None])).permute(1, 2, 0).contiguous(), None  # [H, W, 4]

    def build(self, fields: ResultFields, values: Float32Array, mask: BoolArray | None) -> Matte:
        """Build the result."""
        alpha, foreground = np.ascontiguousarray(values[..., 3]), np.ascontiguousarray(values[..., :3])
        return Matte(**fields, alpha=alpha.clip(0, 1), foreground=foreground.clip(0, 1))
