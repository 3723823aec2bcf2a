"""Inputs of benchmarks: smooth random images, and small Sapiens2 models with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

_LABELS = {"pose": 308, "parts": 29, "normals": 3, "matte": 4}
TASKS = tuple(_LABELS)


def smooth_image(size_hw: tuple[int, int], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return smooth random colors [H, W, 3]."""
    coarse = generator.uniform(0, 255, (9, 16, 3)).astype(np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((size_hw[1], size_hw[0]), Image.Resampling.BICUBIC))


def add_noise(image: NDArray[np.uint8], std: float, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return an image with gray noise, which makes JPEG files as large as those of photographs."""
    noise = generator.normal(0, std, (*image.shape[:2], 1)).astype(np.int16)
    return (image + noise).clip(0, 255).astype(np.uint8)


def small_sapiens2(
    task: str,
    image_hw: tuple[int, int],
    *,
    channels: Sequence[int] = (8, 4),
    hidden_size: int = 64,
    layers: int = 2,
    intermediate_size: int = 128,
) -> Any:
    """Return a Sapiens2 model for a task; `channels` are those of the head's upsampling stages."""
    import torch

    from vitruvian import Sapiens2Config
    from vitruvian.models.sapiens2.multitask import HEAD_CLASSES
    from vitruvian.tasks import find_task

    torch.manual_seed(0)
    head: dict[str, Any] = {"upsample_out_channels": list(channels), "conv_out_channels": [channels[-1]]}
    if task not in ("pose", "parts"):
        kernels = {"upsample_kernel_sizes": [3] * len(channels), "conv_kernel_sizes": [3]}
        head |= {"use_pixel_shuffle": True} | kernels
    heads = max(2, hidden_size // 64)
    config = Sapiens2Config(
        image_size=list(image_hw),
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_attention_heads=heads // 2,
        num_labels=_LABELS[task],
        head_config=head,
    )
    return HEAD_CLASSES[str(find_task(task).sapiens2_head)](config)


def save_checkpoint(model: Any, folder: Path) -> None:
    """Write a model with its processor."""
    from vitruvian import Sapiens2ImageProcessor

    height, width = model.config.image_hw
    model.save_pretrained(folder)
    Sapiens2ImageProcessor(size={"height": height, "width": width}, do_pad=True).save_pretrained(folder)
