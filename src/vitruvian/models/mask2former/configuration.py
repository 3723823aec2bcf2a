"""Configuration of Mask2Former."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Self

from vitruvian.config import bounded, config_dataclass
from vitruvian.errors import ConfigError
from vitruvian.layers.mlp import activation
from vitruvian.models.mask_classification.configuration import ALL_STAGES, MaskClassificationConfig
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import SwinConfig


@config_dataclass
class Mask2FormerConfig(MaskClassificationConfig):
    """Mask2Former. The defaults are those of facebook/mask2former-swin-small-coco-instance, but for its labels.

    `MaskClassificationConfig` documents the other fields.

    Args:
        backbone_config: Configuration of the backbone: Swin or ResNet; by default Swin-Small.
        feature_size: Channels of the pixel decoder's maps.
        hidden_dim: Channels of a query.
        encoder_feedforward_dim: Hidden channels of the pixel decoder's feed-forward layers.
        activation_function: Activation of the transformer decoder's feed-forward layers.
        encoder_layers: Number of layers of deformable attention in the pixel decoder.
        decoder_layers: Number of predictions: one before the first decoder layer and one after each.
        num_attention_heads: Number of heads of every attention.
        dropout: Dropout of each branch and of attention weights in training.
        dim_feedforward: Hidden channels of the transformer decoder's feed-forward layers.
        pre_norm: Norm the input of each branch of the transformer decoder rather than the sum.
        enforce_input_projection: Project the maps that queries attend to even where their channels match.
        common_stride: Stride of the finest map of the pixel decoder.
        ignore_value: Class of pixels that the loss ignores. Leave such masks out of the labels, as the image processor
            does with its `ignore_index`.
        num_queries: Number of queries: the most objects that an image can have.
        class_weight: Weight of the class loss, and of its cost in the matching.
        mask_weight: Weight of the cross-entropy of the masks, and of its cost in the matching.
        train_num_points: Number of points at which masks are compared.
        oversample_ratio: Candidates drawn for each point.
        importance_sample_ratio: Share of the points that are chosen for their uncertainty.
        feature_strides: Strides of the backbone's maps.
    """

    model_type: ClassVar[str] = "mask2former"
    backbone_types: ClassVar[dict[str, type[SwinConfig] | type[ResNetConfig]]] = {
        "swin": SwinConfig,
        "resnet": ResNetConfig,
    }
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "hidden_dim", "num_hidden_layers": "decoder_layers"}

    feature_size: int = bounded(256, ge=1)
    hidden_dim: int = bounded(256, ge=1)
    encoder_feedforward_dim: int = bounded(1024, ge=1)
    activation_function: str = "relu"
    encoder_layers: int = bounded(6, ge=1)
    decoder_layers: int = bounded(10, ge=2)
    num_attention_heads: int = bounded(8, ge=1)
    dropout: float = bounded(0.0, ge=0, lt=1)
    dim_feedforward: int = bounded(2048, ge=1)
    pre_norm: bool = False
    enforce_input_projection: bool = False
    common_stride: int = bounded(4, ge=1)
    ignore_value: int = bounded(255)
    num_queries: int = bounded(100, ge=1)
    class_weight: float = bounded(2.0, ge=0)
    mask_weight: float = bounded(5.0, ge=0)
    dice_weight: float = bounded(5.0, ge=0)
    train_num_points: int = bounded(12544, ge=1)
    oversample_ratio: float = 3.0
    importance_sample_ratio: float = 0.75
    use_auxiliary_loss: bool = True
    feature_strides: list[int] = field(default_factory=lambda: [4, 8, 16, 32])

    @classmethod
    def default_backbone(cls) -> SwinConfig:
        """Return the configuration of Swin-Small."""
        return SwinConfig(depths=[2, 2, 18, 2], drop_path_rate=0.3, out_features=ALL_STAGES)

    def validate(self) -> None:
        """Check the fields that layers and losses are built from."""
        super().validate()
        self.require_range(("feature_strides",), 1)
        if self.feature_size % 32 or self.feature_size % self.num_attention_heads:
            raise ConfigError(
                f"Mask2FormerConfig.feature_size: expected a multiple of 32, its groups, and of "
                f"{self.num_attention_heads} heads, got {self.feature_size}."
            )
        if self.hidden_dim % 4 or self.hidden_dim % self.num_attention_heads:
            raise ConfigError(
                f"Mask2FormerConfig.hidden_dim: expected a multiple of 4 and of {self.num_attention_heads} heads, "
                f"got {self.hidden_dim}."
            )
        if self.oversample_ratio < 1 or not 0 <= self.importance_sample_ratio <= 1:
            raise ConfigError(
                "Mask2FormerConfig: expected oversample_ratio of at least 1 and importance_sample_ratio from 0 to 1, "
                f"got {self.oversample_ratio} and {self.importance_sample_ratio}."
            )
        activation(self.activation_function)

    @classmethod
    def from_backbone_config(cls, backbone_config: SwinConfig | ResNetConfig, **fields: Any) -> Self:
        """Build from the configuration of a backbone."""
        return cls(backbone_config=backbone_config, **fields)
