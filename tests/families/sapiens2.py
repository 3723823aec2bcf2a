"""Tiny Sapiens2 models: the bare one, the backbone, every task, the 4K tokenizer, pretraining."""

from __future__ import annotations

from typing import Any

import torch

from tests.families.case import FamilyCase
from vitruvian.models.sapiens2.configuration import Sapiens2Config
from vitruvian.models.sapiens2.modeling import Sapiens2Backbone, Sapiens2Model
from vitruvian.models.sapiens2.multitask import HEAD_CLASSES
from vitruvian.models.sapiens2.pretraining import Sapiens2ForPreTraining

HEIGHT, WIDTH = 64, 48
DECONVOLUTION = {"upsample_out_channels": [12, 8], "conv_out_channels": [8, 8]}
SHUFFLE = {
    "upsample_out_channels": [12, 8, 8, 8],
    "upsample_kernel_sizes": [3] * 4,
    "use_pixel_shuffle": True,
    "conv_out_channels": [8, 8],
    "conv_kernel_sizes": [3, 3],
}
SCALE = {"scale_conv_out_channels": [8], "scale_final_hidden_sizes": [12, 6]}


TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_attention_heads": 2,
    "num_first_full_attention_layers": 1,
    "num_last_full_attention_layers": 1,
    "intermediate_size": 48,
    "image_size": [HEIGHT, WIDTH],
    "num_register_tokens": 3,
}


def tiny(**fields: Any) -> Sapiens2Config:
    """A Sapiens2 that runs in milliseconds, with both kinds of attention layers."""
    return Sapiens2Config(**(TINY | {"pos_embed_rescale": None} | fields))


def images(count: int, generator: torch.Generator, scale: int = 1) -> dict[str, Any]:
    return {"pixel_values": torch.randn(count, 3, HEIGHT * scale, WIDTH * scale, generator=generator)}


def heatmaps(count: int, generator: torch.Generator) -> dict[str, Any]:
    return {
        "labels": torch.rand(count, 5, HEIGHT // 4, WIDTH // 4, generator=generator),
        "label_weights": torch.rand(count, 5, generator=generator),
    }


def classes(count: int, generator: torch.Generator) -> dict[str, Any]:
    return {"labels": torch.randint(0, 5, (count, HEIGHT, WIDTH), generator=generator)}


def channels(number: int) -> Any:
    return lambda count, generator: {"labels": torch.rand(count, number, HEIGHT, WIDTH, generator=generator) + 0.1}


def points(count: int, generator: torch.Generator) -> dict[str, Any]:
    cameras = torch.tensor([[60.0, 0, 24], [0, 60, 32], [0, 0, 1]]).expand(count, 3, 3)
    return channels(3)(count, generator) | {"label_intrinsics": cameras}


def masked(count: int, generator: torch.Generator) -> dict[str, Any]:
    positions = torch.rand(count, 12, generator=generator) > 0.5
    teacher = torch.randn(count, 16, generator=generator)
    return {"bool_masked_pos": positions, "teacher_logits": teacher}


PRETRAINING = {
    "use_mask_token": True,
    "num_prototypes": 16,
    "projection_hidden_size": 24,
    "projection_bottleneck_size": 8,
}
SIZES = ((96, 48), (32, 80))


def task_case(task: str, output: str, labels: Any, **fields: Any) -> FamilyCase:
    return FamilyCase(
        f"sapiens2-{task}", HEAD_CLASSES[task], lambda: tiny(**fields), images, labels, output=output, sizes=SIZES
    )


CASES = [
    FamilyCase("sapiens2", Sapiens2Model, tiny, images, sizes=SIZES),
    FamilyCase(
        "sapiens2-plain-mlp", Sapiens2Model, lambda: tiny(use_gated_mlp=False, use_qk_norm=False), images, sizes=SIZES
    ),
    FamilyCase(
        "sapiens2-4k",
        Sapiens2Model,
        lambda: tiny(use_tokenizer=True, tokenizer_window_size=2, image_size=[2 * HEIGHT, 2 * WIDTH]),
        lambda count, generator: images(count, generator, scale=2),
        sizes=((64, 96),),
    ),
    FamilyCase("sapiens2-backbone", Sapiens2Backbone, lambda: tiny(out_indices=[2, 4]), images, output="feature_maps"),
    task_case("pose", "heatmaps", heatmaps, num_labels=5, head_config=DECONVOLUTION, flip_pairs=[[1, 2]]),
    FamilyCase(
        "sapiens2-pose-recipe",
        HEAD_CLASSES["pose"],
        lambda: tiny(num_labels=5, head_config=DECONVOLUTION, use_loss_recipe=True),
        images,
        heatmaps,
        output="heatmaps",
    ),
    task_case("seg", "logits", classes, num_labels=5, head_config=DECONVOLUTION),
    task_case("normal", "normals", channels(3), num_labels=3, head_config=SHUFFLE),
    task_case("albedo", "albedos", channels(3), num_labels=3, head_config=SHUFFLE | {"norm": "rms"}),
    task_case("pointmap", "pointmaps", points, num_labels=3, head_config=SHUFFLE | SCALE),
    task_case("matting", "alphas", channels(4), num_labels=4, head_config=SHUFFLE),
    FamilyCase(
        "sapiens2-pretraining",
        Sapiens2ForPreTraining,
        lambda: tiny(**PRETRAINING),
        images,
        masked,
        output="reconstructions",
        sizes=SIZES,
    ),
]
