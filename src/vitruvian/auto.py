"""Open a checkpoint without naming its class: one table, (model type, task) → class.

AutoModelForPoseEstimation.from_pretrained("facebook/sapiens2-pose-0.4b")   ─▶ Sapiens2ForPoseEstimation
AutoModel.from_pretrained("facebook/sapiens2-pose-0.4b")                    ─▶ what its `architectures` names
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from vitruvian.config import Config, Settings, read_config_dict, read_json
from vitruvian.errors import CheckpointError, ConfigError, InputError, near_matches
from vitruvian.hub import CONFIG_FILE, HubOptions, has_builtin, json_file, local_path, names_builtin, pinned
from vitruvian.processor import JOINT_FILE, PROCESSOR_FILE

MASK2FORMER = "vitruvian.models.mask2former"
MASKFORMER = "vitruvian.models.maskformer"
RESNET = "vitruvian.models.resnet"
SAM2 = "vitruvian.models.sam2"
SAPIENS2 = "vitruvian.models.sapiens2"
SWIN = "vitruvian.models.swin"

# model_type -> task -> "module:class"; "config", "processor" and "model" are tasks of every family.
TABLE: dict[str, dict[str, str]] = {
    "mask2former": {
        "config": f"{MASK2FORMER}.configuration:Mask2FormerConfig",
        "processor": f"{MASK2FORMER}.processing:Mask2FormerImageProcessor",
        "model": f"{MASK2FORMER}.modeling:Mask2FormerModel",
        "instance": f"{MASK2FORMER}.modeling:Mask2FormerForUniversalSegmentation",
        "universal": f"{MASK2FORMER}.modeling:Mask2FormerForUniversalSegmentation",
    },
    "maskformer": {
        "config": f"{MASKFORMER}.configuration:MaskFormerConfig",
        "processor": f"{MASKFORMER}.processing:MaskFormerImageProcessor",
        "model": f"{MASKFORMER}.modeling:MaskFormerModel",
        "instance": f"{MASKFORMER}.modeling:MaskFormerForInstanceSegmentation",
        "universal": f"{MASKFORMER}.modeling:MaskFormerForInstanceSegmentation",
    },
    "maskformer-swin": {
        "config": f"{SWIN}.configuration:MaskFormerSwinConfig",
        "backbone": f"{SWIN}.modeling:MaskFormerSwinBackbone",
    },
    "resnet": {
        "config": f"{RESNET}.configuration:ResNetConfig",
        "backbone": f"{RESNET}.modeling:ResNetBackbone",
    },
    "sam2": {
        "config": f"{SAM2}.configuration:Sam2Config",
        "processor": f"{SAM2}.processing:Sam2ImageProcessor",
        "prompts": f"{SAM2}.processing:Sam2Processor",
        "model": f"{SAM2}.modeling:Sam2Model",
        "mask-generation": f"{SAM2}.modeling:Sam2Model",
    },
    "sam2_hiera_det_model": {
        "config": f"{SAM2}.configuration:Sam2HieraDetConfig",
        "model": f"{SAM2}.hiera:Sam2HieraDetModel",
    },
    "sam2_vision_model": {
        "config": f"{SAM2}.configuration:Sam2VisionConfig",
        "model": f"{SAM2}.vision:Sam2VisionModel",
    },
    "sapiens2": {
        "config": f"{SAPIENS2}.configuration:Sapiens2Config",
        "processor": f"{SAPIENS2}.processing:Sapiens2ImageProcessor",
        "model": f"{SAPIENS2}.modeling:Sapiens2Model",
        "backbone": f"{SAPIENS2}.modeling:Sapiens2Backbone",
        "pretraining": f"{SAPIENS2}.pretraining:Sapiens2ForPreTraining",
        "pose": f"{SAPIENS2}.modeling:Sapiens2ForPoseEstimation",
        "semantic": f"{SAPIENS2}.modeling:Sapiens2ForSemanticSegmentation",
        "normal": f"{SAPIENS2}.modeling:Sapiens2ForNormalEstimation",
        "pointmap": f"{SAPIENS2}.modeling:Sapiens2ForPointmapEstimation",
        "matting": f"{SAPIENS2}.modeling:Sapiens2ForImageMatting",
        "albedo": f"{SAPIENS2}.modeling:Sapiens2ForAlbedoEstimation",
        "people": f"{SAPIENS2}.people:Sapiens2ForPeopleDetection",
    },
    "swin": {
        "config": f"{SWIN}.configuration:SwinConfig",
        "model": f"{SWIN}.modeling:SwinModel",
        "backbone": f"{SWIN}.modeling:SwinBackbone",
    },
}
# Checkpoints of SAM 2 on the Hub were saved from its video model, of which pictures need all but the memory.
TABLE["sam2_video"] = TABLE["sam2"]

HUB_KEYWORDS = ("revision", "cache_dir", "token", "local_files_only", "force_download", "subfolder")


def hub_options(keywords: Mapping[str, Any]) -> HubOptions:
    """Pick the keywords that say how to look a checkpoint up."""
    return HubOptions(**{name: keywords[name] for name in HUB_KEYWORDS if name in keywords})


def find_class(address: str) -> Any:
    """Import a class from ``module:class``."""
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)


def family_of(model_type: Any, source: str) -> dict[str, str]:
    """Return the table of a model type."""
    if not isinstance(model_type, str) or model_type not in TABLE:
        known = ", ".join(sorted(TABLE))
        raise ConfigError(
            f"{source}: expected a model_type among {known}, got {model_type!r}.{near_matches(str(model_type), TABLE)}"
        )
    return TABLE[model_type]


def by_class_name(name: str) -> str | None:
    """Return the address of a class of any family by its name."""
    for family in TABLE.values():
        for address in family.values():
            if address.partition(":")[2] == name:
                return address
    return None


def read_config(source: str | Path, options: HubOptions) -> dict[str, Any]:
    """Read a checkpoint's configuration, which it must have."""
    file = json_file(source)
    values = read_config_dict(source, options) if file is None else read_json(file)
    if values is None:
        raise CheckpointError(f"{source}: expected {CONFIG_FILE}, found none. Is this a checkpoint?")
    return values


def packed_tasks(source: str | Path) -> tuple[str, ...]:
    """Return the tasks of a local checkpoint of several tasks, such as ``"builtin"``, under their Sapiens2 names.

    None for checkpoints of one task, and for those that are not on this machine: it does not use the network.
    """
    from vitruvian.models.sapiens2.packed import packed_table

    is_local = has_builtin() if names_builtin(source) else local_path(source).is_dir()
    return tuple(packed_table(source) or ()) if is_local else ()


class AutoConfig:
    """Opens the configuration of any family."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Config:
        """Read a configuration; keywords are those of `Config.from_pretrained`."""
        values = read_config(pretrained_model_name_or_path, hub_options(kwargs))
        family = family_of(values.get("model_type"), str(pretrained_model_name_or_path))
        overrides = {name: value for name, value in kwargs.items() if name not in HUB_KEYWORDS}
        config: Config = find_class(family["config"]).from_dict(values, **overrides)
        return config

    @classmethod
    def for_model(cls, model_type: str, **fields: Any) -> Config:
        """Build the configuration of a model type from fields."""
        config: Config = find_class(family_of(model_type, "AutoConfig")["config"])(**fields)
        return config


class AutoImageProcessor:
    """Opens the image processor of any family."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Read an image processor's options; keywords override them."""
        source, options = pretrained_model_name_or_path, hub_options(kwargs)
        overrides = {name: value for name, value in kwargs.items() if name not in HUB_KEYWORDS}
        return open_processor(source, options, overrides, task="processor")


class AutoProcessor:
    """Opens the processor of any family: one that takes prompts where there is one, else its image processor."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Read a processor's options; keywords override them."""
        source, options = pretrained_model_name_or_path, hub_options(kwargs)
        overrides = {name: value for name, value in kwargs.items() if name not in HUB_KEYWORDS}
        return open_processor(source, options, overrides, task="prompts")


def open_processor(source: str | Path, options: HubOptions, overrides: dict[str, Any], *, task: str) -> Any:
    """Open the processor that a checkpoint's files name, or the one of its model type."""
    options = pinned(source, options, by=PROCESSOR_FILE)
    stated = read_config_dict(source, options, PROCESSOR_FILE)
    if stated is None:  # a processor saved as one file keeps the image processor's options inside
        joint = read_config_dict(source, options, JOINT_FILE) or {}
        stated = joint | joint.get("image_processor", {})
    names = [stated.get(key) for key in ("processor_class", "image_processor_type", "feature_extractor_type")]
    address = None
    if task == "processor":
        address = next((a for a in (by_class_name(plain_name(n)) for n in names[1:] if n) if a), None)
    if address is None:
        config = read_config_dict(source, options) or {}
        family = TABLE.get(config.get("model_type", ""), {})
        address = family.get(task) or family.get("processor")
    if address is None:
        address = next((a for a in (by_class_name(plain_name(n)) for n in names if n) if a), None)
    if address is None:
        seen = next((n for n in names if n), None)
        raise CheckpointError(f"{source}: expected the files of a known processor, found {seen or 'none'}.")
    found: type[Settings] = find_class(address)
    return found.from_pretrained(source, **options.__dict__, **overrides)


def plain_name(name: str) -> str:
    """Return a processor's class name without the endings that older files use."""
    return name.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")


class AutoTaskModel:
    """Opens a checkpoint as the class of one task. Subclasses name the task."""

    tasks: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def find(cls, values: Mapping[str, Any], source: str) -> Any:
        """Return the class for a configuration."""
        family = family_of(values.get("model_type"), source)
        named = values.get("architectures") or []
        fitting = [family[task] for task in cls.tasks if task in family]
        if not fitting:
            autos = {"AutoModel": AutoModel} | AUTO_CLASSES
            able = [name for name, auto in autos.items() if any(task in family for task in auto.tasks)]
            raise InputError(
                f"{cls.__name__}: has no class for model_type {values.get('model_type')!r}. "
                f"This checkpoint opens with {', '.join(able)}."
            )
        return find_class(next((a for a in fitting if a.partition(":")[2] in named), fitting[0]))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Open a checkpoint; keywords are those of `Model.from_pretrained`."""
        config = kwargs.get("config")
        if config is None:
            options = pinned(pretrained_model_name_or_path, hub_options(kwargs))
            kwargs["revision"] = options.revision
            values = read_config(pretrained_model_name_or_path, options)
        else:
            values = config.to_dict() if isinstance(config, Config) else read_config(config, hub_options(kwargs))
        found = cls.find(values, str(pretrained_model_name_or_path))
        return found.from_pretrained(pretrained_model_name_or_path, **kwargs)

    @classmethod
    def from_config(cls, config: Config, **kwargs: Any) -> Any:
        """Build a model with fresh weights; keywords are those of `Model.from_config`."""
        found = cls.find(config.to_dict(), type(config).__name__)
        return found.from_config(config, **kwargs)


class AutoModel(AutoTaskModel):
    """Opens a checkpoint as the class its `architectures` names, or as the bare model of its family."""

    tasks: ClassVar[tuple[str, ...]] = ("model",)

    @classmethod
    def find(cls, values: Mapping[str, Any], source: str) -> Any:
        """Return the class that a configuration names."""
        family = family_of(values.get("model_type"), source)
        for name in values.get("architectures") or []:
            address = by_class_name(name)
            if address in family.values():
                return find_class(str(address))
        return super().find(values, source)


class AutoBackbone(AutoTaskModel):
    """Opens a checkpoint as a backbone."""

    tasks: ClassVar[tuple[str, ...]] = ("backbone",)


class AutoModelForPreTraining(AutoTaskModel):
    """Opens a checkpoint for pretraining."""

    tasks: ClassVar[tuple[str, ...]] = ("pretraining",)


class AutoModelForPoseEstimation(AutoTaskModel):
    """Opens a checkpoint for keypoints."""

    tasks: ClassVar[tuple[str, ...]] = ("pose",)


class AutoModelForSemanticSegmentation(AutoTaskModel):
    """Opens a checkpoint for semantic segmentation."""

    tasks: ClassVar[tuple[str, ...]] = ("semantic",)


class AutoModelForNormalEstimation(AutoTaskModel):
    """Opens a checkpoint for surface normals."""

    tasks: ClassVar[tuple[str, ...]] = ("normal",)


class AutoModelForPointmapEstimation(AutoTaskModel):
    """Opens a checkpoint for pointmaps."""

    tasks: ClassVar[tuple[str, ...]] = ("pointmap",)


class AutoModelForImageMatting(AutoTaskModel):
    """Opens a checkpoint for mattes."""

    tasks: ClassVar[tuple[str, ...]] = ("matting",)


class AutoModelForAlbedoEstimation(AutoTaskModel):
    """Opens a checkpoint for albedo."""

    tasks: ClassVar[tuple[str, ...]] = ("albedo",)


class AutoModelForPeopleDetection(AutoTaskModel):
    """Opens a checkpoint for finding people."""

    tasks: ClassVar[tuple[str, ...]] = ("people",)


class AutoModelForMaskGeneration(AutoTaskModel):
    """Opens a checkpoint for masks from prompts."""

    tasks: ClassVar[tuple[str, ...]] = ("mask-generation",)


class AutoModelForInstanceSegmentation(AutoTaskModel):
    """Opens a checkpoint for instance segmentation."""

    tasks: ClassVar[tuple[str, ...]] = ("instance",)


class AutoModelForUniversalSegmentation(AutoTaskModel):
    """Opens a checkpoint for semantic, instance and panoptic segmentation."""

    tasks: ClassVar[tuple[str, ...]] = ("universal",)


AUTO_CLASSES: dict[str, type[AutoTaskModel]] = {
    found.__name__: found for found in AutoTaskModel.__subclasses__() if found is not AutoModel
}
