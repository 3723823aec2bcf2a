"""Fields that the configurations of MaskFormer and Mask2Former share, and the rules for their backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from vitruvian.config import Config, ConfigBase, bounded, config_dataclass, read_config_dict
from vitruvian.errors import ConfigError
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.hub import HubOptions
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import SwinConfig

ALL_STAGES = ["stage1", "stage2", "stage3", "stage4"]


@config_dataclass
class MaskClassificationConfig(Config):
    """The fields that `MaskFormerConfig` and `Mask2FormerConfig` share.

    Args:
        backbone_config: Configuration of the backbone: Swin or ResNet.
        mask_feature_size: Channels of the pixel embeddings that masks are scored with.
        init_std: Standard deviation of initialized weights.
        init_xavier_std: Gain of Xavier initialization.
        no_object_weight: Weight of the class "no object" in the class loss.
        dice_weight: Weight of the dice loss, and of its cost in the matching.
        use_auxiliary_loss: Train the predictions after every decoder layer, not only after the last.
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

    written_unless_default: ClassVar[frozenset[str]] = Config.written_unless_default | {"use_pixel_mask"}
    backbone_types: ClassVar[dict[str, type[SwinConfig] | type[ResNetConfig]]]
    sub_configs: ClassVar[dict[str, type[ConfigBase]]] = {"backbone_config": SwinConfig}

    backbone_config: SwinConfig | ResNetConfig = None  # type: ignore[assignment]  # the constructor replaces None
    mask_feature_size: int = bounded(256, ge=1)
    init_std: float = 0.02
    init_xavier_std: float = 1.0
    no_object_weight: float = bounded(0.1, ge=0)
    dice_weight: float = bounded(1.0, ge=0)
    use_auxiliary_loss: bool = False
    output_auxiliary_logits: bool | None = None
    backbone: str | None = None
    use_pretrained_backbone: bool = False
    use_timm_backbone: bool = False
    backbone_kwargs: JsonObject | None = None
    use_pixel_mask: bool | None = None

    def __post_init__(self) -> None:
        self.backbone_config = self._read_backbone()
        super().__post_init__()

    @classmethod
    def default_backbone(cls) -> SwinConfig:
        """Return the backbone of a configuration that names none."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object, without the name of the backbone where its configuration is stored beside it."""
        stale = {"backbone", "backbone_kwargs", "use_pretrained_backbone"} if values.get("backbone_config") else set()
        return super().from_dict({key: value for key, value in values.items() if key not in stale}, **overrides)

    def crops_padding(self, *, has_labels: bool) -> bool:
        """Return whether images are computed without their padding; see `use_pixel_mask`."""
        return not has_labels if self.use_pixel_mask is None else self.use_pixel_mask

    def _read_backbone(self) -> Any:
        """Return the backbone's configuration from `backbone_config`, from `backbone`, or the default.

        What is neither a configuration nor a JSON object is left to the type check.
        """
        name, types = type(self).__name__, self.backbone_types
        if self.use_timm_backbone:
            raise ConfigError(
                f"{name}.use_timm_backbone: expected False, got True. timm is not supported: "
                f"pass a backbone_config of type {' or '.join(types)}."
            )
        values: Any = self.backbone_config
        if values is None and self.backbone is None:
            return self.default_backbone()
        if values is None:
            values = read_config_dict(str(self.backbone), HubOptions()) or {}
        elif self.backbone or self.backbone_kwargs:
            raise ConfigError(f"{name}: expected backbone_config or backbone (with backbone_kwargs), got both.")
        if not isinstance(values, Mapping):
            return values
        model_type = str(values.get("model_type"))
        if model_type not in types:
            subject = "backbone_config" if self.backbone is None else "backbone"
            raise ConfigError(
                f"{name}.{subject}: expected a config.json with a model_type of {', '.join(types)}, got {model_type!r}."
            )
        config = types[model_type].from_dict(values)
        if self.backbone is None:
            return config
        changes = dict(self.backbone_kwargs or {})
        if not {"out_features", "out_indices"} & set(changes):
            changes["out_features"] = config.stage_names[1:]
        return types[model_type].from_dict(config.to_dict(), **changes)
