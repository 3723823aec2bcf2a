"""Auto classes: load a checkpoint without naming its class, by a table (model type, task) → class.

AutoModelForPoseEstimation.from_pretrained("facebook/sapiens2-pose-0.4b")   ─▶ Sapiens2ForPoseEstimation
AutoModel.from_pretrained("facebook/sapiens2-pose-0.4b")                    ─▶ the class in its `architectures`
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitruvian.config import Config, Settings, read_config_dict, read_json
from vitruvian.errors import CheckpointError, ConfigError, InputError, near_matches
from vitruvian.hub import CONFIG_FILE, HubOptions, has_builtin, json_file, local_path, names_builtin, pinned
from vitruvian.processor import JOINT_FILE, PROCESSOR_FILE

if TYPE_CHECKING:
    from vitruvian.model import Model


def _family(package: str, **addresses: str) -> dict[str, str]:
    """Return task -> "module:class" of a package of `vitruvian.models`."""
    return {task.replace("_", "-"): f"vitruvian.models.{package}.{address}" for task, address in addresses.items()}


def _mask_family(name: str, model: str) -> dict[str, str]:
    """Return the family of a mask classification model, which does instance and universal segmentation alike."""
    return _family(
        name.lower(),
        config=f"configuration:{name}Config",
        processor=f"processing:{name}ImageProcessor",
        model=f"modeling:{name}Model",
        instance=f"modeling:{model}",
        universal=f"modeling:{model}",
    )


# model_type -> task -> "module:class"; "config", "processor" and "model" are tasks of every family.
TABLE: dict[str, dict[str, str]] = {
    "mask2former": _mask_family("Mask2Former", "Mask2FormerForUniversalSegmentation"),
    "maskformer": _mask_family("MaskFormer", "MaskFormerForInstanceSegmentation"),
    "maskformer-swin": _family(
        "swin", config="configuration:MaskFormerSwinConfig", backbone="modeling:MaskFormerSwinBackbone"
    ),
    "resnet": _family("resnet", config="configuration:ResNetConfig", backbone="modeling:ResNetBackbone"),
    "sam2": _family(
        "sam2",
        config="configuration:Sam2Config",
        processor="processing:Sam2ImageProcessor",
        prompts="processing:Sam2Processor",
        model="modeling:Sam2Model",
        mask_generation="modeling:Sam2Model",
    ),
    "sam2_hiera_det_model": _family("sam2", config="configuration:Sam2HieraDetConfig", model="hiera:Sam2HieraDetModel"),
    "sam2_vision_model": _family("sam2", config="configuration:Sam2VisionConfig", model="vision:Sam2VisionModel"),
    "sapiens2": _family(
        "sapiens2",
        config="configuration:Sapiens2Config",
        processor="processing:Sapiens2ImageProcessor",
        model="modeling:Sapiens2Model",
        backbone="modeling:Sapiens2Backbone",
        pretraining="pretraining:Sapiens2ForPreTraining",
        pose="modeling:Sapiens2ForPoseEstimation",
        semantic="modeling:Sapiens2ForSemanticSegmentation",
        normal="modeling:Sapiens2ForNormalEstimation",
        pointmap="modeling:Sapiens2ForPointmapEstimation",
        matting="modeling:Sapiens2ForImageMatting",
        albedo="modeling:Sapiens2ForAlbedoEstimation",
        people="people:Sapiens2ForPeopleDetection",
    ),
    "swin": _family(
        "swin", config="configuration:SwinConfig", model="modeling:SwinModel", backbone="modeling:SwinBackbone"
    ),
}
# Checkpoints of SAM 2 on the Hub were saved from its video model, which is the image model and a memory.
TABLE["sam2_video"] = TABLE["sam2"] | _family(
    "sam2",
    config="configuration:Sam2VideoConfig",
    prompts="video_processing:Sam2VideoProcessor",
    video_processor="video_processing:Sam2VideoVideoProcessor",
    model="video_modeling:Sam2VideoModel",
)

HUB_KEYWORDS = tuple(field.name for field in dataclasses.fields(HubOptions))


def find_class(address: str) -> Any:
    """Import a class from ``module:class``."""
    module, _, name = address.partition(":")
    return getattr(importlib.import_module(module), name)


def by_class_name(name: str) -> str | None:
    """Return the address of a class of any family by its name."""
    addresses = (address for family in TABLE.values() for address in family.values())
    return next((address for address in addresses if address.partition(":")[2] == name), None)


def _family_of(model_type: object, source: str) -> dict[str, str]:
    """Return the classes of a model type."""
    if not isinstance(model_type, str) or model_type not in TABLE:
        known = ", ".join(sorted(TABLE))
        raise ConfigError(
            f"{source}: expected a model_type among {known}, got {model_type!r}.{near_matches(str(model_type), TABLE)}"
        )
    return TABLE[model_type]


def _split_keywords(keywords: Mapping[str, Any]) -> tuple[HubOptions, dict[str, Any]]:
    """Split keywords into those for the Hub and others."""
    hub = {name: value for name, value in keywords.items() if name in HUB_KEYWORDS}
    return HubOptions(**hub), {name: value for name, value in keywords.items() if name not in hub}


def read_config(source: str | Path, options: HubOptions) -> dict[str, Any]:
    """Read the configuration of a checkpoint; it is an error if there is none."""
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
    """Loads the configuration of any family."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Config:
        """Load a configuration; keywords are those of `Config.from_pretrained`."""
        options, overrides = _split_keywords(kwargs)
        values = read_config(pretrained_model_name_or_path, options)
        family = _family_of(values.get("model_type"), str(pretrained_model_name_or_path))
        config: Config = find_class(family["config"]).from_dict(values, **overrides)
        return config

    @classmethod
    def for_model(cls, model_type: str, **fields: Any) -> Config:
        """Build the configuration of a model type from fields."""
        config: Config = find_class(_family_of(model_type, "AutoConfig")["config"])(**fields)
        return config


class AutoImageProcessor:
    """Loads the image processor of any family."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load an image processor; keywords override its options."""
        return _load_processor(pretrained_model_name_or_path, "processor", kwargs)


class AutoProcessor:
    """Loads the processor of any family: one that takes prompts if there is one, else its image processor."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a processor; keywords override its options."""
        return _load_processor(pretrained_model_name_or_path, "prompts", kwargs)


class AutoVideoProcessor:
    """Loads the video processor of any family that has one."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a video processor; keywords override its options."""
        options, overrides = _split_keywords(kwargs)
        values = read_config_dict(pretrained_model_name_or_path, options) or {"model_type": "sam2_video"}
        family = _family_of(values.get("model_type"), str(pretrained_model_name_or_path))
        if "video-processor" not in family:
            raise InputError(f"AutoVideoProcessor: {values.get('model_type')} has no video processor.")
        processor: type[Settings] = find_class(family["video-processor"])
        return processor.from_pretrained(pretrained_model_name_or_path, **dataclasses.asdict(options), **overrides)


def _load_processor(source: str | Path, task: str, keywords: Mapping[str, Any]) -> Any:
    """Load the processor that a checkpoint's files name, or the one of its model type."""
    options, overrides = _split_keywords(keywords)
    options = pinned(source, options, by=PROCESSOR_FILE)
    stated = read_config_dict(source, options, PROCESSOR_FILE)
    if stated is None:  # a processor saved as one file has the options of the image processor inside
        joint = read_config_dict(source, options, JOINT_FILE) or {}
        stated = joint | joint.get("image_processor", {})
    names = [stated.get(key) for key in ("processor_class", "image_processor_type", "feature_extractor_type")]
    address = _first_address(names[1:]) if task == "processor" else None
    if address is None:
        family = TABLE.get((read_config_dict(source, options) or {}).get("model_type", ""), {})
        address = family.get(task) or family.get("processor") or _first_address(names)
    if address is None:
        found = next((name for name in names if name), "none")
        raise CheckpointError(f"{source}: expected the files of a known processor, found {found}.")
    processor_class: type[Settings] = find_class(address)
    return processor_class.from_pretrained(source, **dataclasses.asdict(options), **overrides)


def _first_address(names: list[str | None]) -> str | None:
    """Return the address of the first known processor class; older files have other endings of class names."""
    plain = (name.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor") for name in names if name)
    return next(filter(None, map(by_class_name, plain)), None)


class AutoTaskModel:
    """Loads a checkpoint as the class of one task, which subclasses name: a key in `TABLE`."""

    task: ClassVar[str]

    def __init_subclass__(cls, *, task: str) -> None:
        cls.task = task

    @classmethod
    def find(cls, values: Mapping[str, Any], source: str) -> Any:
        """Return the class for a configuration."""
        family = _family_of(values.get("model_type"), source)
        if cls.task not in family:
            names = [auto.__name__ for auto in AutoTaskModel.__subclasses__() if auto.task in family]
            raise InputError(
                f"{cls.__name__}: has no class for model_type {values.get('model_type')!r}. "
                f"This checkpoint opens with {', '.join(names)}."
            )
        return find_class(family[cls.task])

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a checkpoint; keywords are those of `Model.from_pretrained`."""
        config, (options, _) = kwargs.get("config"), _split_keywords(kwargs)
        if config is None:
            options = pinned(pretrained_model_name_or_path, options)
            kwargs["revision"] = options.revision
            values = read_config(pretrained_model_name_or_path, options)
        else:
            values = config.to_dict() if isinstance(config, Config) else read_config(config, options)
        model_class = cls.find(values, str(pretrained_model_name_or_path))
        return model_class.from_pretrained(pretrained_model_name_or_path, **kwargs)

    @classmethod
    def from_config(cls, config: Config, **kwargs: Any) -> Any:
        """Build a model with new weights; keywords are those of `Model.from_config`."""
        return cls.find(config.to_dict(), type(config).__name__).from_config(config, **kwargs)


class AutoModel(AutoTaskModel, task="model"):
    """Loads a checkpoint as the class in its `architectures`, or as the bare model of its family."""

    @classmethod
    def find(cls, values: Mapping[str, Any], source: str) -> Any:
        """Return the class that a configuration names."""
        family = _family_of(values.get("model_type"), source)
        named = [by_class_name(name) for name in values.get("architectures") or []]
        address = next((one for one in named if one in family.values()), None)
        return super().find(values, source) if address is None else find_class(address)


def _auto_class(name: str, task: str, purpose: str) -> type[AutoTaskModel]:
    """Create the auto class of a task."""
    body = {"__doc__": f"Loads a checkpoint {purpose}.", "__module__": __name__}
    created: type[AutoTaskModel] = type(name, (AutoTaskModel,), body, task=task)
    return created


AutoBackbone = _auto_class("AutoBackbone", "backbone", "as a backbone")
AutoModelForPreTraining = _auto_class("AutoModelForPreTraining", "pretraining", "for pretraining")
AutoModelForPoseEstimation = _auto_class("AutoModelForPoseEstimation", "pose", "for keypoints")
AutoModelForSemanticSegmentation = _auto_class(
    "AutoModelForSemanticSegmentation", "semantic", "for semantic segmentation"
)
AutoModelForNormalEstimation = _auto_class("AutoModelForNormalEstimation", "normal", "for surface normals")
AutoModelForPointmapEstimation = _auto_class("AutoModelForPointmapEstimation", "pointmap", "for pointmaps")
AutoModelForImageMatting = _auto_class("AutoModelForImageMatting", "matting", "for mattes")
AutoModelForAlbedoEstimation = _auto_class("AutoModelForAlbedoEstimation", "albedo", "for albedo")
AutoModelForPeopleDetection = _auto_class("AutoModelForPeopleDetection", "people", "for people detection")
AutoModelForMaskGeneration = _auto_class("AutoModelForMaskGeneration", "mask-generation", "for masks from prompts")
AutoModelForInstanceSegmentation = _auto_class(
    "AutoModelForInstanceSegmentation", "instance", "for instance segmentation"
)
AutoModelForUniversalSegmentation = _auto_class(
    "AutoModelForUniversalSegmentation", "universal", "for semantic, instance and panoptic segmentation"
)
AUTO_CLASSES: dict[str, type[AutoTaskModel]] = {
    auto.__name__: auto for auto in AutoTaskModel.__subclasses__() if auto is not AutoModel
}


def auto_class(task: str) -> type[AutoTaskModel]:
    """Return the auto class of a task, a key in `TABLE`."""
    return next(auto for auto in AutoTaskModel.__subclasses__() if auto.task == task)


def model_classes(task: str) -> tuple[type[Model], ...]:
    """Import the model classes of a task, a key in `TABLE`, in all families."""
    addresses = dict.fromkeys(family[task] for family in TABLE.values() if task in family)
    return tuple(find_class(address) for address in addresses)
