"""Mask2Former's pixel level: a backbone and a pixel decoder of deformable attention.

backbone maps at 1/4 … 1/32; the last three ─▶ tokens [B, N, C] ─▶ encoder layers ─▶ maps at 1/32, 1/16, 1/8
the finest of them, upsampled, + lateral maps ─▶ [B, C, H/4, W/4] ─▶ pixel embeddings [B, M, H/4, W/4]
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn, unflatten
from torch.nn import functional as F

from vitruvian.errors import ConfigError
from vitruvian.layers.gradient_checkpointing import CheckpointedLayer, checkpointed
from vitruvian.layers.init import with_init
from vitruvian.layers.joined_linear import JoinedLinear
from vitruvian.layers.sine_positions import sine_positions
from vitruvian.models.mask2former.configuration import Mask2FormerConfig
from vitruvian.models.mask_classification.layers import PointwiseConvNorm, conv_norm_relu
from vitruvian.models.mask_classification.modeling import PixelLevelModule
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.modeling import SwinBackbone
from vitruvian.ops.deformable_attention import LevelSizes, deformable_attention
from vitruvian.ops.interpolate import bilinear
from vitruvian.ops.layer_norm import layer_norm_of_sum, layer_norm_of_sum_and_positions
from vitruvian.ops.pointwise_conv import conv1x1

LEVELS = 3  # coarsest maps, which go through deformable attention
_POINTS = 4  # sampled points of a head in each level


def build_pixel_level(config: Mask2FormerConfig) -> PixelLevelModule:
    """Build the backbone and the pixel decoder of a configuration."""
    backbone = config.backbone_config
    encoder = ResNetBackbone(backbone) if isinstance(backbone, ResNetConfig) else SwinBackbone(backbone)
    if len(encoder.channels) < LEVELS or len(encoder.channels) != len(config.feature_strides):
        raise ConfigError(
            f"Mask2FormerConfig: expected a stage in backbone_config.out_features for each of the feature_strides "
            f"{config.feature_strides}, and at least {LEVELS}, got {encoder.out_features}."
        )
    decoder = Mask2FormerPixelDecoder(config, encoder.channels)
    strides = encoder.strides_hw
    pixel_stride_hw = strides[len(strides) - LEVELS - decoder.laterals]
    levels = strides[: -LEVELS - 1 : -1]
    return PixelLevelModule(encoder, decoder, level_strides_hw=levels, pixel_stride_hw=pixel_stride_hw)


class Mask2FormerPixelDecoder(nn.Module):
    """Deformable attention over the coarse maps, then a feature pyramid for the fine ones."""

    def __init__(self, config: Mask2FormerConfig, inputs: Sequence[int]) -> None:
        super().__init__()
        channels = config.feature_size
        finest = min(config.feature_strides[-LEVELS:])
        self.laterals = int(math.log2(finest) - math.log2(config.common_stride))
        if not 0 <= self.laterals <= len(inputs) - LEVELS:
            raise ConfigError(
                f"Mask2FormerConfig.common_stride: expected {finest} or less, with a map of the backbone for each "
                f"halving ({len(inputs) - LEVELS}), got {config.common_stride}."
            )
        self.level_embed = nn.Parameter(torch.zeros(LEVELS, channels))
        self.input_projections = nn.ModuleList(
            PointwiseConvNorm(width, channels, bias=True) for width in reversed(inputs[-LEVELS:])
        )
        self.encoder = DeformableEncoder(config)
        self.mask_projection = nn.Conv2d(channels, config.mask_feature_size, 1)
        for number, width in enumerate(inputs[: self.laterals], start=1):
            self.add_module(f"adapter_{number}", PointwiseConvNorm(width, channels, bias=False))
            self.add_module(f"layer_{number}", conv_norm_relu(channels, channels))

    def init_parameters(self) -> None:
        """Set the embeddings of the levels to zero."""
        nn.init.zeros_(self.level_embed)

    def forward(self, maps: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Tensor]:
        """Map the backbone's maps, fine to coarse, to maps for the queries, coarse to fine, and pixel embeddings."""
        coarse = [project(m) for project, m in zip(self.input_projections, reversed(maps[-LEVELS:]), strict=True)]
        level_hw = tuple((m.shape[-2], m.shape[-1]) for m in coarse)
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
            lateral = self.get_submodule(f"adapter_{number}")(maps[number - 1])  # [B, C, h, w]
            upsampled = bilinear(current, lateral.shape[-2:])
            current = self.get_submodule(f"layer_{number}")(lateral + upsampled)
        return levels, conv1x1(self.mask_projection, current)


class DeformableEncoder(nn.Module):
    """Layers of deformable attention."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DeformableLayer(config) for _ in range(config.encoder_layers))

    def forward(self, tokens: Tensor, positions: Tensor, level_hw: LevelSizes) -> Tensor:
        """Map tokens [B, N, C] with positions [N, C] to the same."""
        with_positions = tokens + positions  # [B, N, C]
        for layer in self.layers:
            tokens, with_positions = checkpointed(layer)(tokens, with_positions, positions, level_hw)
        return tokens


class DeformableLayer(CheckpointedLayer):
    """Deformable attention and a feed-forward layer, with a norm after each."""

    def __init__(self, config: Mask2FormerConfig) -> None:
        super().__init__()
        channels = config.feature_size
        self.self_attn = DeformableAttention(channels, heads=config.num_attention_heads, levels=LEVELS, points=_POINTS)
        self.self_attn_layer_norm = nn.LayerNorm(channels)
        self.fc1 = nn.Linear(channels, config.encoder_feedforward_dim)
        self.fc2 = nn.Linear(config.encoder_feedforward_dim, channels)
        self.final_layer_norm = nn.LayerNorm(channels)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, tokens: Tensor, with_positions: Tensor, positions: Tensor, level_hw: LevelSizes
    ) -> tuple[Tensor, Tensor]:
        """Map tokens [B, N, C], and the same with positions [N, C] added, to the next of both."""
        attended = self.self_attn(tokens, with_positions, level_hw)
        tokens = layer_norm_of_sum(tokens, self.dropout(attended), self.self_attn_layer_norm)
        branch = self.dropout(self.fc2(self.dropout(F.relu(self.fc1(tokens)))))
        return layer_norm_of_sum_and_positions(tokens, branch, self.final_layer_norm, positions)


class DeformableAttention(nn.Module):
    """Deformable self-attention over the tokens of several feature levels."""

    def __init__(self, channels: int, *, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.shape = (heads, levels, points)
        self.sampling_offsets = SamplingOffsets(channels, heads, levels, points)
        self.attention_weights = with_init(nn.Linear(channels, heads * levels * points), "zero")
        self.value_proj = with_init(nn.Linear(channels, channels), "xavier")
        self.output_proj = with_init(nn.Linear(channels, channels), "xavier")
        self._joined: JoinedLinear | None = None  # of offsets and scores

    def forward(self, tokens: Tensor, queries: Tensor, level_hw: LevelSizes) -> Tensor:
        """Attend from queries [B, N, C], tokens with positions, to points around them: [B, N, C]."""
        if self._joined is not None and self._joined.is_usable(self.sampling_offsets, self.attention_weights):
            samples = math.prod(self.shape)
            offsets, scores = torch.split(self._joined(queries), [2 * samples, samples], dim=-1)
        else:
            offsets, scores = self.sampling_offsets(queries), self.attention_weights(queries)
        sampled = deformable_attention(
            self.value_proj(tokens),
            unflatten(offsets, -1, (*self.shape, 2)),  # [B, N, A, L, P, 2]
            unflatten(scores, -1, self.shape),  # [B, N, A, L, P]
            level_hw,
        )
        out: Tensor = self.output_proj(sampled)
        return out

    def optimize_weights(self) -> None:
        """Join the projections to offsets and scores."""
        self._joined = JoinedLinear([self.sampling_offsets, self.attention_weights])


class SamplingOffsets(nn.Linear):
    """Projection to offsets [A, L, P, 2] of the sampled points."""

    def __init__(self, channels: int, heads: int, levels: int, points: int) -> None:
        super().__init__(channels, heads * levels * points * 2)
        self.shape = (heads, levels, points)

    def init_parameters(self) -> None:
        """Point each head in another direction, each of its points one step further out."""
        heads, levels, points = self.shape
        nn.init.zeros_(self.weight)
        angle = torch.arange(heads, dtype=torch.float32) * (2 * math.pi / heads)
        direction = torch.stack((angle.cos(), angle.sin()), dim=-1)  # [A, 2]
        direction = direction / direction.abs().amax(dim=-1, keepdim=True)
        steps = torch.arange(1, points + 1, dtype=torch.float32)
        offsets = (direction[:, None, None] * steps[:, None]).expand(heads, levels, points, 2)
        self.bias.data.copy_(offsets.flatten())
