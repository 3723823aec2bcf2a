"""`ImageProcessor`: from images to model inputs, with options in `preprocessor_config.json`.

PIL / numpy / torch / paths ── as_pixels ──▶ [C, H, W] tensors ── preprocess (of a family) ──▶ BatchFeature
"""

from __future__ import annotations

import dataclasses
import enum
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitruvian.config import ConfigBase, config_dataclass, read_config_dict
from vitruvian.errors import ConfigError, InputError, check_count
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.hub import HubOptions
from vitruvian.images import (
    center_on_canvas,
    fit_inside_hw,
    resample_mode,
    rescale_and_normalize,
    resize,
    shortest_edge_hw,
)
from vitruvian.images.data_format import as_tensor, channels_first, in_data_format, is_channels_last, pixels_of, size_of
from vitruvian.images.read import load_rgb
from vitruvian.limits import get_limits
from vitruvian.ops.pixel_normalization import IMAGENET_MEAN, IMAGENET_STD
from vitruvian.outputs import BatchFeature

IMAGE_PROCESSOR_FILE = "preprocessor_config.json"
VIDEO_PROCESSOR_FILE = "video_preprocessor_config.json"
COMBINED_PROCESSOR_FILE = "processor_config.json"
ImageInput = Any  # an image or a list of images: PIL, NumPy [H, W, C] or [C, H, W], torch, path, URL or bytes

ArrayT = TypeVar("ArrayT", Tensor, NDArray[Any])

# Keywords of `from_pretrained` in transformers that have no effect here: there is one implementation, and code of a
# checkpoint is never run.
_NO_EFFECT = frozenset({"backend", "trust_remote_code", "use_fast"})
_transformers_results = os.environ.get("VITRUVIAN_LEGACY_RESULTS", "0") not in ("", "0")

SizeOption = Mapping[str, int] | Sequence[int] | int  # a table, (height, width), or one number


def set_legacy_results(enabled: bool) -> None:
    """Set whether post-processing returns the results of transformers where `legacy` is not passed.

    The setting applies to the whole process. The environment variable `VITRUVIAN_LEGACY_RESULTS=1` turns it on.
    """
    global _transformers_results
    _transformers_results = enabled


def use_transformers_results(legacy: bool | None) -> bool:
    """Return the argument `legacy` of a call, or for None the setting of the process."""
    return _transformers_results if legacy is None else legacy


class ImageOptions(TypedDict, total=False):
    """Options of a processor that a call of `preprocess` may override; `ImageProcessor` documents them."""

    do_resize: bool | None
    size: SizeOption | None
    resample: int | None
    do_rescale: bool | None
    rescale_factor: float | None
    do_normalize: bool | None
    image_mean: list[float] | float | None
    image_std: list[float] | float | None
    do_convert_rgb: bool | None


class SegmentationImageOptions(ImageOptions, total=False):
    """Options of processors that also crop, pad and read label maps."""

    do_pad: bool | None
    do_center_crop: bool | None
    crop_size: SizeOption | None
    do_reduce_labels: bool | None


@config_dataclass
class ImageProcessor(ConfigBase):
    """Options that all image processors share.

    `from_pretrained` accepts `use_fast`, `backend` and `trust_remote_code` of transformers, without effect: there is
    one implementation, and code of a checkpoint is never run.

    Args:
        do_resize: Whether to resize; None means no, also for `do_rescale` and `do_normalize`.
        size: Target size: ``{"height", "width"}`` or ``{"shortest_edge", "longest_edge"}``.
        resample: PIL's number of the filter: 0 nearest, 2 bilinear, 3 bicubic.
        do_rescale: Whether to multiply pixel values by `rescale_factor`.
        rescale_factor: By default 1/255.
        do_normalize: Whether to subtract `image_mean` and divide by `image_std`.
        image_mean: Mean of each channel; its length is the number of channels that arrays may have, beside 1 and 3.
        image_std: Standard deviation of each channel.
        do_convert_rgb: Whether images of other modes become RGB (PIL images always do).
    """

    file_name: ClassVar[str] = IMAGE_PROCESSOR_FILE
    type_key: ClassVar[str] = "image_processor_type"  # of the class name in files
    sizes_are_limited: ClassVar[bool] = True
    model_input_names: ClassVar[list[str]] = ["pixel_values"]
    # Fields that files have as null where they are None. Other fields that are None are left out, and read as default.
    saved_as_null: ClassVar[frozenset[str]] = frozenset({"do_resize", "do_rescale", "do_normalize"})

    do_resize: bool | None = True
    size: dict[str, int] = dataclasses.field(default_factory=dict)
    resample: int = 2
    do_rescale: bool | None = True
    rescale_factor: float = 1 / 255
    do_normalize: bool | None = True
    image_mean: list[float] | float = dataclasses.field(default_factory=lambda: list(IMAGENET_MEAN))
    image_std: list[float] | float = dataclasses.field(default_factory=lambda: list(IMAGENET_STD))
    do_convert_rgb: bool | None = None

    def __post_init__(self) -> None:
        self.size = size_table(self.size)
        if isinstance(self.resample, enum.IntEnum):
            self.resample = int(self.resample)  # PIL's names of filters
        super().__post_init__()
        pixels = self.size.get("height", 1) * self.size.get("width", 1)
        get_limits().check("image_pixels", pixels, subject=f"{type(self).__name__}.size", error=ConfigError)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], **overrides: Any) -> Self:
        """Build from a JSON object; unknown keys are preserved, `overrides` have priority."""
        return super().from_dict(values, **{key: value for key, value in overrides.items() if key not in _NO_EFFECT})

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop the class name, which `to_dict` writes, and unset options."""
        known = {field.name for field in dataclasses.fields(cls)} - cls.saved_as_null
        for key in (cls.type_key, "image_processor_type", "feature_extractor_type"):
            values.pop(key, None)
        return super().upgrade({key: value for key, value in values.items() if value is not None or key not in known})

    def to_dict(self) -> JsonObject:
        """Return the JSON object of a `preprocessor_config.json`."""
        fields = super().to_dict()
        values = {key: value for key, value in fields.items() if value is not None or key in self.saved_as_null}
        return values | {self.type_key: type(self).__name__}

    def with_options(self, **options: Any) -> Self:
        """Return this processor, or a copy with the options that are not None."""
        changed = {name: value for name, value in options.items() if value is not None}
        if not changed:
            return self
        known = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return type(self)(**(known | changed))

    def __call__(self, images: ImageInput, *args: Any, **kwargs: Any) -> BatchFeature:
        """Same as `preprocess`."""
        return self.preprocess(images, *args, **kwargs)

    def preprocess(self, images: ImageInput, *args: Any, **kwargs: Any) -> BatchFeature:
        """Convert images to model inputs; implemented by each family."""
        raise InputError(f"{type(self).__name__}: has no `preprocess`. Use a family's processor.")

    def resize(
        self,
        image: ArrayT,
        size: SizeOption,
        resample: int | None = None,
        antialias: bool = True,
        *,
        data_format: str | None = None,
        input_data_format: str | None = None,
    ) -> ArrayT:
        """Resize an array or a tensor, [..., C, H, W] or [H, W, C], with the processor's filter or `resample`."""
        mode = resample_mode(self.resample if resample is None else int(resample))

        def apply(pixels: Tensor) -> Tensor:
            return resize(pixels, scaled_hw(size_of(pixels), size_table(size)), mode=mode, antialias=antialias)

        return _apply_to_pixels(apply, image, data_format, input_data_format)

    def rescale(
        self, image: ArrayT, scale: float, *, data_format: str | None = None, input_data_format: str | None = None
    ) -> ArrayT:
        """Multiply an array or a tensor by `scale`."""
        return _apply_to_pixels(lambda pixels: pixels * scale, image, data_format, input_data_format)

    def normalize(
        self,
        image: ArrayT,
        mean: float | Sequence[float],
        std: float | Sequence[float],
        *,
        data_format: str | None = None,
        input_data_format: str | None = None,
    ) -> ArrayT:
        """Return (image - mean) / std of an array or a tensor, [..., C, H, W] or [H, W, C], in float32."""

        def apply(pixels: Tensor) -> Tensor:
            return rescale_and_normalize(pixels, scale=None, mean=mean, std=std)

        return _apply_to_pixels(apply, image, data_format, input_data_format)

    def center_crop(
        self, image: ArrayT, size: SizeOption, *, data_format: str | None = None, input_data_format: str | None = None
    ) -> ArrayT:
        """Crop the center of an array or a tensor, [..., C, H, W] or [H, W, C], padded with 0 where it is smaller."""
        size_hw = height_width(size_table(size), "size")
        return _apply_to_pixels(lambda pixels: center_on_canvas(pixels, size_hw), image, data_format, input_data_format)

    def normalize_pixels(self, pixels: Tensor) -> Tensor:
        """Rescale and normalize [..., C, H, W] to float32 by the options."""
        return rescale_and_normalize(pixels, **self.normalization)

    @property
    def normalization(self) -> JsonObject:
        """Arguments of `rescale_and_normalize`: `scale`, `mean` and `std`, None for steps that are off."""
        return {
            "scale": self.rescale_factor if self.do_rescale else None,
            "mean": self.image_mean if self.do_normalize else None,
            "std": self.image_std if self.do_normalize else None,
        }

    @property
    def channels(self) -> int:
        """Number of channels of the images that `image_mean` is for."""
        return len(self.image_mean) if self.do_normalize and isinstance(self.image_mean, Sequence) else 3


def read_settings(source: str | Path, options: HubOptions, file_name: str, *keys: str) -> JsonObject | None:
    """Return the settings in a file of a checkpoint, or under the first of `keys` in that of a combined processor."""
    settings = read_config_dict(source, options, file_name)
    if settings is not None:
        return settings
    combined = read_config_dict(source, options, COMBINED_PROCESSOR_FILE) or {}
    inner = next((combined[key] for key in keys if isinstance(combined.get(key), dict)), None)
    shared = {key: value for key, value in combined.items() if key == "processor_class"}
    return None if inner is None else shared | inner


def size_table(size: object) -> dict[str, int]:
    """Convert a table, a number (square), or (height, width) to a table."""
    if isinstance(size, Mapping):
        return {str(key): value for key, value in size.items() if value is not None}
    if isinstance(size, int):
        return {"height": size, "width": size}
    if isinstance(size, Sequence) and not isinstance(size, str) and len(size) == 2:
        return {"height": size[0], "width": size[1]}
    raise ConfigError(f"size: expected a table, a number or (height, width), got {size!r}.")


def height_width(size: Mapping[str, int], subject: str) -> tuple[int, int]:
    """Return (height, width) of a size that must have both, each at least 1."""
    if {"height", "width"} - set(size) or min(size["height"], size["width"]) < 1:
        raise ConfigError(f"{subject}: expected a size with height and width of at least 1, got {dict(size)}.")
    return size["height"], size["width"]


def scaled_hw(source_hw: tuple[int, int], size: Mapping[str, int]) -> tuple[int, int]:
    """Return the size to which an image of `source_hw` is resized by a table of `ImageProcessor.size`."""
    if "shortest_edge" in size:
        return shortest_edge_hw(source_hw, size["shortest_edge"], size.get("longest_edge"))
    if {"max_height", "max_width"} <= set(size):
        return fit_inside_hw(source_hw, (size["max_height"], size["max_width"]))
    return height_width(size, "size")


def as_pixels(
    images: ImageInput,
    *,
    input_data_format: str | None = None,
    device: str | torch.device | None = None,
    channels: int = 3,
) -> list[Tensor]:
    """Convert images of any kind to a list of [C, H, W] tensors: uint8 for images, the same dtype for arrays.

    Arrays may have 1, 3 or `channels` channels. Gray ones are repeated to `channels`.
    """
    tensors = [_one_image(image, input_data_format, channels) for image in as_list(images)]
    return tensors if device is None else [tensor.to(device) for tensor in tensors]


def as_list(images: ImageInput) -> list[Any]:
    """Return a flat list of images, from one image, nested lists, or an array with a batch dimension."""
    if isinstance(images, (list, tuple)):
        if not images:
            raise InputError("images: expected at least one image, got an empty list.")
        return [part for image in images for part in as_list(image)]
    if isinstance(images, (np.ndarray, Tensor)) and images.ndim == 4:
        return list(images)
    return [images]


def _one_image(image: object, input_data_format: str | None, channels: int) -> Tensor:
    """Convert one image to [C, H, W]; arrays keep their values."""
    if isinstance(image, np.ndarray):
        image = as_tensor(image)
    if isinstance(image, Tensor):
        return channels_first(image, input_data_format, channels)
    if isinstance(image, (Image.Image, str, Path, bytes)):
        return pixels_of(load_rgb(image))
    raise InputError(f"images: expected PIL, numpy, torch, a path, a URL or bytes, got {type(image).__name__}.")


def _apply_to_pixels(
    function: Callable[[Tensor], Tensor], image: ArrayT, data_format: str | None, input_data_format: str | None
) -> ArrayT:
    """Apply a function of [..., C, H, W] to an array or a tensor in either format; return the same kind and format."""
    pixels = image if isinstance(image, Tensor) else as_tensor(image)
    last = is_channels_last(pixels, input_data_format)
    result = function(pixels.movedim(-1, -3) if last else pixels)
    result = in_data_format(result, data_format or ("channels_last" if last else "channels_first"))
    converted: ArrayT = result if isinstance(image, Tensor) else result.numpy()
    return converted


def size_list(name: str, sizes: Any, count: int) -> list[tuple[int, int]] | None:
    """Convert a tensor or a list of (height, width), one for each of `count` images."""
    if sizes is None:
        return None
    rows = sizes.tolist() if isinstance(sizes, (Tensor, np.ndarray)) else list(sizes)
    check_count(name, rows, count)
    checked = []
    for row in rows:
        values = row.tolist() if isinstance(row, (Tensor, np.ndarray)) else row
        if not isinstance(values, Sequence) or len(values) != 2 or min(values) < 1:
            raise InputError(f"{name}: expected (height, width) of at least 1 for each image, got {values!r}.")
        checked.append((int(values[0]), int(values[1])))
    return checked
