"""What backbones and their configurations share: images, and the stages that a backbone returns."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from vitruvian.config import Config, Size, as_hw, config_dataclass
from vitruvian.errors import ConfigError, InputError, check_names
from vitruvian.filesystem.json_files import JsonObject

if TYPE_CHECKING:  # configurations import no torch
    from torch import Tensor


def check_pixels(pixel_values: Tensor, channels: int) -> None:
    """Raise `InputError` unless images have the shape [B, C, H, W]."""
    if pixel_values.ndim != 4 or pixel_values.shape[1] != channels:
        raise InputError(f"pixel_values: expected shape [B, {channels}, H, W], got {list(pixel_values.shape)}.")


class BackboneType(Enum):
    """Library whose conventions a backbone follows; those here follow transformers."""

    TIMM = "timm"
    TRANSFORMERS = "transformers"


def channels_by_stage(stem: int, stages: Sequence[int]) -> dict[str, int]:
    """Name what a backbone can return: the channels of the stem, then those of each stage."""
    return {"stem": stem} | {f"stage{number}": channels for number, channels in enumerate(stages, start=1)}


def _align_stages(
    owner: str, names: Sequence[str], features: Sequence[str] | None, indices: Sequence[int] | None
) -> tuple[list[str], list[int]]:
    """Return the stages by name and by index from either, both (which must agree) or neither (the last stage)."""
    if indices is not None and any(not -len(names) <= index < len(names) for index in indices):
        raise ConfigError(f"{owner}.out_indices: expected indices of {len(names)} stages, got {list(indices)}.")
    stages = None if indices is None else [index % len(names) for index in indices]
    if features is None:
        stages = [len(names) - 1] if stages is None else stages
    else:
        check_names(f"{owner}.out_features", features, names, error=ConfigError)
        by_name = [list(names).index(name) for name in features]
        if stages is not None and stages != by_name:
            raise ConfigError(
                f"{owner}: expected out_features and out_indices to name the same stages, "
                f"got {list(features)} and {list(indices or [])}. Give one of the two."
            )
        stages = by_name
    if stages != sorted(set(stages)):
        raise ConfigError(
            f"{owner}.out_features: expected different stages in order, got {[names[stage] for stage in stages]}."
        )
    return [names[stage] for stage in stages], stages


@config_dataclass
class BackboneConfig(Config):
    """Fields of backbones that return the maps of chosen stages. Setting either field sets the other too.

    Args:
        out_features: Stages that the backbone returns: "stem", "stage1", …; by default the last.
        out_indices: The same as indices.
    """

    out_features: list[str] | None = None
    out_indices: list[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set_stages(self.out_features, self.out_indices)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.is_built and name in ("out_features", "out_indices"):
            self.set_stages(**{name: value})
        else:
            super().__setattr__(name, value)

    def set_stages(self, out_features: list[str] | None = None, out_indices: list[int] | None = None) -> None:
        """Choose the stages that the backbone returns, by name or by index; by default the last."""
        features, indices = _align_stages(type(self).__name__, self.stage_names, out_features, out_indices)
        self.__dict__.update(out_features=features, out_indices=indices)

    def require_sizes(self, *names: str) -> None:
        """Raise `ConfigError` for a field that is neither a positive side nor a positive height and width."""
        for name in names:
            value: Size = getattr(self, name)
            if (not isinstance(value, int) and len(value) != 2) or min(as_hw(value)) < 1:
                raise ConfigError(f"{type(self).__name__}.{name}: expected a side or (height, width), got {value}.")

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop what follows from other fields."""
        values.pop("stage_names", None)
        return super().upgrade(values)

    def to_dict(self) -> JsonObject:
        """Return the JSON object, with the names of the stages, which other readers expect."""
        return super().to_dict() | {"stage_names": self.stage_names}

    @property
    def stage_names(self) -> list[str]:
        """Names of what the backbone can return."""
        return list(self.channels_of)

    @property
    def channels_of(self) -> dict[str, int]:
        """Channels of the stem and of each stage."""
        raise NotImplementedError


class BackboneMixin:
    """Properties of a backbone with a `BackboneConfig`: which stages it returns, and their channels."""

    config: BackboneConfig
    backbone_type: ClassVar[BackboneType] = BackboneType.TRANSFORMERS

    @property
    def stage_names(self) -> list[str]:
        """Names of all stages that the backbone can return."""
        return self.config.stage_names

    @property
    def out_features(self) -> list[str]:
        """Names of the stages that the backbone returns."""
        return list(self.config.out_features or [])

    @property
    def out_indices(self) -> list[int]:
        """Indices of the stages that the backbone returns."""
        return list(self.config.out_indices or [])

    @property
    def out_feature_channels(self) -> dict[str, int]:
        """Channels of every stage, by its name."""
        return self.config.channels_of

    @property
    def num_features(self) -> list[int]:
        """Channels of every stage."""
        return list(self.config.channels_of.values())

    @property
    def channels(self) -> list[int]:
        """Channels of each map that the backbone returns."""
        return [self.config.channels_of[name] for name in self.out_features]
