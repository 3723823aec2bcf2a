"""Configuration of ResNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar, Literal, Self

from vitruvian.config import Config, settings
from vitruvian.errors import ConfigError
from vitruvian.layers.backbone_stages import align_stages, drop_overridden_stages, stage_names
from vitruvian.layers.mlp import activation


@settings
class ResNetConfig(Config):
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
        out_features: Stages that the backbone returns: "stem", "stage1", …; by default the last.
        out_indices: The same as indices.
    """

    model_type: ClassVar[str] = "resnet"

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048])
    depths: list[int] = field(default_factory=lambda: [3, 4, 6, 3])
    layer_type: Literal["basic", "bottleneck"] = "bottleneck"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False
    out_features: list[str] | None = None
    out_indices: list[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_stages(self.out_features, self.out_indices)

    def set_stages(self, out_features: list[str] | None = None, out_indices: list[int] | None = None) -> None:
        """Choose the stages that the backbone returns, by name or by index."""
        self.out_features, self.out_indices = align_stages("ResNetConfig", self.stage_names, out_features, out_indices)

    def validate(self) -> None:
        """Check that stages and sizes fit together."""
        if not self.depths or len(self.depths) != len(self.hidden_sizes) or min(self.depths + self.hidden_sizes) < 1:
            raise ConfigError(
                f"ResNetConfig: expected one hidden size for each stage, got depths {self.depths} and "
                f"hidden_sizes {self.hidden_sizes}."
            )
        activation(self.hidden_act)

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop what follows from other fields."""
        values.pop("stage_names", None)
        return super().upgrade(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object; overriding the stages in one spelling replaces both."""
        return super().from_dict(drop_overridden_stages(values, overrides), **overrides)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with what other readers expect beside the fields."""
        return super().to_dict() | {"stage_names": self.stage_names}

    @property
    def stage_names(self) -> list[str]:
        """Names of what the backbone can return."""
        return stage_names(len(self.depths))

    @property
    def channels_of(self) -> dict[str, int]:
        """Channels of the stem and of each stage."""
        return dict(zip(self.stage_names, [self.embedding_size, *self.hidden_sizes], strict=True))
