"""Tiny Mask2Former models, on Swin and on ResNet, with norms after and before the branches."""

from __future__ import annotations

from typing import Any

from tests.families.case import FamilyCase
from tests.families.maskformer import NUM_LABELS, SIZES, labels
from tests.families.swin import ALL_STAGES, random_images, resnet_fields, swin_fields
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask2former.modeling import Mask2FormerForUniversalSegmentation, Mask2FormerModel
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import SwinConfig


def tiny_fields(**fields: Any) -> dict[str, Any]:
    """Fields of a Mask2Former that runs in milliseconds, but for its backbone."""
    base: dict[str, Any] = {
        "feature_size": 32,
        "mask_feature_size": 24,
        "hidden_dim": 32,
        "encoder_feedforward_dim": 48,
        "encoder_layers": 2,
        "decoder_layers": 5,
        "num_attention_heads": 4,
        "dim_feedforward": 48,
        "num_queries": 7,
        "train_num_points": 64,
        "num_labels": NUM_LABELS,
    }
    return base | fields


def tiny(**fields: Any) -> Mask2FormerConfig:
    """A Mask2Former that runs in milliseconds."""
    backbone = {"backbone_config": SwinConfig(**swin_fields(out_features=ALL_STAGES))}
    return Mask2FormerConfig(**tiny_fields(**(backbone | fields)))


CASES = [
    FamilyCase(
        "mask2former",
        Mask2FormerModel,
        tiny,
        random_images,
        output="pixel_decoder_last_hidden_state",
        unused=("transformer_module",),  # it reads the pixel embeddings
        sizes=SIZES,
    ),
    FamilyCase(
        "mask2former-universal",
        Mask2FormerForUniversalSegmentation,
        tiny,
        random_images,
        labels,
        output="masks_queries_logits",
        sizes=SIZES,
        bf16_tolerance=0.4,  # masks cut at a threshold steer the attention: a rounded logit can turn a pixel over
    ),
    FamilyCase(
        "mask2former-resnet-prenorm",
        Mask2FormerForUniversalSegmentation,
        lambda: tiny(
            backbone_config=ResNetConfig(**resnet_fields(out_features=ALL_STAGES)),
            pre_norm=True,
            enforce_input_projection=True,
            use_auxiliary_loss=False,
        ),
        random_images,
        labels,
        output="masks_queries_logits",
        sizes=SIZES,
        bf16_tolerance=0.4,  # masks cut at a threshold steer the attention: a rounded logit can turn a pixel over
    ),
]
