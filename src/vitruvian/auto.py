"""Auto classes: load a checkpoint without naming its class, by a table (model type, task) → class.

AutoModelForPoseEstimation.from_pretrained("facebook/sapiens2-pose-0.4b")   ─▶ Sapiens2ForPoseEstimation
AutoModel.from_pretrained("facebook/mask2former-swin-tiny-coco-instance")   ─▶ Mask2FormerModel, without head
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import vitruvian
from vitruvian.config import Config, read_config_dict
from vitruvian.errors import CheckpointError, ConfigError, InputError, check_choice
from vitruvian.filesystem.json_files import JsonObject, read_json_object
from vitruvian.hub import CONFIG_FILE, HubOptions, json_file, pin_revision, split_hub_options
from vitruvian.processor import IMAGE_PROCESSOR_FILE, VIDEO_PROCESSOR_FILE, read_settings

if TYPE_CHECKING:
    from vitruvian.model import Model


def _family(prefix: str, **tasks: str) -> dict[str, str]:
    """Return task -> class name, from the prefix of a family's class names and the rest of each."""
    return {"config": f"{prefix}Config"} | {task.replace("_", "-"): prefix + rest for task, rest in tasks.items()}


# fmt: off
# model_type -> task -> name of a public class. All families have a "config", and a "model" or a "backbone".
CLASS_NAMES: dict[str, dict[str, str]] = {
    "mask2former": _family(
        "Mask2Former", image_processor="ImageProcessor", model="Model", segmentation="ForUniversalSegmentation",
        instance="ForUniversalSegmentation", universal="ForUniversalSegmentation",
    ),
    "maskformer": _family(
        "MaskFormer", image_processor="ImageProcessor", model="Model", segmentation="ForInstanceSegmentation",
        instance="ForInstanceSegmentation", universal="ForInstanceSegmentation",
    ),
    "maskformer-swin": _family("MaskFormerSwin", model="Model", backbone="Backbone"),
    "resnet": _family("ResNet", backbone="Backbone"),
    "sam2": _family(
        "Sam2", image_processor="ImageProcessor", processor="Processor", model="Model", mask_generation="Model",
    ),
    "sam2_hiera_det_model": _family("Sam2HieraDet", model="Model"),
    "sam2_vision_model": _family("Sam2Vision", model="Model"),
    "sapiens2": _family(
        "Sapiens2", image_processor="ImageProcessor", model="Model", backbone="Backbone", pretraining="ForPreTraining",
        pose="ForPoseEstimation", semantic="ForSemanticSegmentation", normal="ForNormalEstimation",
        pointmap="ForPointmapEstimation", matting="ForImageMatting", albedo="ForAlbedoEstimation",
        people="ForPeopleDetection",
    ),
    "swin": _family(
        "Swin", model="Model", backbone="Backbone", classification="ForImageClassification",
        masked_image_modeling="ForMaskedImageModeling",
    ),
}
# fmt: on
# Checkpoints of SAM 2 on the Hub were saved from its video model, which is the image model and a memory.
CLASS_NAMES["sam2_video"] = CLASS_NAMES["sam2"] | _family(
    "Sam2Video", processor="Processor", video_processor="VideoProcessor", model="Model", tracking="Model"
)


_registered: dict[str, type] = {}  # classes of users by name; the table has their names too


def _register_class(config_class: type[Config], task: str, added: type, *, exist_ok: bool = False) -> None:
    """Add a class for a task to the table, for the model type of a configuration class."""
    family = CLASS_NAMES.setdefault(config_class.model_type, {})
    if family.get(task, added.__name__) != added.__name__ and not exist_ok:
        raise InputError(
            f"{added.__name__}: expected a model_type without a class for {task!r}, got {config_class.model_type!r}, "
            f"which has {family[task]}. Pass exist_ok=True to replace it."
        )
    family[task] = added.__name__
    _registered[added.__name__] = added


def find_class(name: str) -> Any:
    """Return a class of the table by its name, imported if needed, or None for other names."""
    if name in _registered:
        return _registered[name]
    known = any(name in family.values() for family in CLASS_NAMES.values())
    return getattr(vitruvian, name) if known else None


def _family_of(model_type: object, source: str) -> dict[str, str]:
    """Return the classes of a model type."""
    known = ", ".join(sorted(CLASS_NAMES))
    check_choice(source, model_type, CLASS_NAMES, expected=f"a model_type among {known}", error=ConfigError)
    return CLASS_NAMES[str(model_type)]


def read_model_config(source: str | Path, options: HubOptions) -> JsonObject:
    """Read the configuration of a checkpoint; it is an error if there is none."""
    file = json_file(source)
    values = read_config_dict(source, options) if file is None else read_json_object(file)
    if values is None:
        raise CheckpointError(f"{source}: expected {CONFIG_FILE}, found none. Is this a checkpoint?")
    return values


class AutoConfig:
    """Loads the configuration of any family."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Config:
        """Load a configuration; keywords are those of `Config.from_pretrained`."""
        options, overrides = split_hub_options(kwargs)
        values = read_model_config(pretrained_model_name_or_path, options)
        family = _family_of(values.get("model_type"), str(pretrained_model_name_or_path))
        config: Config = find_class(family["config"]).from_dict(values, **overrides)
        return config

    @staticmethod
    def register(model_type: str, config: type[Config], exist_ok: bool = False) -> None:
        """Add a configuration class for a model type; `exist_ok` replaces a class that the table has."""
        if config.model_type != model_type:
            raise InputError(
                f"model_type: expected that of {config.__name__}, {config.model_type!r}, got {model_type!r}."
            )
        _register_class(config, "config", config, exist_ok=exist_ok)

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
        return _load_processor(pretrained_model_name_or_path, "image-processor", kwargs)

    @staticmethod
    def register(
        config_class: type[Config],
        slow_image_processor_class: type | None = None,
        fast_image_processor_class: type | None = None,
        image_processor_classes: Mapping[str, type] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Add an image processor for a configuration class; of several implementations the one for tensors is used.

        Args:
            config_class: A configuration class with a `model_type`.
            slow_image_processor_class: Implementation with PIL.
            fast_image_processor_class: Implementation with tensors.
            image_processor_classes: The same as {"pil": …, "torchvision": …}.
            exist_ok: Replace a class that the table has.
        """
        named = {"pil": slow_image_processor_class, "torchvision": fast_image_processor_class}
        named |= image_processor_classes or {}
        added = named["torchvision"] or next(filter(None, named.values()), None)
        if added is None:
            raise InputError("image_processor_classes: expected at least one class, got none.")
        _register_class(config_class, "image-processor", added, exist_ok=exist_ok)


class AutoProcessor:
    """Loads the processor of any family: one for prompts if there is one, else its image processor."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a processor; keywords override its options."""
        return _load_processor(pretrained_model_name_or_path, "processor", kwargs)

    @staticmethod
    def register(config_class: type[Config], processor_class: type, exist_ok: bool = False) -> None:
        """Add a processor for a configuration class; `exist_ok` replaces a class that the table has."""
        _register_class(config_class, "processor", processor_class, exist_ok=exist_ok)


class AutoVideoProcessor:
    """Loads the video processor of any family that has one."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a video processor; keywords override its options."""
        source, (options, overrides) = pretrained_model_name_or_path, split_hub_options(kwargs)
        options = pin_revision(source, options, first_file=VIDEO_PROCESSOR_FILE)
        stated = read_config_dict(source, options, VIDEO_PROCESSOR_FILE) or {}
        family = CLASS_NAMES.get((read_config_dict(source, options) or {}).get("model_type", ""), {})
        processor = find_class(family.get("video-processor") or str(stated.get("video_processor_type")))
        if processor is None:
            raise CheckpointError(f"{source}: expected the files of a known video processor, found none.")
        return processor.from_pretrained(source, **dataclasses.asdict(options), **overrides)


def _load_processor(source: str | Path, task: str, keywords: Mapping[str, Any]) -> Any:
    """Load the processor that a checkpoint's files name, or the one of its model type."""
    options, overrides = split_hub_options(keywords)
    options = pin_revision(source, options, first_file=IMAGE_PROCESSOR_FILE)
    stated = read_settings(source, options, IMAGE_PROCESSOR_FILE, "image_processor") or {}
    names = [stated.get(key) for key in ("processor_class", "image_processor_type", "feature_extractor_type")]
    processor_class = _first_class(names[1:]) if task == "image-processor" else None
    if processor_class is None:
        family = CLASS_NAMES.get(str((read_config_dict(source, options) or {}).get("model_type", "")), {})
        name = family.get(task) or family.get("image-processor")
        processor_class = find_class(name) if name else _first_class(names)
    if processor_class is None:
        found = next((name for name in names if name), "none")
        raise CheckpointError(f"{source}: expected the files of a known processor, found {found}.")
    return processor_class.from_pretrained(source, **dataclasses.asdict(options), **overrides)


def _first_class(names: list[str | None]) -> Any:
    """Return the first known processor class; older files have other endings of class names."""
    stated = (name for name in names if isinstance(name, str))
    plain = (
        name.removesuffix("Fast").removesuffix("Pil").replace("FeatureExtractor", "ImageProcessor") for name in stated
    )
    return next(filter(None, map(find_class, plain)), None)


class AutoTaskModel:
    """Loads a checkpoint as the class of one task, which subclasses name: a key in `CLASS_NAMES`."""

    task: ClassVar[str]

    def __init_subclass__(cls, *, task: str) -> None:
        cls.task = task

    @classmethod
    def find_model_class(cls, values: JsonObject, source: str) -> type[Model]:
        """Return the model class for the values of a configuration; `source` is its name in messages."""
        family = _family_of(values.get("model_type"), source)
        if cls.task not in family:
            names = [auto.__name__ for auto in AutoTaskModel.__subclasses__() if auto.task in family]
            raise InputError(
                f"{cls.__name__}: has no class for model_type {values.get('model_type')!r}. "
                f"This checkpoint opens with {', '.join(names)}."
            )
        model_class: type[Model] = find_class(family[cls.task])
        return model_class

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Any:
        """Load a checkpoint; keywords are those of `Model.from_pretrained`."""
        config, (options, _) = kwargs.get("config"), split_hub_options(kwargs)
        if config is None:
            options = pin_revision(pretrained_model_name_or_path, options)
            kwargs["revision"] = options.revision
            values = read_model_config(pretrained_model_name_or_path, options)
        else:
            values = config.to_dict() if isinstance(config, Config) else read_model_config(config, options)
        model_class = cls.find_model_class(values, str(pretrained_model_name_or_path))
        return model_class.from_pretrained(pretrained_model_name_or_path, **kwargs)

    @classmethod
    def model_classes(cls) -> tuple[type[Model], ...]:
        """Import the classes of the task in all families."""
        names = dict.fromkeys(family[cls.task] for family in CLASS_NAMES.values() if cls.task in family)
        return tuple(find_class(name) for name in names)

    @classmethod
    def register(cls, config_class: type[Config], model_class: type[Model], exist_ok: bool = False) -> None:
        """Add a model class for a configuration class; `exist_ok` replaces a class that the table has."""
        _register_class(config_class, cls.task, model_class, exist_ok=exist_ok)

    @classmethod
    def from_config(cls, config: Config, **kwargs: Any) -> Any:
        """Build a model with new weights; keywords are those of `Model.from_config`."""
        return cls.find_model_class(config.to_dict(), type(config).__name__).from_config(config, **kwargs)


class AutoModel(AutoTaskModel, task="model"):
    """Loads a checkpoint as the model without head of its family; a Sapiens2 as the class that it was saved from."""

    @classmethod
    def find_model_class(cls, values: JsonObject, source: str) -> type[Model]:
        """Return the model class for the values of a configuration."""
        # The examples for Sapiens2 in the documentation of transformers read the outputs of tasks.
        named = _named_class(values, source) if values.get("model_type") == "sapiens2" else None
        return named or super().find_model_class(values, source)


def saved_class(values: JsonObject, source: str) -> type[Model]:
    """Return the class that a checkpoint was saved from, or the model without head of its family."""
    return _named_class(values, source) or AutoModel.find_model_class(values, source)


def _named_class(values: JsonObject, source: str) -> type[Model] | None:
    """Return the first class of the family in the `architectures` of a configuration, or None."""
    family = _family_of(values.get("model_type"), source)
    named = (name for name in values.get("architectures") or [] if name in family.values())
    return next(map(find_class, named), None)


def _auto_class(name: str, task: str) -> type[AutoTaskModel]:
    """Create the auto class of a task, a key in `CLASS_NAMES`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removeprefix("Auto").removeprefix("ModelFor")).lower()
    body = {"__doc__": f"Loads a checkpoint as the class of its family for {words}.", "__module__": __name__}
    created: type[AutoTaskModel] = type(name, (AutoTaskModel,), body, task=task)
    return created


AutoBackbone = _auto_class("AutoBackbone", "backbone")
AutoModelForPreTraining = _auto_class("AutoModelForPreTraining", "pretraining")
AutoModelForPoseEstimation = _auto_class("AutoModelForPoseEstimation", "pose")
AutoModelForSemanticSegmentation = _auto_class("AutoModelForSemanticSegmentation", "semantic")
AutoModelForNormalEstimation = _auto_class("AutoModelForNormalEstimation", "normal")
AutoModelForPointmapEstimation = _auto_class("AutoModelForPointmapEstimation", "pointmap")
AutoModelForImageMatting = _auto_class("AutoModelForImageMatting", "matting")
AutoModelForAlbedoEstimation = _auto_class("AutoModelForAlbedoEstimation", "albedo")
AutoModelForPeopleDetection = _auto_class("AutoModelForPeopleDetection", "people")
AutoModelForImageClassification = _auto_class("AutoModelForImageClassification", "classification")
AutoModelForImageSegmentation = _auto_class("AutoModelForImageSegmentation", "segmentation")
AutoModelForMaskedImageModeling = _auto_class("AutoModelForMaskedImageModeling", "masked-image-modeling")
AutoModelForMaskGeneration = _auto_class("AutoModelForMaskGeneration", "mask-generation")
AutoModelForObjectTracking = _auto_class("AutoModelForObjectTracking", "tracking")
AutoModelForInstanceSegmentation = _auto_class("AutoModelForInstanceSegmentation", "instance")
AutoModelForUniversalSegmentation = _auto_class("AutoModelForUniversalSegmentation", "universal")
