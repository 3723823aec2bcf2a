"""Configuration of Mask2Former."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Self

from vitruvian.config import settings
from vitruvian.errors import ConfigError
from vitruvian.layers.mlp import activation
from vitruvian.models.mask_classification.configuration import ALL_STAGES, MaskClassificationConfig
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import SwinConfig


@settings
class Mask2FormerConfig(MaskClassificationConfig):
    """Mask2Former. The defaults are those of facebook/mask2former-swin-small-coco-instance, but for its labels.

    Args:
        backbone_config: Configuration of the backbone: Swin or ResNet; by default Swin-Small.
        feature_size: Channels of the pixel decoder's maps.
        mask_feature_size: Channels of the pixel embeddings that masks are scored with.
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
        no_object_weight: Weight of the class "no object" in the class loss.
        class_weight: Weight of the class loss, and of its cost in the matching.
        mask_weight: Weight of the cross-entropy of the masks, and of its cost in the matching.
        dice_weight: Weight of the dice loss, and of its cost in the matching.
        train_num_points: Number of points at which masks are compared.
        oversample_ratio: Candidates drawn for each point.
        importance_sample_ratio: Share of the points that are chosen for their uncertainty.
        init_std: Standard deviation of initialized weights.
        init_xavier_std: Gain of Xavier initialization.
        use_auxiliary_loss: Train the predictions after every decoder layer, not only after the last.
        feature_strides: Strides of the backbone's maps.
        output_auxiliary_logits: Return the predictions after every decoder layer unless a call says otherwise.
        backbone: A folder or Hub name to read `backbone_config` from.
        use_pretrained_backbone: Initialize a new model with the weights of `backbone`.
        use_timm_backbone: Must be False; timm is not supported.
        backbone_kwargs: Fields to change in the configuration that `backbone` gives.
        use_pixel_mask: Compute each image without the padding that `pixel_mask` marks, so that a batch of mixed sizes
            gives the results of single images. None does so in calls without labels; with labels the padded batch is
            computed, as in the training of the published weights. True crops in both cases. False ignores
            `pixel_mask`, as the reference does.
    """

    model_type: ClassVar[str] = "mask2former"
    backbone_types: ClassVar[dict[str, type[SwinConfig] | type[ResNetConfig]]] = {
        "swin": SwinConfig,
        "resnet": ResNetConfig,
    }
    positive_fields: ClassVar[tuple[str, ...]] = (
        "encoder_layers",
        "num_attention_heads",
        "num_queries",
        "train_num_points",
        "common_stride",
    )
    non_negative_fields: ClassVar[tuple[str, ...]] = ("no_object_weight", "class_weight", "mask_weight", "dice_weight")

    feature_size: int = 256
    hidden_dim: int = 256
    encoder_feedforward_dim: int = 1024
    activation_function: str = "relu"
    encoder_layers: int = 6
    decoder_layers: int = 10
    num_attention_heads: int = 8
    dropout: float = 0.0
    dim_feedforward: int = 2048
    pre_norm: bool = False
    enforce_input_projection: bool = False
    common_stride: int = 4
    ignore_value: int = 255
    num_queries: int = 100
    class_weight: float = 2.0
    mask_weight: float = 5.0
    dice_weight: float = 5.0
    train_num_points: int = 12544
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
        if self.decoder_layers < 2:
            raise ConfigError(
                f"Mask2FormerConfig.decoder_layers: expected at least 2 (the first predicts without a layer), "
                f"got {self.decoder_layers}."
            )
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
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"Mask2FormerConfig.dropout: expected at least 0 and below 1, got {self.dropout}.")
        activation(self.activation_function)

    @classmethod
    def from_backbone_config(cls, backbone_config: SwinConfig | ResNetConfig, **fields: Any) -> Self:
        """Build from the configuration of a backbone."""
        return cls(backbone_config=backbone_config, **fields)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop derived fields."""
        values.pop("num_hidden_layers", None)
        return super().upgrade(values)

    @property
    def hidden_size(self) -> int:
        """Same as `hidden_dim`."""
        return self.hidden_dim

    @property
    def num_hidden_layers(self) -> int:
        """Same as `decoder_layers`."""
        return self.decoder_layers
