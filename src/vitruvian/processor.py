"""`ImageProcessor`: from images to model inputs, with options in `preprocessor_config.json`.

PIL / numpy / torch / paths ── as_pixels ──▶ [C, H, W] tensors ── preprocess (of a family) ──▶ BatchFeature
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitruvian.config import Settings, settings
from vitruvian.errors import ConfigError, InputError
from vitruvian.images import image_to_tensor, load_image, rescale_and_normalize
from vitruvian.outputs import BatchFeature

PROCESSOR_FILE = "preprocessor_config.json"
VIDEO_PROCESSOR_FILE = "video_preprocessor_config.json"
JOINT_FILE = "processor_config.json"
ImageInput = Any  # an image or a list of images: PIL, NumPy [H, W, C] or [C, H, W], torch, path, URL or bytes

_IMAGENET_MEAN = [0.485, 0.456, 0.406]
_IMAGENET_STD = [0.229, 0.224, 0.225]


SizeOption = Mapping[str, int] | Sequence[int] | int  # a table, (height, width), or one number


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


@settings
class ImageProcessor(Settings):
    """Options that all image processors share.

    Args:
        do_resize: Whether to resize.
        size: Target size: ``{"height", "width"}`` or ``{"shortest_edge", "longest_edge"}``.
        resample: PIL's number of the filter: 0 nearest, 2 bilinear, 3 bicubic.
        do_rescale: Whether to multiply pixel values by `rescale_factor`.
        rescale_factor: By default 1/255.
        do_normalize: Whether to subtract `image_mean` and divide by `image_std`.
        image_mean: Mean of each channel.
        image_std: Standard deviation of each channel.
        do_convert_rgb: Whether images of other modes become RGB (PIL images always do).
    """

    file_name: ClassVar[str] = PROCESSOR_FILE
    model_input_names: ClassVar[list[str]] = ["pixel_values"]

    do_resize: bool = True
    size: dict[str, int] = dataclasses.field(default_factory=dict)
    resample: int = 2
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: list[float] | float = dataclasses.field(default_factory=lambda: list(_IMAGENET_MEAN))
    image_std: list[float] | float = dataclasses.field(default_factory=lambda: list(_IMAGENET_STD))
    do_convert_rgb: bool | None = None

    def __post_init__(self) -> None:
        self.size = size_table(self.size)
        if isinstance(self.resample, enum.IntEnum):
            self.resample = int(self.resample)  # PIL's names of filters
        super().__post_init__()

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop the class name, which `to_dict` writes, and unset options."""
        known = {field.name for field in dataclasses.fields(cls)}
        values.pop("image_processor_type", None)
        values.pop("feature_extractor_type", None)
        return super().upgrade({key: value for key, value in values.items() if value is not None or key not in known})

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a `preprocessor_config.json`."""
        values = {key: value for key, value in super().to_dict().items() if value is not None}
        return values | {"image_processor_type": type(self).__name__}

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

    def finish_pixels(self, pixels: Tensor, *, in_place: bool = False) -> Tensor:
        """Rescale and normalize [..., C, H, W] to float32 by the options, with `in_place` into float32 pixels."""
        return rescale_and_normalize(pixels, out=pixels if in_place else None, **self.constants)

    @property
    def constants(self) -> dict[str, Any]:
        """Arguments of `rescale_and_normalize`: `scale`, `mean` and `std`, None for steps that are off."""
        return {
            "scale": self.rescale_factor if self.do_rescale else None,
            "mean": self.image_mean if self.do_normalize else None,
            "std": self.image_std if self.do_normalize else None,
        }


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


def as_pixels(
    images: ImageInput, *, input_data_format: str | None = None, device: str | torch.device | None = None
) -> list[Tensor]:
    """Convert images of any kind to a list of [C, H, W] tensors: uint8 for images, the same dtype for arrays."""
    tensors = [_one_image(image, input_data_format) for image in as_list(images)]
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


def _one_image(image: object, input_data_format: str | None) -> Tensor:
    """Convert one image to [C, H, W]; arrays keep their values."""
    if isinstance(image, np.ndarray):
        image = as_tensor(image)
    if isinstance(image, Tensor):
        return channels_first(image, input_data_format)
    if isinstance(image, (Image.Image, str, Path, bytes)):
        return image_to_tensor(load_image(image))
    raise InputError(f"images: expected PIL, numpy, torch, a path, a URL or bytes, got {type(image).__name__}.")


def as_tensor(array: NDArray[np.generic]) -> Tensor:
    """Convert an array to a tensor, without a copy where torch can share its memory."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:  # such as bgr[..., ::-1]
        array = array.copy()
    try:
        return torch.as_tensor(array)
    except TypeError as error:
        raise InputError(f"images: expected arrays of numbers, got {array.dtype}.") from error


def channels_first(pixels: Tensor, input_data_format: str | None = None) -> Tensor:
    """Convert [H, W], [H, W, C] or [C, H, W] to [3, H, W]; gray is repeated, an alpha channel is an error."""
    if input_data_format not in (None, "channels_first", "channels_last"):
        raise InputError(f"input_data_format: expected 'channels_first' or 'channels_last', got {input_data_format!r}.")
    if pixels.ndim == 2:
        pixels = pixels[None]  # [1, H, W]
    elif pixels.ndim != 3:
        raise InputError(f"images: expected arrays of 2 or 3 dimensions, got the shape {list(pixels.shape)}.")
    elif input_data_format == "channels_last" or (
        input_data_format is None and pixels.shape[0] not in (1, 3) and pixels.shape[-1] in (1, 3)
    ):
        pixels = pixels.permute(2, 0, 1)  # [C, H, W]
    if pixels.shape[0] == 1:
        pixels = pixels.expand(3, -1, -1)  # [3, H, W]
    if pixels.shape[0] != 3:
        raise InputError(
            f"images: expected 1 or 3 channels, got the shape {list(pixels.shape)}. "
            "Convert to RGB, or say input_data_format='channels_last'."
        )
    return pixels


def check_count(name: str, entries: Sequence[Any] | Tensor | None, count: int) -> None:
    """Raise `InputError` unless `entries` is None or has one entry for each of `count` images."""
    if entries is not None and len(entries) != count:
        raise InputError(f"{name}: expected one entry for each of the {count} images, got {len(entries)}.")


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
