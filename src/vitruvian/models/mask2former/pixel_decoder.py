"""Mask2Former's pixel level: a backbone and a pixel decoder of deformable attention.

backbone maps at 1/4 … 1/32; the last three ─▶ tokens [B, N, C] ─▶ encoder layers ─▶ maps at 1/32, 1/16, 1/8
the finest of them, enlarged, + lateral maps ─▶ [B, C, H/4, W/4] ─▶ pixel embeddings [B, M, H/4, W/4]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vitruvian.errors import ConfigError
from vitruvian.layers.deformable import DeformableAttention, Levels, level_sizes
from vitruvian.layers.pyramid import PointwiseNorm, conv_norm_relu, pointwise
from vitruvian.layers.sine import sine_positions
from vitruvian.mask_model import PixelLevelModule
from vitruvian.models.mask2former import fast
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.configuration import SwinConfig
from vitruvian.models.swin.modeling import SwinBackbone

LEVELS = 3  # coarsest maps that go through deformable attention
POINTS = 4  # points a head looks at in each level


def build_pixel_level(config: Mask2FormerConfig) -> PixelLevelModule:
    """Build the backbone and the pixel decoder that a configuration describes."""
    encoder = build_backbone(config)
    return PixelLevelModule(encoder, PixelDecoder(config, encoder.channels))


def build_backbone(config: Mask2FormerConfig) -> SwinBackbone | ResNetBackbone:
    """Build the backbone that a configuration describes."""
    backbone = config.backbone_config
    model: SwinBackbone | ResNetBackbone
    if isinstance(backbone, ResNetConfig):
        model = ResNetBackbone(backbone)
    else:
        assert isinstance(backbone, SwinConfig)
        model = SwinBackbone(backbone)
    if len(model.channels) < LEVELS or len(model.channels) != len(config.feature_strides):
        raise ConfigError(
            f"Mask2FormerConfig: expected a stage in backbone_config.out_features for each of the feature_strides "
            f"{config.feature_strides}, and at least {LEVELS}, got {model.out_features}."
        )
    return model


class PixelDecoder(nn.Module):
    """Deformable attention over the coarse maps, then a feature pyramid for the fine ones."""

    def __init__(self, config: Mask2FormerConfig, inputs: Sequence[int]) -> None:
        super().__init__()
        channels = config.feature_size
        finest = min(config.feature_strides[-LEVELS:])
        self.laterals = int(math.log2(finest) - math.log2(config.common_stride))
        self.level_embed = nn.Parameter(torch.zeros(LEVELS, channels))
        self.input_projections = nn.ModuleList(
            PointwiseNorm(width, channels, bias=True) for width in reversed(inputs[-LEVELS:])
        )
        self.encoder = DeformableEncoder(config)
        self.mask_projection = nn.Conv2d(channels, config.mask_feature_size, 1)
        for number, width in enumerate(inputs[: self.laterals], start=1):
            self.add_module(f"adapter_{number}", PointwiseNorm(width, channels, bias=False))
            self.add_module(f"layer_{number}", conv_norm_relu(channels, channels))

    def forward(self, maps: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Map the backbone's maps, fine to coarse, to maps for the queries, coarse to fine, and pixel embeddings."""
        coarse = [project(m) for project, m in zip(self.input_projections, reversed(maps[-LEVELS:]), strict=True)]
        level_hw = level_sizes(coarse)
        tokens = torch.cat([m.flatten(2).transpose(1, 2) for m in coarse], dim=1)  # [B, N, C]
        positions = [
            sine_positions(size, tokens.shape[-1], tokens.dtype, tokens.device) + level
            for size, level in zip(level_hw, self.level_embed, strict=True)
        ]
        tokens = self.encoder(tokens, torch.cat(positions), level_hw)
        parts = torch.split(tokens, [height * width for height, width in level_hw], dim=1)
        levels = tuple(unflatten(p.transpose(1, 2), 2, hw) for p, hw in zip(parts, level_hw, strict=True))
        current = levels[-1]
        for number in range(self.laterals, 0, -1):
            side = self.get_submodule(f"adapter_{number}")(maps[number - 1])  # [B, C, h, w]
            larger = F.interpolate(current, size=side.shape[-2:], mode="bilinear", align_corners=False)
            current = self.get_submodule(f"layer_{number}")(side + larger)
        return levels, pointwise(self.mask_projection, current)


class DeformableEncoder(nn.Module):
    """Layers of deformable attention."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        self.gradient_checkpointing = False
        self.layers = nn.ModuleList(DeformableLayer(config) for _ in range(config.encoder_layers))

    def forward(self, tokens: Tensor, positions: Tensor, level_hw: Levels) -> Tensor:
        """Map tokens [B, N, C] with positions [N, C] to the same."""
        if not self.training and fast.takes_encoder(self, tokens):
            return fast.run_encoder(self, tokens, positions, level_hw)
        for layer in self.layers:
            if self.gradient_checkpointing and self.training:
                tokens = checkpoint(layer, tokens, positions, level_hw, use_reentrant=False)
            else:
                tokens = layer(tokens, positions, level_hw)
        return tokens


class DeformableLayer(nn.Module):
    """Deformable attention and a feed-forward layer, with a norm after each."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        channels = config.feature_size
        self.self_attn = DeformableAttention(channels, heads=config.num_attention_heads, levels=LEVELS, points=POINTS)
        self.self_attn_layer_norm = nn.LayerNorm(channels)
        self.fc1 = nn.Linear(channels, config.encoder_feedforward_dim)
        self.fc2 = nn.Linear(config.encoder_feedforward_dim, channels)
        self.final_layer_norm = nn.LayerNorm(channels)
        self.drop_rate = config.dropout

    def forward(self, tokens: Tensor, positions: Tensor, level_hw: Levels) -> Tensor:
        """Map tokens [B, N, C] to the same."""
        seen, _ = self.self_attn(tokens, positions, level_hw)
        tokens = self.self_attn_layer_norm(tokens + self.drop(seen))
        fed: Tensor = self.fc2(self.drop(F.relu(self.fc1(tokens))))
        out: Tensor = self.final_layer_norm(tokens + self.drop(fed))
        return out

    def drop(self, x: Tensor) -> Tensor:
        """Apply the dropout of a branch."""
        return F.dropout(x, self.drop_rate, self.training)
