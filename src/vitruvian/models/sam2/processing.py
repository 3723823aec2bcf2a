"""Images and prompts to inputs of SAM 2, and its masks to masks of the original size.

    images ─ resize to 1024² ─ normalize ─▶ pixel_values [B, 3, 1024, 1024], original_sizes [B, 2]
    points [image][object][point][x, y] · labels [image][object][point] · boxes [image][object][x1, y1, x2, y2]
        ─▶ [B, P, N, 2] · [B, P, N] · [B, P, 4] in pixels of the model input, padded with -10
    pred_masks [P, K, 256, 256] ─ post_process_masks ─▶ [P, K, height, width] of the original image

Prompts are nested lists, arrays or tensors; see `prompts`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.config import ConfigBase, Size, as_hw, config_dataclass, nested, read_config_dict
from vitruvian.errors import CheckpointError, InputError, InputTypeError, check_count
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.hub import HubOptions, split_hub_options
from vitruvian.images import resample_mode, resize
from vitruvian.images.boxes import mask_boxes
from vitruvian.images.data_format import in_data_format, size_of
from vitruvian.images.label_maps import read_label_maps
from vitruvian.images.nms import box_nms
from vitruvian.images.rle import Rle, decode_rle, encode_rles
from vitruvian.images.types import SizeHW
from vitruvian.models.sam2.configuration import positional_fields
from vitruvian.models.sam2.crops import overlapping_crops, point_grid, touches_crop_edge
from vitruvian.models.sam2.mask_cleanup import clean_logits, fill_holes_and_remove_islands, without_overlap
from vitruvian.models.sam2.mask_decoder import stability_score
from vitruvian.models.sam2.prompt_coordinates import read_boxes, read_points
from vitruvian.models.sam2.prompt_encoder import PADDING
from vitruvian.ops.interpolate import bilinear
from vitruvian.outputs import BatchFeature
from vitruvian.processor import (
    COMBINED_PROCESSOR_FILE,
    IMAGE_PROCESSOR_FILE,
    ImageInput,
    ImageOptions,
    ImageProcessor,
    SizeOption,
    as_pixels,
    height_width,
    read_settings,
    size_list,
    size_table,
    use_transformers_results,
)

_NEAREST = 0


class MaskPostProcessing:
    """Resizing of predicted masks, which all processors of SAM 2 share."""

    def post_process_masks(
        self,
        masks: Sequence[object] | Tensor,
        original_sizes: Sequence[object] | Tensor,
        mask_threshold: float = 0.0,
        binarize: bool = True,
        max_hole_area: float = 0.0,
        max_sprinkle_area: float = 0.0,
        apply_non_overlapping_constraints: bool = False,
        *,
        reshaped_input_sizes: object = None,
    ) -> list[Tensor]:
        """Resize mask logits to the original size of the images and remove small holes and islands.

        Args:
            masks: For each image logits [P, K, h, w], such as `pred_masks`: a tensor, an array or a list of them.
            original_sizes: Height and width of each image.
            mask_threshold: Logit above which a pixel is on the object.
            binarize: Return bool masks rather than logits.
            max_hole_area: Fill regions off the object of up to this many pixels of the image.
            max_sprinkle_area: Remove regions on the object of up to this many pixels of the image.
            apply_non_overlapping_constraints: Assign each pixel only to the object with the highest logit.
            reshaped_input_sizes: No effect: an argument of SAM, whose images are padded.

        Returns:
            For each image [P, K, height, width].
        """
        for image_masks in masks:
            if not isinstance(image_masks, (Tensor, np.ndarray)):
                raise InputTypeError(
                    f"masks: expected a tensor or an array for each image, got {type(image_masks).__name__}. "
                    "Pass pred_masks as it is."
                )
        sizes = size_list("original_sizes", original_sizes, len(masks)) or []
        processed = []
        for image_masks, size_hw in zip(masks, sizes, strict=True):
            logits = _resize_logits(image_masks, size_hw)  # [P, K, H, W]
            if apply_non_overlapping_constraints:
                logits = without_overlap(logits)
            areas = max_hole_area, max_sprinkle_area
            processed.append(
                fill_holes_and_remove_islands(logits > mask_threshold, *areas)
                if binarize
                else clean_logits(logits, *areas, threshold=mask_threshold)
            )
        return processed


@config_dataclass
class FixedSizeProcessor(ImageProcessor):
    """Resizes images to one size, whatever their aspect ratio, and normalizes them.

    Args:
        size: Size of the model input; by default 1024 × 1024.
    """

    size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 1024, "width": 1024})
    do_convert_rgb: bool | None = True

    def validate(self) -> None:
        """Raise `ConfigError` for a size without height and width."""
        super().validate()
        height_width(self.size, "size")

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Read from a folder or the Hub. Keywords are options of the Hub, such as `revision`, or fields to override."""
        hub_options, overrides = split_hub_options(options)
        return cls.from_dict(cls.read_settings(pretrained_model_name_or_path, hub_options), **overrides)

    @classmethod
    def read_settings(cls, source: str | Path, options: HubOptions) -> JsonObject:
        """Read the settings from their own file or from that of the processor."""
        settings = read_settings(source, options, IMAGE_PROCESSOR_FILE, "image_processor")
        if settings is None:
            raise CheckpointError(
                f"{source}: expected {IMAGE_PROCESSOR_FILE} or {COMBINED_PROCESSOR_FILE}, found neither. "
                "Is it a checkpoint?"
            )
        return settings

    def prepare_image(self, pixels: Tensor) -> Tensor:
        """Resize and normalize one image [3, H, W]."""
        if self.do_resize:
            pixels = resize(pixels, height_width(self.size, "size"), mode=resample_mode(self.resample))
        return self.normalize_pixels(pixels)


@config_dataclass
class Sam2ImageProcessor(MaskPostProcessing, FixedSizeProcessor):
    """Images to the input of SAM 2, and masks back to the size of the images.

    Args:
        size: Size of the model input; by default 1024 × 1024.
        mask_size: Size of label masks; by default 256 × 256, the size of predicted masks.
    """

    mask_size: dict[str, int] = dataclasses.field(default_factory=lambda: {"height": 256, "width": 256})

    def __post_init__(self) -> None:
        self.mask_size = size_table(self.mask_size)
        super().__post_init__()

    def validate(self) -> None:
        """Raise `ConfigError` for sizes without height and width."""
        super().validate()
        height_width(self.mask_size, "mask_size")

    def preprocess(
        self,
        images: ImageInput,
        segmentation_maps: object = None,
        *,
        mask_size: SizeOption | None = None,
        data_format: str | None = None,
        input_data_format: str | None = None,
        device: str | torch.device | None = None,
        disable_grouping: bool | None = None,
        return_tensors: str | None = None,
        **options: Unpack[ImageOptions],
    ) -> BatchFeature:
        """Prepare images, and label masks with them.

        Args:
            images: One image or several: PIL, numpy, torch, paths, URLs or bytes.
            segmentation_maps: For each image a mask [H, W], or one for each object [P, H, W].
            mask_size: Size of label masks for this call.
            data_format: "channels_first" (the default) or "channels_last", for `pixel_values`.
            input_data_format: Layout of arrays: "channels_first" or "channels_last".
            device: Device to compute on; by default that of the images.
            disable_grouping: No effect: images are resized one by one.
            return_tensors: "pt" or "np" for stacked arrays.
            options: Options of the processor for this call.

        Returns:
            `pixel_values` [B, 3, H, W], `original_sizes` [B, 2], and `labels` [B, h, w] or [B, P, h, w], int64.
        """
        used = self.with_options(mask_size=mask_size, **options)
        tensors = as_pixels(images, input_data_format=input_data_format, device=device, channels=used.channels)
        data: dict[str, object] = {
            "pixel_values": in_data_format([used.prepare_image(pixels) for pixels in tensors], data_format),
            "original_sizes": [size_of(pixels) for pixels in tensors],
        }
        if segmentation_maps is not None:
            label_maps = read_label_maps(segmentation_maps, [None] * len(tensors), planes=True)
            data["labels"] = [used._resize_labels(labels) for labels in label_maps]
        return BatchFeature(data, tensor_type=return_tensors)

    def generate_crop_boxes(
        self,
        image: ImageInput,
        target_size: int,
        crop_n_layers: int = 0,
        overlap_ratio: float = 512 / 1500,
        points_per_crop: int = 32,
        crop_n_points_downscale_factor: int = 1,
        device: str | torch.device | None = None,
        *,
        legacy: bool | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | list[Tensor], Tensor]:
        """Cut an image into crops with a grid of points in each, for the mask generation pipeline of transformers.

        `Sam2AutomaticMaskGenerator` does the same with less memory.

        Args:
            image: One image: PIL, numpy, torch, path, URL or bytes.
            target_size: Side of the model input.
            crop_n_layers: Layers of crops beside the whole image; layer n has 4ⁿ crops.
            overlap_ratio: Overlap of the crops of the first layer over the shorter side of the image.
            points_per_crop: Points along each side of the grid.
            crop_n_points_downscale_factor: In layer n the grid has fewer points per side by this factor to the n. The
                last point is repeated to the number of points of layer 0.
            device: Device of the results other than the crops; by default the CPU.
            legacy: Scale points as transformers does, which leaves out part of an image that is not square, and of all
                crops; by default the setting of `vitruvian.set_legacy_results`.

        Returns:
            Corners of the N crops [N, 4]; points [1, P, N, 2] in pixels of the model input; the crops, [N, C, h, w] or
            a list if their sizes differ; and labels of the points, all 1: [1, P, N].
        """
        (pixels,) = as_pixels(image)
        size_hw = size_of(pixels)
        layers, boxes = zip(*overlapping_crops(size_hw, crop_n_layers, overlap_ratio), strict=True)
        crops = [pixels[:, y1:y2, x1:x2] for x1, y1, x2, y2 in boxes]
        number = torch.arange(points_per_crop**2)
        points = []
        for layer, crop in zip(layers, crops, strict=True):
            grid = point_grid(max(1, points_per_crop // crop_n_points_downscale_factor**layer))
            side_wh = [float(target_size)] * 2
            if use_transformers_results(legacy):
                longest = max(size_hw)
                side_wh = [
                    part * int(whole * target_size / longest + 0.5) / whole
                    for part, whole in zip(size_of(crop)[::-1], size_hw[::-1], strict=True)
                ]
            points.append((grid * torch.tensor(side_wh))[number.clamp(max=len(grid) - 1)])  # [P, 2]
        stacked = torch.stack(points, dim=1)[None].to(device)  # [1, P, N, 2]
        same_size = len({crop.shape for crop in crops}) == 1
        return (
            torch.tensor(boxes, dtype=torch.float32, device=device),
            stacked,
            torch.stack(crops) if same_size else crops,
            torch.ones_like(stacked[..., 0], dtype=torch.int64),
        )

    def filter_masks(
        self,
        masks: Tensor,
        iou_scores: Tensor,
        original_size: Sequence[int],
        cropped_box_image: Tensor | Sequence[float],
        pred_iou_thresh: float = 0.88,
        stability_score_thresh: float = 0.95,
        mask_threshold: float = 0.0,
        stability_score_offset: float = 1.0,
        *,
        legacy: bool | None = None,
    ) -> tuple[list[Rle], Tensor, Tensor]:
        """Keep the masks of a crop that are good, stable and not cut by its edge.

        Args:
            masks: Mask logits [P, K, h, w] in the size of the crop.
            iou_scores: Predicted IoU [P, K].
            original_size: Height and width of the image.
            cropped_box_image: Corners of the crop.
            pred_iou_thresh: Predicted IoU that a mask must exceed; 0 or less to skip.
            stability_score_thresh: IoU that a mask must exceed between a higher and a lower threshold; 0 to skip.
            mask_threshold: Logit above which a pixel is on the object.
            stability_score_offset: Distance of the two thresholds from `mask_threshold`.
            legacy: Return boxes in pixels of the crop, as transformers does; by default the setting of
                `vitruvian.set_legacy_results`.

        Returns:
            Run lengths of the N masks in the image, scores [N], and boxes [N, 4] with inclusive ends.
        """
        logits, scores = masks.flatten(0, 1), iou_scores.flatten(0, 1).to(masks.device)
        check_count("iou_scores", scores, len(logits))
        height, width = int(original_size[0]), int(original_size[1])
        x1, y1, x2, y2 = (int(edge) for edge in cropped_box_image)
        pixels = logits > mask_threshold  # [N, h, w]
        boxes = mask_boxes(pixels)  # [N, 4], pixels of the crop
        in_image = boxes + boxes.new_tensor((x1, y1, x1, y1))
        keep = (boxes[:, 2] > boxes[:, 0]) & ~touches_crop_edge(in_image, (x1, y1, x2, y2), (height, width))
        if pred_iou_thresh > 0:
            keep &= scores > pred_iou_thresh
        if stability_score_thresh > 0:
            keep &= stability_score(logits, stability_score_offset, mask_threshold) > stability_score_thresh
        padded = F.pad(pixels[keep], (x1, width - x2, y1, height - y2))  # [N, H, W]
        found = (boxes if use_transformers_results(legacy) else in_image)[keep] - boxes.new_tensor((0, 0, 1, 1))
        return encode_rles(padded) if len(padded) else [], scores[keep], found

    def post_process_for_mask_generation(
        self, all_masks: Sequence[Rle], all_scores: Tensor, all_boxes: Tensor, crops_nms_thresh: float = 0.7
    ) -> tuple[list[Tensor], Tensor, list[Rle], Tensor]:
        """Drop masks whose boxes overlap a better one: masks [H, W], scores, run lengths and boxes, best first.

        Args:
            all_masks: Run lengths from `filter_masks`, of all crops.
            all_scores: Scores of the masks [N].
            all_boxes: Boxes of the masks [N, 4].
            crops_nms_thresh: IoU above which the worse of two masks is dropped.
        """
        selected = box_nms(all_boxes, all_scores, crops_nms_thresh)
        runs = [all_masks[index] for index in selected.tolist()]
        return [decode_rle(run) for run in runs], all_scores[selected], runs, all_boxes[selected]

    def _resize_labels(self, labels: Tensor) -> Tensor:
        """Resize label masks [H, W] or [P, H, W] without mixing labels: int64."""
        planes = labels if labels.ndim == 3 else labels[None]  # [P, H, W]
        if self.do_resize:
            planes = resize(planes, height_width(self.mask_size, "mask_size"), mode=resample_mode(_NEAREST))
        return planes.reshape(*labels.shape[:-2], *planes.shape[-2:]).long()


Sam2ImageProcessorFast = Sam2ImageProcessor


@positional_fields("image_processor", "target_size", "point_pad_value")
@config_dataclass
class Sam2Processor(MaskPostProcessing, ConfigBase):
    """Images and prompts to inputs of SAM 2. Fields may be positional arguments.

    Args:
        image_processor: Prepares the images.
        target_size: Size of the model input that prompts are scaled to, a number or (height, width); by default that
            of the image processor.
        point_pad_value: Coordinate of points and boxes that pad a batch.
    """

    file_name: ClassVar[str] = COMBINED_PROCESSOR_FILE

    image_processor: Sam2ImageProcessor = dataclasses.field(default_factory=Sam2ImageProcessor)
    target_size: Size | None = None
    point_pad_value: int = PADDING

    @property
    def size_hw(self) -> SizeHW:
        """Height and width of an input of the model."""
        return height_width(self.image_processor.size, "size")

    def __post_init__(self) -> None:
        self.image_processor = nested(self.image_processor, Sam2ImageProcessor)
        super().__post_init__()
        if self.target_size is None:
            height, width = self.size_hw
            self.target_size = height if height == width else [height, width]

    @classmethod
    def upgrade(cls, values: JsonObject) -> JsonObject:
        """Drop class names, which `to_dict` writes, and settings for videos."""
        dropped = ("processor_class", "video_processor", "auto_map")
        return {key: value for key, value in values.items() if key not in dropped}

    def to_dict(self) -> JsonObject:
        """Return the JSON object of a `processor_config.json`."""
        return super().to_dict() | {"processor_class": type(self).__name__}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Read from a folder or the Hub.

        Keywords are options of the Hub, such as `revision`, or override fields of the processor or of its image
        processor.
        """
        hub_options, overrides = split_hub_options(options)
        values = read_config_dict(pretrained_model_name_or_path, hub_options, COMBINED_PROCESSOR_FILE) or {}
        if "image_processor" not in values:
            values["image_processor"] = Sam2ImageProcessor.read_settings(pretrained_model_name_or_path, hub_options)
        own = {name: overrides.pop(name) for name in cls.__dataclass_fields__ if name in overrides}
        values["image_processor"] = Sam2ImageProcessor.from_dict(values["image_processor"], **overrides)
        return cls.from_dict(values, **own)

    @classmethod
    def get_attributes(cls) -> list[str]:
        """Return the names of the processors inside."""
        return [name for name in cls.__dataclass_fields__ if name.endswith("_processor")]

    def save_pretrained(self, save_directory: str | Path) -> list[Path]:
        """Write `processor_config.json`, and `preprocessor_config.json` with the settings for images."""
        return super().save_pretrained(save_directory) + self.image_processor.save_pretrained(save_directory)

    @property
    def model_input_names(self) -> list[str]:
        """Names of the outputs that every call returns."""
        return [*self.image_processor.model_input_names, "original_sizes"]

    def __call__(
        self,
        images: ImageInput | None = None,
        segmentation_maps: object = None,
        input_points: object = None,
        input_labels: object = None,
        input_boxes: object = None,
        original_sizes: Sequence[object] | Tensor | None = None,
        return_tensors: str | None = None,
        **image_options: Any,
    ) -> BatchFeature:
        """Prepare images and prompts; prompts are in pixels of the images.

        Args:
            images: One image or several; omit them to prompt images that are encoded already.
            segmentation_maps: For each image a mask [H, W], or one for each object [P, H, W]; returned as `labels`.
            input_points: x and y, nested as [image][object][point]. A level may be omitted where that is unambiguous.
            input_labels: One number per point, nested as [image][object][point]: 1 on the object, 0 off it.
            input_boxes: x1, y1, x2, y2, nested as [image][object].
            original_sizes: Height and width of each image, where `images` are omitted.
            return_tensors: "pt" or "np"; prompts are tensors in any case.
            image_options: Options of the image processor's `preprocess`.
        """
        if images is not None:
            data = self.image_processor(
                images, segmentation_maps=segmentation_maps, return_tensors=return_tensors, **image_options
            )
            sizes = size_list("original_sizes", data["original_sizes"], len(data["original_sizes"])) or []
            if original_sizes is not None and size_list("original_sizes", original_sizes, len(sizes)) != sizes:
                raise InputError(f"original_sizes: expected {sizes}, those of images. Omit it where images are passed.")
        elif original_sizes is None:
            raise InputError("images: expected images, or original_sizes of images encoded earlier, got neither.")
        elif segmentation_maps is not None or image_options:
            unused = ["segmentation_maps"] * (segmentation_maps is not None) + list(image_options)
            raise InputError(f"{', '.join(unused)}: expected images with them, got none. Add the images.")
        else:
            sizes = size_list("original_sizes", original_sizes, len(original_sizes)) or []
            data = BatchFeature({"original_sizes": sizes}, tensor_type=return_tensors)
        data.update(self.prompts(sizes, input_points, input_labels, input_boxes, return_tensors))
        return data

    def prompts(
        self,
        sizes_hw: list[SizeHW],
        input_points: object = None,
        input_labels: object = None,
        input_boxes: object = None,
        return_tensors: str | None = None,
        *,
        strict: bool = False,
        prefix: str = "input_",
    ) -> BatchFeature:
        """Scale prompts for images of these sizes to the model input and pad them to one shape.

        With `strict`, a point outside of its image is an error. The names of arguments in errors begin with `prefix`.
        """
        target, pad = as_hw(self.target_size), self.point_pad_value
        prompts: dict[str, Tensor] = {}
        if input_points is not None or input_labels is not None:
            prompts["points"], labels = read_points(
                input_points, input_labels, sizes_hw, target, pad=pad, strict=strict, prefix=prefix
            )
            if labels is not None:
                prompts["labels"] = labels
        if input_boxes is not None:
            prompts["boxes"] = read_boxes(input_boxes, sizes_hw, target, pad=pad, name=f"{prefix}boxes")
        counts = {name: value.shape[1] for name, value in prompts.items()}
        if len(set(counts.values())) > 1:
            found = " and ".join(f"{count} in {prefix}{name}" for name, count in counts.items())
            raise InputError(f"prompts: expected as many objects in each, got {found}. Give points and a box for each.")
        tensor_type = "np" if return_tensors == "np" else None
        return BatchFeature({f"input_{name}": value for name, value in prompts.items()}, tensor_type)


def _resize_logits(masks: object, size_hw: SizeHW) -> Tensor:
    """Resize mask logits [P, K, h, w] to [P, K, H, W], float32."""
    logits = torch.as_tensor(masks)
    if logits.ndim != 4:
        raise InputError(
            f"masks: expected [P, K, h, w] for each image, got {list(logits.shape)}. Pass pred_masks as it is."
        )
    return bilinear(logits.float(), size_hw)  # [P, K, H, W]
