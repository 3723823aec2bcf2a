"""Tiny Swin models: the bare one, the backbone, and the backbone of MaskFormer checkpoints; a tiny ResNet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.families.case import FamilyCase
from vitruvian.config import Config
from vitruvian.model import Model
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.models.swin.modeling import MaskFormerSwinBackbone, SwinBackbone, SwinModel

ALL_STAGES = ["stage1", "stage2", "stage3", "stage4"]
SIZES = ((64, 96), (52, 75), (33, 129))


def swin_fields(**fields: Any) -> dict[str, Any]:
    """A Swin that runs in milliseconds, with shifted windows and padding."""
    base: dict[str, Any] = {
        "image_size": 64,
        "embed_dim": 16,
        "depths": [2, 2, 1, 1],
        "num_heads": [1, 2, 2, 4],
        "window_size": 4,
        "mlp_ratio": 2.0,
        "drop_path_rate": 0.0,
    }
    return base | fields


def resnet_fields(**fields: Any) -> dict[str, Any]:
    """A ResNet that runs in milliseconds."""
    base: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 24, 32, 40], "depths": [1, 2, 1, 1]}
    return base | fields


def random_images(count: int, generator: torch.Generator) -> dict[str, Any]:
    """A batch of noise."""
    return {"pixel_values": torch.randn(count, 3, 64, 96, generator=generator)}


def backbone(name: str, cls: type[Model], config: Callable[[], Config], unused: tuple[str, ...] = ()) -> FamilyCase:
    """The case of a backbone."""
    return FamilyCase(name, cls, config, random_images, output="feature_maps", unused=unused, sizes=SIZES)


CASES = [
    FamilyCase("swin", SwinModel, lambda: SwinConfig(**swin_fields()), random_images, sizes=SIZES),
    FamilyCase(
        "swin-positions",
        SwinModel,
        lambda: SwinConfig(**swin_fields(use_absolute_embeddings=True, qkv_bias=False)),
        random_images,
        sizes=SIZES,
        options={"interpolate_pos_encoding": True},
    ),
    backbone("swin-backbone", SwinBackbone, lambda: SwinConfig(**swin_fields(out_features=["stem", *ALL_STAGES]))),
    backbone(
        "maskformer-swin-backbone",
        MaskFormerSwinBackbone,
        lambda: MaskFormerSwinConfig(**swin_fields(out_features=ALL_STAGES)),
        unused=("model.layernorm",),  # published files hold it, but no map passes it
    ),
    backbone(
        "resnet-backbone", ResNetBackbone, lambda: ResNetConfig(**resnet_fields(out_features=["stem", *ALL_STAGES]))
    ),
]
