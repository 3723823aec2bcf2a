"""Counterparts of transformers' private names, for the copy of its tests that `peer_tests.py` runs on our classes.

A name that vitruvian does not have is imported from here too: it becomes a class that raises on use, so that the tests
which need it fail and the others run. Importing this module also sets private flags on our model classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import transformers
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES
from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES
from transformers.processing_utils import MODALITY_TO_AUTOPROCESSOR_MAPPING as AUTO_CLASSES

import vitruvian


class MissingName(type):
    """Metaclass of placeholders: calling one, or reading an attribute of it, raises."""

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise in place of constructing."""
        raise NotImplementedError(f"vitruvian has no {cls.__name__}")

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(f"vitruvian has no {cls.__name__}")


def our_class(name: str) -> type:
    """Return vitruvian's public class of that name, or a placeholder."""
    return getattr(vitruvian, name) if name in vitruvian.__all__ else MissingName(name, (), {})


class ClassesByModelType:
    """A mapping {config class: class, tuple of classes or dict of classes}, looked up by the config's `model_type`."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names

    def __contains__(self, config_class: Any) -> bool:
        return config_class.model_type in self._names

    def __getitem__(self, config_class: Any) -> Any:
        names = self._names[config_class.model_type]
        if isinstance(names, dict):
            return {key: our_class(name) for key, name in names.items()}
        return tuple(map(our_class, names)) if isinstance(names, tuple | list) else our_class(names)

    def get(self, config_class: Any, default: Any = None) -> Any:
        """Return the classes for that config, or `default`."""
        if config_class not in self:
            return default
        return self[config_class]


IMAGE_PROCESSOR_MAPPING = ClassesByModelType(IMAGE_PROCESSOR_MAPPING_NAMES)
VIDEO_PROCESSOR_MAPPING = ClassesByModelType(VIDEO_PROCESSOR_MAPPING_NAMES)
MODEL_MAPPING = ClassesByModelType(MODEL_MAPPING_NAMES)
MODALITY_TO_AUTOPROCESSOR_MAPPING = {
    **{key: AUTO_CLASSES[key] for key in AUTO_CLASSES.keys()},  # noqa: SIM118 (not a dict: it has no __iter__)
    "image_processor": vitruvian.AutoImageProcessor,
    "video_processor": vitruvian.AutoVideoProcessor,
}
get_image_processor_class_from_name = our_class


# Private attributes of transformers.PreTrainedModel that its tests read or replace -> what they would be here.
PRIVATE_ATTRIBUTES = {
    "_can_record_outputs": None,
    "_can_set_attn_implementation": classmethod(lambda cls: True),
    "_initialize_weights": vitruvian.Model.init_module,
    "_keep_in_fp32_modules": set(),
    "_keep_in_fp32_modules_strict": set(),
    "_keys_to_ignore_on_load_missing": None,
    "all_tied_weights_keys": {},
}


def copy_private_flags() -> None:
    """Set private flags of the reference's models (`_supports_sdpa`, …) on our classes of the same name.

    Flags are attributes that are True, False or None. Tests read them to decide what a model can do. Those that our
    class has itself stay as they are.
    """
    for name in vitruvian.__all__:
        theirs, ours = getattr(transformers, name, None), getattr(vitruvian, name)
        if not (isinstance(theirs, type) and issubclass(theirs, transformers.PreTrainedModel)):
            continue
        for flag in dir(theirs):
            if flag.startswith("__") or not flag.startswith("_") or hasattr(ours, flag):
                continue
            value = getattr(theirs, flag)
            if value is None or isinstance(value, bool):
                setattr(ours, flag, value)


for attribute, value in PRIVATE_ATTRIBUTES.items():
    setattr(vitruvian.Model, attribute, value)
copy_private_flags()


def __getattr__(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return our_class(name)
