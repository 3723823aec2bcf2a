"""Pipelines at toy size: every task with a tiny model, and images for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.families.sam2 import SIDE, tiny, video_fields
from tests.helpers.tiny_checkpoints import SWIN
from tests.helpers.tiny_models import SIZE_HW, tiny_config, tiny_task
from vitruvian import (
    Mask2FormerConfig,
    Mask2FormerForUniversalSegmentation,
    Mask2FormerImageProcessor,
    Sam2ImageProcessor,
    Sam2Model,
    Sam2Processor,
    Sam2VideoConfig,
    Sam2VideoModel,
    Sam2VideoProcessor,
    Sam2VideoVideoProcessor,
    Sapiens2ImageProcessor,
    Sapiens2Model,
    SwinConfig,
    pipeline,
)
from vitruvian.images.types import RgbImage
from vitruvian.tasks import find_task

# task -> what tests/helpers/tiny_models.py calls its model, and whether its images are padded
SAPIENS = {
    "pose": ("pose", False),
    "parts": ("semantic", False),
    "normals": ("normal", True),
    "pointmap": ("pointmap", True),
    "matte": ("matting", False),
    "albedo": ("albedo", True),
}
DENSE = ("parts", "normals", "pointmap", "matte", "albedo")
QUERIES = ("semantic", "instances", "panoptic")
TASKS = (*SAPIENS, *QUERIES, "segment", "masks", "embed")
# What a call needs beside the image, or to find something with random weights.
NEEDS: dict[str, dict[str, Any]] = {
    "segment": {"points": [[9, 7]]},
    "instances": {"threshold": 0.0},
    "panoptic": {"threshold": 0.0, "overlap_mask_area_threshold": 0.0},
    "masks": {"points_per_crop": 3, "pred_iou_thresh": -1.0, "stability_score_thresh": -1.0},
}


def sample_image(seed: int = 0, size_hw: tuple[int, int] = (40, 56)) -> np.ndarray:
    """A smooth image: what resizing does to it hardly depends on how."""
    generator = np.random.default_rng(seed)
    coarse = torch.from_numpy(generator.uniform(0, 255, (1, 3, 4, 5)))
    large = torch.nn.functional.interpolate(coarse, size=size_hw, mode="bicubic")[0].clamp(0, 255)
    return np.ascontiguousarray(large.permute(1, 2, 0).to(torch.uint8).numpy())


def leeway(name: str, *, atol: float, rtol: float) -> dict[str, float]:
    """How far values of a result may lie apart when the order of sums differs, as other batches and threads have it.

    Heatmaps of random weights are nearly flat: the last digits move their peaks, whose refinement divides by a
    curvature near zero. Other people and other images lie much farther apart.
    """
    return {"atol": 0.5, "rtol": 1e-2} if name == "keypoints" else {"atol": atol, "rtol": rtol}


def sapiens_processor(padded: bool = False) -> Sapiens2ImageProcessor:
    return Sapiens2ImageProcessor(size={"height": SIZE_HW[0], "width": SIZE_HW[1]}, do_pad=padded)


def parts_of(task: str) -> tuple[Any, Any]:
    """A model with random weights and its processor."""
    torch.manual_seed(3)
    task = find_task(task).name
    if task in SAPIENS:
        name, padded = SAPIENS[task]
        return tiny_task(name), sapiens_processor(padded)
    if task == "embed":
        return Sapiens2Model(tiny_config()), sapiens_processor()
    if task in QUERIES:
        config = Mask2FormerConfig(
            backbone_config=SwinConfig(**SWIN),
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=16,
            dim_feedforward=16,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            num_queries=6,
            id2label={0: "sky", 1: "person", 2: "dog"},
        )
        size = {"shortest_edge": 64, "longest_edge": 96}
        return Mask2FormerForUniversalSegmentation(config), Mask2FormerImageProcessor(size=size, num_labels=3)
    images = Sam2ImageProcessor(
        size={"height": SIDE, "width": SIDE}, mask_size={"height": SIDE // 4, "width": SIDE // 4}
    )
    if task == "track":
        return tracking_model(), Sam2VideoProcessor(images, Sam2VideoVideoProcessor(size=images.size))
    return Sam2Model(tiny()), Sam2Processor(images)


def tracking_model() -> Sam2VideoModel:
    """A model whose masks are neither empty nor full."""
    model = Sam2VideoModel(Sam2VideoConfig.from_dict(video_fields()))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:  # larger than for training
                parameter.copy_(torch.randn_like(parameter) * parameter[0].numel() ** -0.5)
        model.mask_decoder.pred_obj_score_head.proj_out.bias.fill_(4)  # objects are visible
    return model


def opened(task: str, **options: Any) -> Any:
    """A pipeline of a task on the CPU; it processes whole images unless options say otherwise."""
    model, processor = parts_of(task)
    if find_task(task).name in SAPIENS and "boxes" not in options:
        options = {"detect": "whole"} | options
    return pipeline(task, model, processor=processor, device="cpu", **(NEEDS.get(task, {}) | options))


def arrays(result: Any) -> dict[str, np.ndarray]:
    """All arrays of a result; masks too."""
    return result.arrays()


def write_clip(path: Path, frames: Sequence[RgbImage]) -> Path:
    """Write a video of 10 frames per second, if PyAV is installed."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path
