"""Pictures and prompts → inputs of SAM 2, and its masks → masks of the original size.

pictures ─ resize to 1024² ─ normalise ─▶ pixel_values [B, 3, 1024, 1024], original_sizes [B, 2]
points, labels, boxes in pixels of the picture ─▶ input_points, input_labels, input_boxes in pixels of the input
pred_masks [P, K, 256, 256] ─ post_process_masks ─▶ [P, K, height, width] of the original picture
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vitruvian.config import Settings, nested, read_config_dict, settings
from vitruvian.errors import CheckpointError, InputError
from vitruvian.hub import HubOptions
from vitruvian.images import resample_mode, resize
from vitruvian.images.components import fill_holes, remove_islands
from vitruvian.models.sam2.configuration import Size, pair, positional_fields
from vitruvian.models.sam2.prompt_encoder import PADDING
from vitruvian.models.sam2.prompts import read_boxes, read_points
from vitruvian.outputs import BatchFeature
from vitruvian.processor import (
    PROCESSOR_FILE,
    ImageInput,
    ImageProcessor,
    as_pixels,
    check_count,
    height_width,
    size_list,
    size_table,
)

JOINT_FILE = "processor_config.json"
NEAREST = 0
# Filled holes and removed islands get logits this far on the other side of the threshold, as the original has it.
CERTAIN = 10.0


@settings
class Sam2ImageProcessor(ImageProcessor):
    """Pictures to SAM 2's input, and masks back to the pictures' size.

    Args:
        size: Size of the model's input; by default 1024 × 1024.
        mask_size: Size of label masks; by default 256 × 256, the size of predicted masks.
    """

    size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 1024, "width": 1024})
    mask_size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 256, "width": 256})
    do_convert_rgb: bool | None = True

    def __post_init__(self) -> None:
        self.mask_size = size_table(self.mask_size)
        super().__post_init__()

    def validate(self) -> None:
        """Refuse sizes without height and width."""
        super().validate()
        height_width(self.size, "size")
        height_width(self.mask_size, "mask_size")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Read from a folder or the Hub; keywords are those of the Hub, such as `revision`, or fields to override."""
        where, overrides = split_options(options)
        return cls.from_dict(read_image_settings(pretrained_model_name_or_path, where), **overrides)

    def preprocess(
        self,
        images: ImageInput,
        segmentation_maps: Any = None,
        *,
        do_resize: bool | None = None,
        size: dict[str, int] | None = None,
        mask_size: dict[str, int] | None = None,
        resample: int | None = None,
        do_rescale: bool | None = None,
        rescale_factor: float | None = None,
        do_normalize: bool | None = None,
        image_mean: list[float] | float | None = None,
        image_std: list[float] | float | None = None,
        do_convert_rgb: bool | None = None,
        input_data_format: str | None = None,
        device: str | torch.device | None = None,
        return_tensors: str | None = None,
    ) -> BatchFeature:
        """Prepare pictures, and label masks with them.

        Args:
            images: One picture or several: PIL, numpy, torch, paths, addresses or bytes.
            segmentation_maps: For each picture a mask [H, W], or one for each object [P, H, W].
            do_resize, size, mask_size, resample, do_rescale, rescale_factor, do_normalize, image_mean, image_std,
                do_convert_rgb: Options of the processor for this call.
            input_data_format: Where channels are in arrays: "channels_first" or "channels_last".
            device: Where to work; by default where the pictures are.
            return_tensors: "pt" or "np" for stacked arrays.

        Returns:
            `pixel_values` [B, 3, H, W], `original_sizes` [B, 2], and `labels` [B, h, w] or [B, P, h, w], int64.
        """
        options = self.with_options(
            do_resize=do_resize,
            size=size,
            mask_size=mask_size,
            resample=resample,
            do_rescale=do_rescale,
            rescale_factor=rescale_factor,
            do_normalize=do_normalize,
            image_mean=image_mean,
            image_std=image_std,
            do_convert_rgb=do_convert_rgb,
        )
        pictures = as_pixels(images, input_data_format=input_data_format, device=device)
        data: dict[str, Any] = {
            "pixel_values": [options.one_picture(pixels) for pixels in pictures],
            "original_sizes": [(pixels.shape[-2], pixels.shape[-1]) for pixels in pictures],
        }
        if segmentation_maps is not None:
            maps = as_maps(segmentation_maps, len(pictures))
            data["labels"] = [options.one_map(one) for one in maps]
        return BatchFeature(data, tensor_type=return_tensors)

    def one_picture(self, pixels: Tensor) -> Tensor:
        """Resize and normalise one picture [3, H, W]."""
        if self.do_resize:
            pixels = resize(pixels, height_width(self.size, "size"), mode=resample_mode(self.resample))
        return self.finish_pixels(pixels)

    def one_map(self, labels: Tensor) -> Tensor:
        """Resize label masks [H, W] or [P, H, W] without mixing labels: int64."""
        planes = labels if labels.ndim == 3 else labels[None]  # [P, H, W]
        if self.do_resize:
            planes = resize(planes, height_width(self.mask_size, "mask_size"), mode=resample_mode(NEAREST))
        return planes.reshape(*labels.shape[:-2], *planes.shape[-2:]).long()

    def post_process_masks(
        self,
        masks: Any,
        original_sizes: Any,
        mask_threshold: float = 0.0,
        binarize: bool = True,
        max_hole_area: float = 0.0,
        max_sprinkle_area: float = 0.0,
        apply_non_overlapping_constraints: bool = False,
    ) -> list[Tensor]:
        """Enlarge mask logits to the pictures' own size and clean them up.

        Args:
            masks: For each picture logits [P, K, h, w], such as `pred_masks`: a tensor, an array or a list of them.
            original_sizes: Height and width of each picture.
            mask_threshold: Logit above which a pixel is on the object.
            binarize: Give bool masks rather than logits.
            max_hole_area: Regions off the object of up to this many pixels of the picture are filled.
            max_sprinkle_area: Regions on the object of up to this many pixels of the picture are removed.
            apply_non_overlapping_constraints: Give each pixel to the object with the highest logit only.

        Returns:
            For each picture [P, K, height, width].
        """
        sizes = size_list("original_sizes", original_sizes, len(masks)) or []
        found = []
        for logits, size_hw in zip(masks, sizes, strict=True):
            large = enlarge(logits, size_hw)  # [P, K, H, W]
            if apply_non_overlapping_constraints:
                large = without_overlap(large)
            found.append(
                clean(
                    large,
                    threshold=mask_threshold,
                    binarize=binarize,
                    max_hole_area=max_hole_area,
                    max_sprinkle_area=max_sprinkle_area,
                )
            )
        return found


@positional_fields("image_processor", "target_size", "point_pad_value")
@settings
class Sam2Processor(Settings):
    """Pictures and prompts to SAM 2's inputs. Fields may be given by position.

    Args:
        image_processor: Prepares the pictures.
        target_size: Size of the model's input that prompts are scaled to, a number or (height, width); by default the
            image processor's.
        point_pad_value: Coordinate of points and boxes that only fill up a batch.
    """

    file_name: ClassVar[str] = JOINT_FILE

    image_processor: Sam2ImageProcessor = dataclasses.field(default_factory=Sam2ImageProcessor)
    target_size: Size | None = None
    point_pad_value: int = PADDING

    def __post_init__(self) -> None:
        self.image_processor = nested(self.image_processor, Sam2ImageProcessor)
        super().__post_init__()
        if self.target_size is None:
            height, width = height_width(self.image_processor.size, "size")
            self.target_size = height if height == width else [height, width]

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop class names, which `to_dict` writes itself, and what belongs to videos."""
        dropped = ("processor_class", "video_processor", "auto_map")
        return {key: value for key, value in values.items() if key not in dropped}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object of a `processor_config.json`."""
        return super().to_dict() | {"processor_class": type(self).__name__}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Read from a folder or the Hub; keywords are those of the Hub, such as `revision`, or fields to override."""
        where, overrides = split_options(options)
        values = read_config_dict(pretrained_model_name_or_path, where, JOINT_FILE) or {}
        if "image_processor" not in values:
            values["image_processor"] = read_image_settings(pretrained_model_name_or_path, where)
        return cls.from_dict(values, **overrides)

    def save_pretrained(self, save_directory: str | Path) -> list[Path]:
        """Write `processor_config.json`, and `preprocessor_config.json` for readers of the pictures' part alone."""
        return super().save_pretrained(save_directory) + self.image_processor.save_pretrained(save_directory)

    @property
    def model_input_names(self) -> list[str]:
        """Names of what a call gives at least."""
        return [*self.image_processor.model_input_names, "original_sizes"]

    def __call__(
        self,
        images: ImageInput | None = None,
        segmentation_maps: Any = None,
        input_points: Any = None,
        input_labels: Any = None,
        input_boxes: Any = None,
        original_sizes: Any = None,
        return_tensors: str | None = None,
        **image_options: Any,
    ) -> BatchFeature:
        """Prepare pictures and prompts; prompts are in pixels of the pictures.

        Args:
            images: One picture or several; leave them out to prompt pictures that are encoded already.
            segmentation_maps: For each picture a mask [H, W], or one for each object [P, H, W]; become `labels`.
            input_points: x and y, nested as [image][object][point]. A level may be left out where that is clear.
            input_labels: One number a point, nested as [image][object][point]: 1 on the object, 0 off it.
            input_boxes: x1, y1, x2, y2, nested as [image][object].
            original_sizes: Height and width of each picture, where `images` are left out.
            return_tensors: "pt" or "np"; prompts are tensors in any case.
            image_options: Options of the image processor's `preprocess`.
        """
        if images is not None:
            data = self.image_processor(
                images, segmentation_maps=segmentation_maps, return_tensors=return_tensors, **image_options
            )
            sizes = size_list("original_sizes", data["original_sizes"], len(data["original_sizes"])) or []
            if original_sizes is not None and size_list("original_sizes", original_sizes, len(sizes)) != sizes:
                raise InputError(f"original_sizes: the pictures are {sizes}. Leave it out where images are given.")
        elif original_sizes is None:
            raise InputError("images: expected pictures, or original_sizes of pictures encoded earlier, got neither.")
        elif segmentation_maps is not None or image_options:
            given = ["segmentation_maps"] * (segmentation_maps is not None) + list(image_options)
            raise InputError(f"{', '.join(given)}: expected images with them, got none. Add the pictures.")
        else:
            sizes = size_list("original_sizes", original_sizes, len(original_sizes)) or []
            data = BatchFeature({"original_sizes": sizes}, tensor_type=return_tensors)
        data.update(self.prompts(sizes, input_points, input_labels, input_boxes, return_tensors))
        return data

    def prompts(
        self,
        sizes_hw: list[tuple[int, int]],
        input_points: Any = None,
        input_labels: Any = None,
        input_boxes: Any = None,
        return_tensors: str | None = None,
    ) -> BatchFeature:
        """Scale prompts for pictures of these sizes to the model's input and pad them to one shape."""
        target, pad = pair(self.target_size), self.point_pad_value
        found: dict[str, Any] = {}
        if input_points is not None or input_labels is not None:
            points, labels = read_points(input_points, input_labels, sizes_hw, target, pad=pad)
            found["input_points"] = points
            if labels is not None:
                found["input_labels"] = labels
        if input_boxes is not None:
            found["input_boxes"] = read_boxes(input_boxes, sizes_hw, target, pad=pad)
        counts = {name: value.shape[1] for name, value in found.items()}
        if len(set(counts.values())) > 1:
            raise InputError(
                f"prompts: expected as many objects in each, got {counts}. Give points and a box for each."
            )
        return BatchFeature(found, tensor_type="np" if return_tensors == "np" else None)

    def post_process_masks(
        self,
        masks: Any,
        original_sizes: Any,
        mask_threshold: float = 0.0,
        binarize: bool = True,
        max_hole_area: float = 0.0,
        max_sprinkle_area: float = 0.0,
        apply_non_overlapping_constraints: bool = False,
    ) -> list[Tensor]:
        """Enlarge mask logits to the pictures' own size; see `Sam2ImageProcessor.post_process_masks`."""
        return self.image_processor.post_process_masks(
            masks,
            original_sizes,
            mask_threshold,
            binarize,
            max_hole_area,
            max_sprinkle_area,
            apply_non_overlapping_constraints,
        )


def enlarge(logits: Any, size_hw: tuple[int, int]) -> Tensor:
    """Resample mask logits [P, K, h, w] to [P, K, H, W]."""
    tensor = torch.as_tensor(logits)
    if tensor.ndim != 4:
        raise InputError(
            f"masks: expected [P, K, h, w] for each picture, got {list(tensor.shape)}. Pass pred_masks as it is."
        )
    wide = tensor if tensor.dtype == torch.float32 else tensor.float()
    return F.interpolate(wide, size=size_hw, mode="bilinear", align_corners=False)  # [P, K, H, W]


def without_overlap(logits: Tensor) -> Tensor:
    """Push the logits [P, K, H, W] of all objects but the highest at a pixel below -10."""
    if len(logits) == 1:
        return logits
    first = logits.argmax(dim=0, keepdim=True)  # [1, K, H, W]
    index = torch.arange(len(logits), device=logits.device)[:, None, None, None]
    return torch.where(index == first, logits, logits.clamp(max=-CERTAIN))


def clean(
    logits: Tensor, *, threshold: float, binarize: bool, max_hole_area: float, max_sprinkle_area: float
) -> Tensor:
    """Fill small holes and remove small islands of masks [..., H, W]: bool masks, or logits changed there."""
    before = logits > threshold
    after = tidy(before, max_hole_area=max_hole_area, max_sprinkle_area=max_sprinkle_area)
    if binarize:
        return after
    if after is before:
        return logits
    filled = logits.masked_fill(after & ~before, threshold + CERTAIN)
    return filled.masked_fill(before & ~after, threshold - CERTAIN)


def tidy(masks: Tensor, *, max_hole_area: float, max_sprinkle_area: float) -> Tensor:
    """Fill holes, then remove islands of up to so many pixels in bool masks [..., H, W]; 0 leaves them."""
    if max_hole_area > 0:
        masks = fill_holes(masks, max_hole_area)
    return remove_islands(masks, max_sprinkle_area) if max_sprinkle_area > 0 else masks


def as_maps(maps: Any, count: int) -> list[Tensor]:
    """Read label masks, one [H, W] or [P, H, W] for each of `count` pictures, given as PIL, numpy or torch."""
    single = isinstance(maps, Image.Image) or (isinstance(maps, (np.ndarray, Tensor)) and maps.ndim == 2)
    listed = [maps] if single else list(maps)
    check_count("segmentation_maps", listed, count)
    found = [torch.as_tensor(np.array(one) if isinstance(one, Image.Image) else one) for one in listed]
    for one in found:
        if one.ndim not in (2, 3) or one.is_floating_point():
            raise InputError(
                f"segmentation_maps: expected integers of shape [H, W] or [P, H, W], got {one.dtype} {list(one.shape)}."
            )
    return found


def split_options(options: dict[str, Any]) -> tuple[HubOptions, dict[str, Any]]:
    """Part keywords of `from_pretrained` into how to look up files and fields to override."""
    names = {field.name for field in dataclasses.fields(HubOptions)}
    where = {key: value for key, value in options.items() if key in names}
    return HubOptions(**where), {key: value for key, value in options.items() if key not in names}


def read_image_settings(source: str | Path, options: HubOptions) -> dict[str, Any]:
    """Find the image processor's settings: in a file of their own, or inside the processor's."""
    alone = read_config_dict(source, options, PROCESSOR_FILE)
    if alone is not None:
        return alone
    joint = read_config_dict(source, options, JOINT_FILE) or {}
    if not isinstance(joint.get("image_processor"), dict):
        raise CheckpointError(
            f"{source}: expected {PROCESSOR_FILE} or {JOINT_FILE}, found neither. Is it a checkpoint?"
        )
    return dict(joint["image_processor"])
