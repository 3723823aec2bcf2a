"""A pose model of one layer, and images for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.families.sapiens2 import DECONVOLUTION, tiny
from vitruvian.models.sapiens2.modeling import Sapiens2ForPoseEstimation


def build() -> Sapiens2ForPoseEstimation:
    torch.manual_seed(0)
    fields: dict[str, Any] = {"num_hidden_layers": 1, "num_key_value_heads_per_layer": [2]}
    return Sapiens2ForPoseEstimation(tiny(num_labels=5, head_config=DECONVOLUTION, **fields)).eval()


def pixels(batch: int = 1) -> Tensor:
    return torch.randn(batch, 3, 64, 48, generator=torch.Generator().manual_seed(batch))
