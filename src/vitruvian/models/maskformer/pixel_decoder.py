"""MaskFormer's pixel level: a backbone and a feature pyramid that gives every pixel an embedding.

pixels [B, 3, H, W] ─▶ backbone ─▶ maps at 1/4 … 1/32 ─▶ FPN, coarse to fine ─▶ [B, C, H/4, W/4] ─▶ [B, M, H/4, W/4]
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.errors import ConfigError
from vitruvian.models.mask_classification.layers import PointwiseConvNorm, conv_norm_relu
from vitruvian.models.mask_classification.modeling import PixelLevelModule
from vitruvian.models.maskformer.configuration import MaskFormerConfig
from vitruvian.models.resnet.modeling import ResNetBackbone
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig
from vitruvian.models.swin.modeling import MaskFormerSwinBackbone


def build_pixel_level(config: MaskFormerConfig) -> PixelLevelModule:
    """Build the backbone and the pixel decoder of a configuration.

    A backbone of the plain Swin type returns all its stages, since published files do not state which they need.
    """
    backbone = config.backbone_config
    if isinstance(backbone, SwinConfig) and not isinstance(backbone, MaskFormerSwinConfig):
        values = backbone.to_dict() | {"model_type": MaskFormerSwinConfig.model_type}
        backbone = MaskFormerSwinConfig.from_dict(values, out_features=backbone.stage_names[1:])
    encoder = (
        MaskFormerSwinBackbone(backbone) if isinstance(backbone, MaskFormerSwinConfig) else ResNetBackbone(backbone)
    )
    if len(encoder.channels) < 2:
        raise ConfigError(
            "MaskFormerConfig.backbone_config: expected out_features of two stages or more, "
            f"got {encoder.out_features}."
        )
    *lateral, last = encoder.channels
    decoder = MaskFormerPixelDecoder(last, lateral, channels=config.fpn_feature_size, outputs=config.mask_feature_size)
    strides = encoder.strides_hw
    return PixelLevelModule(encoder, decoder, level_strides_hw=strides[-2::-1], pixel_stride_hw=strides[0])


class MaskFormerPixelDecoder(nn.Module):
    """A feature pyramid and a projection to pixel embeddings."""

    def __init__(self, inputs: int, lateral: Sequence[int], *, channels: int, outputs: int) -> None:
        super().__init__()
        self.fpn = MaskFormerFeaturePyramid(inputs, lateral, channels)
        self.mask_projection = nn.Conv2d(channels, outputs, 3, padding=1)

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the pyramid, coarse to fine, and pixel embeddings [B, M, H/4, W/4]."""
        pyramid = self.fpn(maps)
        return pyramid, self.mask_projection(pyramid[-1])


class MaskFormerFeaturePyramid(nn.Module):
    """From the coarsest map, one layer for each finer one."""

    def __init__(self, inputs: int, lateral: Sequence[int], channels: int) -> None:
        super().__init__()
        self.stem = conv_norm_relu(inputs, channels, init="xavier")
        self.layers = nn.ModuleList(MaskFormerPyramidLayer(channels, width) for width in reversed(lateral))

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Map the backbone's maps, fine to coarse, to maps of `channels` channels, coarse to fine."""
        current = self.stem(maps[-1])
        levels = []
        for layer, finer in zip(self.layers, reversed(maps[:-1]), strict=True):
            current = layer(current, finer)
            levels.append(current)
        return levels


class MaskFormerPyramidLayer(nn.Module):
    """Add a lateral map to the coarser one, upsampled, and smooth the sum."""

    def __init__(self, channels: int, lateral: int) -> None:
        super().__init__()
        self.proj = PointwiseConvNorm(lateral, channels, bias=False, init="xavier")
        self.block = conv_norm_relu(channels, channels, init="xavier")

    def forward(self, coarse: Tensor, fine: Tensor) -> Tensor:
        """Map [B, C, h/2, w/2] and [B, C', h, w] to [B, C, h, w]."""
        lateral = self.proj(fine)
        out: Tensor = self.block(F.interpolate(coarse, size=lateral.shape[-2:], mode="nearest") + lateral)
        return out
