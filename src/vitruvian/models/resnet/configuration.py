"""Configuration of ResNet."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from vitruvian.config import bounded, config_dataclass
from vitruvian.errors import ConfigError
from vitruvian.layers.backbone import BackboneConfig, channels_by_stage
from vitruvian.layers.mlp import activation


@config_dataclass
class ResNetConfig(BackboneConfig):
    """ResNet. The defaults are those of microsoft/resnet-50.

    Args:
        num_channels: Channels of the image.
        embedding_size: Channels after the stem.
        hidden_sizes: Channels after each stage.
        depths: Number of blocks in each stage.
        layer_type: ``"bottleneck"`` (50 layers and more) or ``"basic"``.
        hidden_act: Activation.
        downsample_in_first_stage: Whether the first stage halves the resolution too.
        downsample_in_bottleneck: Whether a bottleneck halves it in its first convolution rather than its second.
        out_features, out_indices: See `BackboneConfig`.
    """

    model_type: ClassVar[str] = "resnet"

    num_channels: int = bounded(3, ge=1)
    embedding_size: int = bounded(64, ge=1)
    hidden_sizes: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])
    depths: list[int] = field(default_factory=lambda: [3, 4, 6, 3])
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    def validate(self) -> None:
        """Check that stages and sizes match."""
        if not self.depths or len(self.depths) != len(self.hidden_sizes) or min(self.depths + self.hidden_sizes) < 1:
            raise ConfigError(
                f"ResNetConfig: expected one hidden size for each stage, got depths {self.depths} and "
                f"hidden_sizes {self.hidden_sizes}."
            )
        activation(self.hidden_act)

    @property
    def channels_of(self) -> dict[str, int]:
        """Channels of the stem and of each stage."""
        return channels_by_stage(self.embedding_size, self.hidden_sizes)
