"""Tiny MaskFormer models, on Swin and on ResNet."""

from __future__ import annotations

from typing import Any

import torch

from tests.families.case import FamilyCase
from tests.families.swin import ALL_STAGES, random_images, resnet_fields, swin_fields
from vitruvian.models.maskformer.configuration import DetrConfig, MaskFormerConfig
from vitruvian.models.maskformer.modeling import MaskFormerForInstanceSegmentation, MaskFormerModel
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import SwinConfig

NUM_LABELS = 5
SIZES = ((64, 96), (52, 75))
# The queries start at zero, so that the first layer's attention among them has nothing to tell apart.
FIRST_LAYER = tuple(f"decoder.layers.0.self_attn.{part}_proj" for part in "qkv")
UNUSED = (*FIRST_LAYER, "encoder.model.layernorm")


def detr_fields(**fields: Any) -> dict[str, Any]:
    """A decoder that runs in milliseconds."""
    sizes = {"d_model": 32, "decoder_layers": 3, "decoder_ffn_dim": 48, "decoder_attention_heads": 4}
    return sizes | {"encoder_layers": 1, "num_queries": 7, "dropout": 0.0} | fields


def tiny(**fields: Any) -> MaskFormerConfig:
    """A MaskFormer that runs in milliseconds."""
    base: dict[str, Any] = {
        "backbone_config": SwinConfig(**swin_fields(out_features=ALL_STAGES)),
        "decoder_config": DetrConfig(**detr_fields()),
        "fpn_feature_size": 32,
        "mask_feature_size": 24,
        "num_labels": NUM_LABELS,
    }
    return MaskFormerConfig(**(base | fields))


def labels(count: int, generator: torch.Generator) -> dict[str, Any]:
    """Objects for a batch: none in the second image, one more in each other."""
    numbers = [0 if index == 1 else index + 2 for index in range(count)]
    return {
        "mask_labels": [torch.rand(n, 64, 96, generator=generator) > 0.6 for n in numbers],
        "class_labels": [torch.randint(0, NUM_LABELS, (n,), generator=generator) for n in numbers],
    }


CASES = [
    FamilyCase(
        "maskformer",
        MaskFormerModel,
        tiny,
        random_images,
        output="transformer_decoder_last_hidden_state",
        # Pixel embeddings meet the queries in the head.
        unused=(
            *UNUSED,
            "pixel_level_module.decoder",
            "hidden_states_norms.0",
            "hidden_states_norms.1",
            "hidden_states_norms.2",
        ),
        sizes=SIZES,
    ),
    FamilyCase(
        "maskformer-instance",
        MaskFormerForInstanceSegmentation,
        lambda: tiny(use_auxiliary_loss=True),
        random_images,
        labels,
        output="masks_queries_logits",
        unused=UNUSED,
        sizes=SIZES,
    ),
    FamilyCase(
        "maskformer-resnet",
        MaskFormerForInstanceSegmentation,
        lambda: tiny(backbone_config=ResNetConfig(**resnet_fields(out_features=ALL_STAGES))),
        random_images,
        labels,
        output="class_queries_logits",
        unused=UNUSED,
        sizes=SIZES,
    ),
]
