"""Tiny SAM 2 models: the backbone, the vision encoder, and the whole with every kind of prompt."""

from __future__ import annotations

from typing import Any

import torch

from tests.families.case import FamilyCase
from vitruvian.models.sam2.configuration import Sam2Config, Sam2HieraDetConfig, Sam2VisionConfig
from vitruvian.models.sam2.hiera import Sam2HieraDetModel
from vitruvian.models.sam2.modeling import Sam2Model
from vitruvian.models.sam2.vision_encoder import Sam2VisionModel

SIDE = 64


def hiera_fields(side: int = SIDE) -> dict[str, Any]:
    """A Hiera that runs in milliseconds: pooled stages, windows that need padding, one global block."""
    return {
        "hidden_size": 8,
        "image_size": [side, side],
        "window_positional_embedding_background_size": [4, 4],
        "blocks_per_stage": [1, 1, 3, 1],
        "embed_dim_per_stage": [8, 16, 32, 64],
        "num_attention_heads_per_stage": [1, 2, 2, 4],
        "window_size_per_stage": [8, 4, 6, 2],
        "global_attention_blocks": [3],
    }


def vision_fields(side: int = SIDE) -> dict[str, Any]:
    return {
        "backbone_config": hiera_fields(side) | {"model_type": "sam2_hiera_det_model"},
        "backbone_channel_list": [64, 32, 16, 8],
        "backbone_feature_sizes": [[side // 4] * 2, [side // 8] * 2, [side // 16] * 2],
        "fpn_hidden_size": 32,
    }


def model_fields(side: int = SIDE, **decoder: Any) -> dict[str, Any]:
    return {
        "vision_config": vision_fields(side),
        "prompt_encoder_config": {"hidden_size": 32, "image_size": side, "patch_size": 16},
        "mask_decoder_config": {
            "hidden_size": 32,
            "mlp_dim": 48,
            "num_attention_heads": 4,
            "iou_head_hidden_dim": 24,
        }
        | decoder,
    }


def video_fields(side: int = SIDE) -> dict[str, Any]:
    """A video model with 128 channels: object pointers are cut into two tokens."""
    fields = model_fields(side)
    for part in (fields["prompt_encoder_config"], fields["mask_decoder_config"]):
        part["hidden_size"] = 128
    fields["vision_config"]["fpn_hidden_size"] = 128
    return fields | {
        "image_size": side,
        "memory_attention_hidden_size": 128,
        "memory_attention_num_layers": 2,
        "memory_attention_feed_forward_hidden_size": 48,
        "memory_attention_rope_feat_sizes": [side // 16, side // 16],
        "memory_encoder_hidden_size": 128,
        "mask_downsampler_embed_dim": 128,
        "memory_fuser_embed_dim": 128,
        "memory_fuser_intermediate_dim": 48,
        "memory_fuser_num_layers": 1,
    }


def tiny(side: int = SIDE, **decoder: Any) -> Sam2Config:
    return Sam2Config.from_dict(model_fields(side, **decoder))


def images(count: int, generator: torch.Generator) -> dict[str, Any]:
    return {"pixel_values": torch.randn(count, 3, SIDE, SIDE, generator=generator)}


def clicks(count: int, generator: torch.Generator) -> dict[str, Any]:
    """Two objects a image with three points each, of which one is padding; whole pixels, exact in any precision."""
    labels = torch.randint(0, 2, (count, 2, 3), generator=generator)
    labels[:, 1, 2] = -10
    points = torch.randint(0, SIDE, (count, 2, 3, 2), generator=generator).float()
    return images(count, generator) | {"input_points": points, "input_labels": labels}


def boxes(count: int, generator: torch.Generator) -> dict[str, Any]:
    """One object a image, with a box, a point and a mask."""
    low = torch.randint(0, SIDE // 2, (count, 1, 2), generator=generator).float()
    return images(count, generator) | {
        "input_boxes": torch.cat((low, low + 20), dim=-1),
        "input_points": low[:, :, None] + 10,
        "input_masks": torch.randn(count, 1, SIDE // 4, SIDE // 4, generator=generator),
    }


def true_masks(objects: int) -> Any:
    def make(count: int, generator: torch.Generator) -> dict[str, Any]:
        masks = torch.zeros(count, objects, SIDE // 4, SIDE // 4)
        for index in range(count):
            for number in range(objects):
                top, left = torch.randint(0, 8, (2,), generator=generator).tolist()
                masks[index, number, top : top + 7, left : left + 5] = 1
        return {"labels": masks}

    return make


# Softmax does not see a bias that all keys share, so its gradient is rounding noise.
SHIFTS = ("k_proj.bias",)
# Only the mask that fits best is trained, and mask prompts are embedded only where there are some.
NOT_CHOSEN = (*SHIFTS, "output_hypernetworks_mlps", "mask_embed")

CASES = [
    FamilyCase(
        "sam2-hiera",
        Sam2HieraDetModel,
        lambda: Sam2HieraDetConfig(**hiera_fields()),
        images,
        sizes=((32, 96), (128, 64)),
    ),
    FamilyCase(
        "sam2-vision",
        Sam2VisionModel,
        lambda: Sam2VisionConfig(**vision_fields()),
        images,
        output="fpn_hidden_states",
        sizes=((32, 96), (128, 64)),
    ),
    FamilyCase("sam2-clicks", Sam2Model, tiny, clicks, labels=true_masks(2), output="pred_masks", unused=NOT_CHOSEN),
    FamilyCase(
        "sam2-box-point-mask",
        Sam2Model,
        tiny,
        boxes,
        labels=true_masks(1),
        output="pred_masks",
        unused=(*SHIFTS, "output_hypernetworks_mlps", "no_mask_embed"),
        options={"multimask_output": False},
    ),
    FamilyCase(
        "sam2-no-prompt",
        Sam2Model,
        tiny,
        images,
        labels=true_masks(1),
        output="pred_masks",
        # Without points nothing says what kind of point it is.
        unused=(*NOT_CHOSEN, ".point_embed."),
    ),
]
