"""Fields that the configurations of MaskFormer and Mask2Former share, and the rules for their backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from vitruvian.config import Config, read_config_dict, settings
from vitruvian.errors import ConfigError
from vitruvian.hub import HubOptions
from vitruvian.models.resnet.configuration import ResNetConfig
from vitruvian.models.swin.configuration import SwinConfig

ALL_STAGES = ["stage1", "stage2", "stage3", "stage4"]


@settings
class MaskClassificationConfig(Config):
    """Base of `MaskFormerConfig` and `Mask2FormerConfig`, which document the fields."""

    written_unless_default: ClassVar[frozenset[str]] = Config.written_unless_default | {"use_pixel_mask"}
    backbone_types: ClassVar[dict[str, type[SwinConfig] | type[ResNetConfig]]]
    non_negative_fields: ClassVar[tuple[str, ...]] = ()
    positive_fields: ClassVar[tuple[str, ...]] = ()

    backbone_config: SwinConfig | ResNetConfig | None = None
    mask_feature_size: int = 256
    no_object_weight: float = 0.1
    mask_weight: float = 1.0
    dice_weight: float = 1.0
    init_std: float = 0.02
    init_xavier_std: float = 1.0
    use_auxiliary_loss: bool = False
    output_auxiliary_logits: bool | None = None
    backbone: str | None = None
    use_pretrained_backbone: bool = False
    use_timm_backbone: bool = False
    backbone_kwargs: dict[str, Any] | None = None
    use_pixel_mask: bool | None = None

    def __post_init__(self) -> None:
        self.backbone_config = self._read_backbone()
        super().__post_init__()

    @classmethod
    def default_backbone(cls) -> SwinConfig:
        """Return the backbone of a configuration that names none."""
        raise NotImplementedError

    def validate(self) -> None:
        """Raise `ConfigError` for sizes below 1 and for weights that are negative or not finite."""
        for name in self.positive_fields:
            if getattr(self, name) < 1:
                raise ConfigError(f"{type(self).__name__}.{name}: expected at least 1, got {getattr(self, name)}.")
        for name in self.non_negative_fields:
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{type(self).__name__}.{name}: expected at least 0, got {getattr(self, name)}.")

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop the name of the backbone where its configuration, which was read from there, is stored beside it."""
        stale = {"backbone", "backbone_kwargs", "use_pretrained_backbone"} if values.get("backbone_config") else set()
        return super().upgrade({key: value for key, value in values.items() if key not in stale})

    def crops_padding(self, *, has_labels: bool) -> bool:
        """Tell whether images are computed without their padding; see `use_pixel_mask`."""
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
        if values is not None and (self.backbone or self.backbone_kwargs):
            raise ConfigError(f"{name}: expected backbone_config or backbone (with backbone_kwargs), got both.")
        if values is None and self.backbone is None:
            return self.default_backbone()
        if values is None:
            values = read_config_dict(str(self.backbone), HubOptions())
            if values is None:
                raise ConfigError(
                    f"{name}.backbone: expected a folder or Hub name with a config.json, got {self.backbone!r}."
                )
        if not isinstance(values, Mapping):
            return values
        model_type = str(values.get("model_type"))
        if model_type not in types:
            raise ConfigError(
                f"{name}.backbone_config: expected a model_type of {', '.join(types)}, got {model_type!r}."
            )
        config = types[model_type].from_dict(values)
        if self.backbone_config is not None:
            return config
        options = dict(self.backbone_kwargs or {})
        if not {"out_features", "out_indices"} & set(options):
            options["out_features"] = config.stage_names[1:]
        return types[model_type].from_dict(config.to_dict(), **options)
