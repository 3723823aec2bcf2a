"""Configurations of MaskFormer and of the DETR decoder inside it."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Self

from vitruvian.config import Config, ConfigBase, bounded, config_dataclass, nested
from vitruvian.errors import ConfigError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.layers.mlp import activation
from vitruvian.models.mask_classification.configuration import ALL_STAGES, MaskClassificationConfig
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import MaskFormerSwinConfig, SwinConfig


@config_dataclass
class DetrConfig(Config):
    """DETR, of which MaskFormer uses the decoder; the other fields are read from and written to files.

    Args:
        num_channels: Channels of the image.
        num_queries: Number of object queries: the most objects that an image can have.
        encoder_layers: Number of DETR's encoder layers; MaskFormer has none.
        encoder_ffn_dim: Hidden channels of their feed-forward layers.
        encoder_attention_heads: Number of their attention heads.
        decoder_layers: Number of decoder layers.
        decoder_ffn_dim: Hidden channels of their feed-forward layers.
        decoder_attention_heads: Number of their attention heads.
        encoder_layerdrop: Probability of leaving out an encoder layer of DETR in training.
        decoder_layerdrop: Probability of leaving out a decoder layer of DETR in training.
        is_encoder_decoder: Whether DETR has both halves.
        activation_function: Activation of the feed-forward layers.
        d_model: Channels of a query.
        dropout: Dropout of each branch in training.
        attention_dropout: Probability of dropping an attention weight in training.
        activation_dropout: Dropout inside the feed-forward layers in training.
        init_std: Standard deviation of initialized weights.
        init_xavier_std: Gain of Xavier initialization.
        auxiliary_loss: Whether DETR itself trains every decoder layer; see `MaskFormerConfig.use_auxiliary_loss`.
        position_embedding_type: Positions of DETR's features; MaskFormer uses sines.
        use_timm_backbone: Whether DETR's backbone, which MaskFormer replaces, comes from timm.
        backbone: Name of DETR's backbone.
        backbone_config: Configuration of DETR's backbone.
        use_pretrained_backbone: Whether DETR's backbone is pretrained.
        backbone_kwargs: Further settings of DETR's backbone.
        dilation: Whether DETR's backbone trades its last stride for dilation.
        class_cost: Weight of the class in DETR's matching.
        bbox_cost: Weight of box distances in DETR's matching.
        giou_cost: Weight of box overlaps in DETR's matching.
        mask_loss_coefficient: Weight of DETR's mask loss.
        dice_loss_coefficient: Weight of DETR's dice loss.
        bbox_loss_coefficient: Weight of DETR's box loss.
        giou_loss_coefficient: Weight of DETR's overlap loss.
        eos_coefficient: Weight of "no object" in DETR's class loss.
    """

    model_type: ClassVar[str] = "detr"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_hidden_layers": "encoder_layers",
        "num_attention_heads": "encoder_attention_heads",
    }

    num_channels: int = 3
    num_queries: int = bounded(100, ge=1)
    encoder_layers: int = bounded(6, ge=0)
    encoder_ffn_dim: int = 2048
    encoder_attention_heads: int = 8
    decoder_layers: int = bounded(6, ge=1)
    decoder_ffn_dim: int = bounded(2048, ge=1)
    decoder_attention_heads: int = bounded(8, ge=1)
    encoder_layerdrop: float = bounded(0.0, ge=0, lt=1)
    decoder_layerdrop: float = bounded(0.0, ge=0, lt=1)
    is_encoder_decoder: bool = True
    activation_function: str = "relu"
    d_model: int = bounded(256, ge=1)
    dropout: float = bounded(0.1, ge=0, lt=1)
    attention_dropout: float = bounded(0.0, ge=0, lt=1)
    activation_dropout: float = bounded(0.0, ge=0, lt=1)
    init_std: float = 0.02
    init_xavier_std: float = 1.0
    auxiliary_loss: bool = False
    position_embedding_type: str = "sine"
    use_timm_backbone: bool | None = True
    backbone: str | None = "resnet50"
    backbone_config: JsonObject | None = None
    use_pretrained_backbone: bool | None = True
    backbone_kwargs: JsonObject | None = None
    dilation: bool | None = False
    class_cost: float = bounded(1, ge=0)
    bbox_cost: float = bounded(5, ge=0)
    giou_cost: float = bounded(2, ge=0)
    mask_loss_coefficient: float = bounded(1, ge=0)
    dice_loss_coefficient: float = bounded(1, ge=0)
    bbox_loss_coefficient: float = bounded(5, ge=0)
    giou_loss_coefficient: float = bounded(2, ge=0)
    eos_coefficient: float = bounded(0.1, ge=0)

    def validate(self) -> None:
        """Check the fields that the decoder is built from."""
        if self.d_model % self.decoder_attention_heads or self.d_model % 4:
            raise ConfigError(
                f"DetrConfig.d_model: expected a multiple of 4 and of {self.decoder_attention_heads} heads, "
                f"got {self.d_model}."
            )
        activation(self.activation_function)

    def to_dict(self) -> JsonObject:
        """Return the JSON object; a backbone is stated by its configuration or by its name, never by both."""
        values = super().to_dict()
        named = {"backbone", "use_timm_backbone", "use_pretrained_backbone", "backbone_kwargs"}
        if self.backbone_config is not None:
            return {key: value for key, value in values.items() if key not in named}
        unset = {"backbone_config", "backbone_kwargs"}  # other readers stumble over null here
        return {key: value for key, value in values.items() if key not in unset or value is not None}


@config_dataclass
class MaskFormerConfig(MaskClassificationConfig):
    """MaskFormer. The defaults are those of facebook/maskformer-swin-base-ade, but for its labels.

    `MaskClassificationConfig` documents the other fields.

    Args:
        fpn_feature_size: Channels of the feature pyramid.
        backbone_config: Configuration of the backbone: Swin (in either name) or ResNet; by default Swin-Base.
        decoder_config: Configuration of the decoder; by default that of DETR.
        cross_entropy_weight: Weight of the class loss.
        mask_weight: Weight of the focal loss of the masks, and of its cost in the matching.
        norm_auxiliary_states: Make auxiliary predictions from the normed queries after each layer, as in the training
            of the published weights. False makes them as transformers does: from the queries before the first layer
            too, and without the norm.
    """

    model_type: ClassVar[str] = "maskformer"
    written_unless_default: ClassVar[frozenset[str]] = MaskClassificationConfig.written_unless_default | {
        "norm_auxiliary_states"
    }
    backbone_types: ClassVar[dict[str, type[SwinConfig] | type[ResNetConfig]]] = {
        "swin": SwinConfig,
        "maskformer-swin": MaskFormerSwinConfig,
        "resnet": ResNetConfig,
    }
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "mask_feature_size"}
    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = MaskClassificationConfig.sub_configs | {
        "decoder_config": DetrConfig
    }

    fpn_feature_size: int = bounded(256, ge=1)
    decoder_config: DetrConfig = field(default_factory=DetrConfig)
    cross_entropy_weight: float = bounded(1.0, ge=0)
    mask_weight: float = bounded(20.0, ge=0)
    norm_auxiliary_states: bool = True

    def __post_init__(self) -> None:
        self.decoder_config = nested(self.decoder_config, DetrConfig) or DetrConfig()
        super().__post_init__()

    @classmethod
    def default_backbone(cls) -> SwinConfig:
        """Return the configuration of Swin-Base."""
        return SwinConfig(
            image_size=384,
            embed_dim=128,
            depths=[2, 2, 18, 2],
            num_heads=[4, 8, 16, 32],
            window_size=12,
            drop_path_rate=0.3,
            out_features=ALL_STAGES,
        )

    def validate(self) -> None:
        """Check the fields that layers and losses are built from."""
        super().validate()
        if self.fpn_feature_size % 32:
            raise ConfigError(
                f"MaskFormerConfig.fpn_feature_size: expected a multiple of 32, got {self.fpn_feature_size}."
            )

    @classmethod
    def from_backbone_and_decoder_configs(
        cls, backbone_config: SwinConfig | ResNetConfig, decoder_config: DetrConfig, **fields: Any
    ) -> Self:
        """Build from the configurations of a backbone and a decoder."""
        return cls(backbone_config=backbone_config, decoder_config=decoder_config, **fields)

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop derived fields."""
        for name in ("num_attention_heads", "num_hidden_layers"):
            values.pop(name, None)
        return super().upgrade(values)

    @property
    def num_attention_heads(self) -> int:
        """Attention heads of the decoder's configuration."""
        return self.decoder_config.encoder_attention_heads

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the decoder's configuration."""
        return self.decoder_config.encoder_layers
