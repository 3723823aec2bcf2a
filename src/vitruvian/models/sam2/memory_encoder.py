"""Memory encoder: the features of a frame and the mask of an object to the memory of that object in the frame.

mask logits [O, 1, H, W] ─ sigmoid, scale ─ strided convolutions ─▶ [O, C, h, w] ─┐
                   features of the frame [1, C, h, w] ─ 1×1 convolution ──────────┴─ fuser ─ 1×1 ─▶ [O, C', h, w]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitruvian.layers.mlp import activation
from vitruvian.layers.norm import LayerNorm2d
from vitruvian.models.sam2.configuration import Sam2VideoConfig
from vitruvian.models.sam2.layers import per_object
from vitruvian.ops.layer_norm import layer_norm

_NORM_EPS = 1e-6


class MemoryEncoder(nn.Module):
    """Fuses the mask of an object with the features of its frame."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__()
        channels = config.memory_encoder_hidden_size
        self.mask_downsampler = MaskDownsampler(config)
        self.feature_projection = nn.Conv2d(channels, channels, kernel_size=1)
        self.memory_fuser = MemoryFuser(config)
        self.projection = nn.Conv2d(channels, config.memory_encoder_output_channels, kernel_size=1)

    def forward(self, features: Tensor, masks: Tensor) -> Tensor:
        """Encode masks [O, 1, H, W] with features [1, C, h, w] of their frame, or of B frames: [O, C', h, w]."""
        projected = per_object(self.feature_projection(features), len(masks))
        fused = self.memory_fuser(projected + self.mask_downsampler(masks))  # [O, C, h, w]
        memory: Tensor = self.projection(fused)  # [O, C', h, w]
        return memory


class MaskDownsampler(nn.Module):
    """Strided convolutions; each multiplies the channels by what it divides the pixels by."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__()
        stride = config.mask_downsampler_stride
        count = int(math.log2(config.mask_downsampler_total_stride) // math.log2(stride))
        widths = [stride ** (2 * index) for index in range(count + 1)]  # 1, 4, 16, … channels
        self.layers = nn.ModuleList(MaskDownsamplerLayer(config, *widths[i : i + 2]) for i in range(count))
        self.final_conv = nn.Conv2d(widths[-1], config.mask_downsampler_embed_dim, kernel_size=1)

    def forward(self, masks: Tensor) -> Tensor:
        """Map [O, 1, H, W] to [O, C, h, w]."""
        for layer in self.layers:
            masks = layer(masks)
        out: Tensor = self.final_conv(masks)
        return out


class MaskDownsamplerLayer(nn.Module):
    """Convolution, layer norm over channels, activation."""

    def __init__(self, config: Sam2VideoConfig, channels: int, out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            channels,
            out,
            kernel_size=config.mask_downsampler_kernel_size,
            stride=config.mask_downsampler_stride,
            padding=config.mask_downsampler_padding,
        )
        self.layer_norm = LayerNorm2d(out, eps=_NORM_EPS)
        self.act = activation(config.mask_downsampler_hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [O, C, H, W] to [O, C', H/s, W/s]."""
        return self.act(self.layer_norm(self.conv(x)))


class MemoryFuser(nn.Module):
    """ConvNeXt blocks."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MemoryFuserBlock(config) for _ in range(config.memory_fuser_num_layers))

    def forward(self, x: Tensor) -> Tensor:
        """Map [O, C, h, w] to [O, C, h, w]."""
        for layer in self.layers:
            x = layer(x)
        return x


class MemoryFuserBlock(nn.Module):
    """ConvNeXt block: depthwise convolution, norm, two linear layers, scale, residual sum."""

    def __init__(self, config: Sam2VideoConfig) -> None:
        super().__init__()
        channels, hidden = config.memory_fuser_embed_dim, config.memory_fuser_intermediate_dim
        self.depthwise_conv = nn.Conv2d(
            channels,
            channels,
            kernel_size=config.memory_fuser_kernel_size,
            padding=config.memory_fuser_padding,
            groups=channels,
        )
        self.layer_norm = nn.LayerNorm(channels, eps=_NORM_EPS)
        self.pointwise_conv1 = nn.Linear(channels, hidden)
        self.pointwise_conv2 = nn.Linear(hidden, channels)
        self.scale = nn.Parameter(torch.full((channels,), config.memory_fuser_layer_scale_init_value))
        self.scale_init = config.memory_fuser_layer_scale_init_value
        self.act = activation(config.memory_fuser_hidden_act)

    def forward(self, x: Tensor) -> Tensor:
        """Map [O, C, h, w] to [O, C, h, w]."""
        branch: Tensor = layer_norm(self.depthwise_conv(x).movedim(1, -1), self.layer_norm)  # [O, h, w, C]
        branch = self.scale * self.pointwise_conv2(self.act(self.pointwise_conv1(branch)))
        return x + branch.movedim(-1, 1)
