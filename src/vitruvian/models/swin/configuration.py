"""Configurations of Swin and of the Swin of MaskFormer checkpoints, which differ in their name alone."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from vitruvian.config import Size, as_hw, bounded, config_dataclass
from vitruvian.errors import ConfigError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.layers.backbone import BackboneConfig, channels_by_stage
from vitruvian.layers.mlp import activation


@config_dataclass
class SwinConfig(BackboneConfig):
    """Swin. The defaults are those of microsoft/swin-tiny-patch4-window7-224.

    Args:
        image_size: Side of the image in pixels, or (height, width); other sizes work too.
        patch_size: Side of a patch in pixels, or (height, width).
        num_channels: Channels of the image.
        embed_dim: Channels of a token in the first stage; each later stage doubles them.
        depths: Number of layers in each stage.
        num_heads: Number of attention heads in each stage.
        window_size: Side of an attention window in tokens.
        mlp_ratio: Hidden channels of the feed-forward layers, as a multiple of the stage's.
        qkv_bias: Whether queries, keys and values have a bias.
        hidden_dropout_prob: Dropout of embeddings and of each branch in training.
        attention_probs_dropout_prob: Probability of dropping an attention weight in training.
        drop_path_rate: Probability of dropping a residual branch in the last layer; earlier layers have less.
        hidden_act: Activation of the feed-forward layers.
        use_absolute_embeddings: Whether positions are added to the patch embeddings.
        initializer_range: Standard deviation of initialized weights.
        layer_norm_eps: Epsilon of the layers' norms.
        encoder_stride: Pixels a side that one last token stands for in masked image modeling.
        out_features, out_indices: See `BackboneConfig`.
    """

    model_type: ClassVar[str] = "swin"
    attribute_map: ClassVar[dict[str, str]] = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}

    image_size: Size = 224
    patch_size: Size = 4
    num_channels: int = bounded(3, ge=1)
    embed_dim: int = bounded(96, ge=1)
    depths: list[int] = field(default_factory=lambda: [2, 2, 6, 2])
    num_heads: list[int] = field(default_factory=lambda: [3, 6, 12, 24])
    window_size: int = bounded(7, ge=1, le=4096)
    mlp_ratio: float = bounded(4.0, ge=0, lt=1000)
    qkv_bias: bool = True
    hidden_dropout_prob: float = bounded(0.0, ge=0, lt=1)
    attention_probs_dropout_prob: float = bounded(0.0, ge=0, lt=1)
    drop_path_rate: float = bounded(0.1, ge=0, lt=1)
    hidden_act: str = "gelu"
    use_absolute_embeddings: bool = False
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    encoder_stride: int = 32

    def validate(self) -> None:
        """Check stages, heads and sizes."""
        name = type(self).__name__
        depths, heads = self.depths, self.num_heads
        if not depths or len(depths) != len(heads) or min(depths) < 1:
            raise ConfigError(f"{name}: expected one number of heads a stage, got depths {depths} and heads {heads}.")
        if any(head < 1 or channels % head for channels, head in zip(self.stage_channels, heads, strict=True)):
            raise ConfigError(
                f"{name}.num_heads: expected divisors of the channels {self.stage_channels}, got {heads}."
            )
        self.require_sizes("image_size", "patch_size")
        activation(self.hidden_act)

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop derived fields."""
        for name in ("hidden_size", "num_layers", "num_hidden_layers"):
            values.pop(name, None)
        return super().upgrade(values)

    def to_dict(self) -> JsonObject:
        """Return the JSON object, with derived values that other readers expect."""
        return super().to_dict() | {"hidden_size": self.hidden_size, "num_layers": self.num_layers}

    @property
    def stage_channels(self) -> list[int]:
        """Channels of a token in each stage."""
        return [self.embed_dim << stage for stage in range(len(self.depths))]

    @property
    def channels_of(self) -> dict[str, int]:
        """Channels of the stem and of each stage."""
        return channels_by_stage(self.embed_dim, self.stage_channels)

    @property
    def num_layers(self) -> int:
        """Number of stages."""
        return len(self.depths)

    @property
    def hidden_size(self) -> int:
        """Channels of a token in the last stage. Setting it has no effect, as it follows from `embed_dim`."""
        return self.stage_channels[-1]

    @hidden_size.setter
    def hidden_size(self, value: int) -> None:
        pass

    @property
    def patch_hw(self) -> tuple[int, int]:
        """Height and width of a patch."""
        return as_hw(self.patch_size)

    @property
    def grid_hw(self) -> tuple[int, int]:
        """Patches down and across an image of the configured size."""
        height, width = as_hw(self.image_size)
        return height // self.patch_hw[0], width // self.patch_hw[1]


@config_dataclass
class MaskFormerSwinConfig(SwinConfig):
    """Swin under the name that MaskFormer checkpoints use; see `SwinConfig` for the fields."""

    model_type: ClassVar[str] = "maskformer-swin"
