"""Sapiens2 at toy size, for tests of everything that models share."""

from __future__ import annotations

from typing import Any

import torch

from vitruvian import (
    Sapiens2Config,
    Sapiens2ForAlbedoEstimation,
    Sapiens2ForImageMatting,
    Sapiens2ForNormalEstimation,
    Sapiens2ForPointmapEstimation,
    Sapiens2ForPoseEstimation,
    Sapiens2ForSemanticSegmentation,
)
from vitruvian.models.sapiens2.modeling import Sapiens2TaskModel

SIZE_HW = (48, 32)
DECONVOLUTION = {"upsample_out_channels": [24, 16], "conv_out_channels": [16, 12]}
SHUFFLE = {
    "upsample_out_channels": [16, 8],
    "upsample_kernel_sizes": [3, 3],
    "use_pixel_shuffle": True,
    "conv_out_channels": [8],
    "conv_kernel_sizes": [3],
}
SCALE = {"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [8, 4]}

# task -> class, number of labels, head
TASKS: dict[str, tuple[type[Sapiens2TaskModel], int, dict[str, Any]]] = {
    "pose": (Sapiens2ForPoseEstimation, 5, DECONVOLUTION),
    "semantic": (Sapiens2ForSemanticSegmentation, 4, DECONVOLUTION),
    "normal": (Sapiens2ForNormalEstimation, 3, SHUFFLE),
    "pointmap": (Sapiens2ForPointmapEstimation, 3, SHUFFLE | SCALE),
    "matting": (Sapiens2ForImageMatting, 4, SHUFFLE),
    "albedo": (Sapiens2ForAlbedoEstimation, 3, SHUFFLE | {"norm": "rms"}),
}


def tiny_config(**changes: Any) -> Sapiens2Config:
    """A configuration of four layers with grouped keys in the middle."""
    fields = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_attention_heads": 1,
        "num_first_full_attention_layers": 1,
        "num_last_full_attention_layers": 1,
        "num_register_tokens": 2,
        "image_size": list(SIZE_HW),
    }
    return Sapiens2Config(**(fields | changes))


def tiny_task(task: str = "pose", **changes: Any) -> Sapiens2TaskModel:
    """A task's model with random weights, in evaluation mode."""
    cls, labels, head = TASKS[task]
    torch.manual_seed(7)
    return cls(tiny_config(**({"num_labels": labels, "head_config": head} | changes))).eval()


def pixels(batch: int = 2) -> torch.Tensor:
    """Prepared pictures [B, 3, 48, 32]."""
    return torch.randn(batch, 3, *SIZE_HW, generator=torch.Generator().manual_seed(1))
