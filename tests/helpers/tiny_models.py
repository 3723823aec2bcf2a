"""Tiny Sapiens2 models, for tests of everything that models share."""

from __future__ import annotations

from typing import Any

import torch

from vitruvian import Sapiens2Config
from vitruvian.models.sapiens2.modeling import Sapiens2TaskModel
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES

SIZE_HW = (48, 32)
DECONVOLUTION = {"upsample_out_channels": [24, 16], "conv_out_channels": [16, 12]}


def shuffle_head(*channels: int, kernel_size: int = 3) -> dict[str, Any]:
    """Return the configuration of a head with pixel shuffles and one convolution."""
    last, kernels = channels[-1], [kernel_size] * len(channels)
    sizes = {"upsample_out_channels": list(channels), "upsample_kernel_sizes": kernels}
    return sizes | {"use_pixel_shuffle": True, "conv_out_channels": [last], "conv_kernel_sizes": [kernel_size]}


SHUFFLE = shuffle_head(16, 8)
SCALE = {"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [8, 4]}

# task -> class, number of labels, head
TASKS: dict[str, tuple[type[Sapiens2TaskModel], int, dict[str, Any]]] = {
    "pose": (HEAD_CLASSES["pose"], 5, DECONVOLUTION),
    "semantic": (HEAD_CLASSES["seg"], 4, DECONVOLUTION),
    "normal": (HEAD_CLASSES["normal"], 3, SHUFFLE),
    "pointmap": (HEAD_CLASSES["pointmap"], 3, SHUFFLE | SCALE),
    "matting": (HEAD_CLASSES["matting"], 4, SHUFFLE),
    "albedo": (HEAD_CLASSES["albedo"], 3, SHUFFLE | {"norm": "rms"}),
}


def tiny_config(**changes: Any) -> Sapiens2Config:
    """Return a configuration of four layers, those in the middle with grouped queries."""
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
    """Return the model of a task with random weights, in evaluation mode."""
    cls, labels, head = TASKS[task]
    torch.manual_seed(7)
    return cls(tiny_config(**({"num_labels": labels, "head_config": head} | changes))).eval()


def pixels(batch: int = 2) -> torch.Tensor:
    """Return random inputs [B, 3, 48, 32]."""
    return torch.randn(batch, 3, *SIZE_HW, generator=torch.Generator().manual_seed(1))
