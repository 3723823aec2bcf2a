"""`MaskClassificationImageProcessor`: the base of the image processors of MaskFormer and Mask2Former.

    images, maps ── resize ─ normalize ─ pad ──▶ pixel_values, pixel_mask, mask_labels, class_labels ──▶ model
    model outputs ── padding removed, masks resized once ──▶ semantic, instance or panoptic results in target pixels

How padding is removed: the processor's size rule gives the size of each image before padding, and the model's mask grid
(one cell for 4×4 input pixels) gives the size of the padded batch. If both agree, only the cells of the image are used;
see `MaskClassificationImageProcessor.mask_grids`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vitruvian.config import bounded, config_dataclass
from vitruvian.errors import ConfigError, InputError, check_count
from vitruvian.filesystem.json_files import JsonObject
from vitruvian.images import (
    ResizeMode,
    center_on_canvas,
    load_image,
    pad_bottom_right,
    resample_mode,
    resize,
    round_up_hw,
)
from vitruvian.images.data_format import in_data_format, is_channels_last, size_of
from vitruvian.images.label_maps import read_label_maps
from vitruvian.images.rle import Rle, encode_rles
from vitruvian.images.types import SizeHW
from vitruvian.images.upright_rgb import to_uint8
from vitruvian.models.mask_classification.label_masks import masks_from_map
from vitruvian.models.mask_classification.mask_grid import MaskGrid, cells_from_pixel_mask, cells_from_sizes
from vitruvian.models.mask_classification.outputs import QueryLogits, SegmentationResult
from vitruvian.models.mask_classification.segments import (
    SegmentInfo,
    Thresholds,
    instance_map,
    instance_masks,
    panoptic_segments,
    stack_masks,
)
from vitruvian.models.mask_classification.semantic import semantic_map, semantic_scores
from vitruvian.models.mask_classification.transformers_results import (
    InstanceKind,
    transformers_instances,
    transformers_panoptic,
    transformers_semantic,
)
from vitruvian.outputs import BatchFeature
from vitruvian.processor import (
    ImageInput,
    ImageProcessor,
    SegmentationImageOptions,
    SizeOption,
    as_list,
    as_pixels,
    height_width,
    scaled_hw,
    size_list,
    size_table,
    use_transformers_results,
)

InstanceTable = Mapping[int, int] | Sequence[Mapping[int, int]]
MaskFormat = Literal["float", "bool", "rle"]
Array = Tensor | npt.NDArray[np.generic]

_DEFAULT_LONGEST_EDGE = 1333


class MaskImageOptions(SegmentationImageOptions, total=False):
    """Options that a call of `MaskClassificationImageProcessor.preprocess` may override."""

    size_divisor: int | None
    ignore_index: int | None
    num_labels: int | None
    pad_size: SizeOption | None


@config_dataclass
class MaskClassificationImageProcessor(ImageProcessor):
    """Preprocesses images and segmentation maps, and turns mask queries into segmentations.

    `ImageProcessor` documents the other options.

    Args:
        size: ``{"shortest_edge", "longest_edge"}``, ``{"height", "width"}``, ``{"max_height", "max_width"}``, a number
            for the shortest edge, or (height, width).
        size_divisor: Height and width are rounded up to multiples of this; 0 leaves them.
        resample: PIL's number of the filter for images: 0 nearest, 2 bilinear, 3 bicubic. Maps use nearest neighbors.
        do_center_crop: Whether to crop images and maps to `crop_size` at the center, after resizing. Results are then
            those of the crop.
        crop_size: ``{"height", "width"}`` of the crop, or a number for a square.
        ignore_index: Number of the pixels in segmentation maps that belong to nothing, and the value of the padding in
            `mask_labels`.
        do_reduce_labels: Whether 0 in segmentation maps is background without a class, so that class n is label n - 1.
        num_labels: Number of labels; maps with labels beyond it give a warning.
        do_pad: Whether to pad the images of a batch, at the bottom and right, to one size.
        pad_size: ``{"height", "width"}`` to pad to; by default the largest height and width of the batch.
        max_size: Older spelling of ``size["longest_edge"]``.
    """

    model_input_names: ClassVar[list[str]] = ["pixel_values", "pixel_mask"]
    not_saved: ClassVar[frozenset[str]] = frozenset({"extra", "max_size"})
    attribute_map: ClassVar[dict[str, str]] = {  # names in older files
        "reduce_labels": "do_reduce_labels",
        "size_divisibility": "size_divisor",
        "_max_size": "max_size",
    }
    mask_stride: ClassVar[int] = 4  # input pixels for a cell of the mask grid, in each direction
    transformers_grid_hw: ClassVar[SizeHW | None] = None  # the size that the reference resizes masks to first

    size: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"shortest_edge": 800, "longest_edge": _DEFAULT_LONGEST_EDGE}
    )
    size_divisor: int = 32
    do_center_crop: bool | None = None
    crop_size: dict[str, int] | None = None
    ignore_index: int | None = bounded(None)
    do_reduce_labels: bool = False
    num_labels: int | None = None
    do_pad: bool = True
    pad_size: dict[str, int] | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        longest = _DEFAULT_LONGEST_EDGE if self.max_size is None else self.max_size
        size: SizeOption = self.size  # a number in older files
        if isinstance(size, int):
            self.size = {"shortest_edge": size, "longest_edge": longest}
        elif self.max_size is not None and isinstance(size, Mapping) and "shortest_edge" in size:
            self.size = {**size, "longest_edge": longest}
        if self.pad_size is not None:
            self.pad_size = size_table(self.pad_size)
        if self.crop_size is not None:
            self.crop_size = size_table(self.crop_size)
        self.max_size = None
        super().__post_init__()

    def validate(self) -> None:
        """Raise `ConfigError` for invalid sizes."""
        super().validate()
        rules = ({"shortest_edge"}, {"height", "width"}, {"max_height", "max_width"})
        if not any(rule <= set(self.size) for rule in rules) or min(self.size.values()) < 1:
            raise ConfigError(
                f"size: expected shortest_edge (and longest_edge), height and width, or max_height and max_width of at "
                f"least 1 each, got {self.size}."
            )
        if self.size_divisor < 0:
            raise ConfigError(f"size_divisor: expected 0 or more, got {self.size_divisor}.")
        if self.pad_size is not None:
            height_width(self.pad_size, "pad_size")
        if self.do_center_crop:
            height_width(self.crop_size or {}, "crop_size")

    # ---------------------------------------------------------------------------------------------- preprocessing

    def preprocess(
        self,
        images: ImageInput,
        segmentation_maps: object = None,
        instance_id_to_semantic_id: InstanceTable | None = None,
        *,
        default_to_square: bool = False,
        mask_format: MaskFormat = "float",
        return_tensors: str | None = None,
        data_format: str | None = None,
        input_data_format: str | None = None,
        device: str | torch.device | None = None,
        disable_grouping: bool | None = None,
        **options: Unpack[MaskImageOptions],
    ) -> BatchFeature:
        """Turn images, with or without segmentation maps, into model inputs; see `encode_inputs` for the result.

        Args:
            images: An image or a list of images of any sizes: PIL, numpy, torch, path, URL or bytes; values from 0 to
                255 unless `do_rescale` is off.
            segmentation_maps: A map for each image, of its size, with one number per pixel: classes, or objects.
            instance_id_to_semantic_id: The class of each object, one table for all images or one for each. Maps then
                have object numbers.
            default_to_square: Whether a number as `size` means a square instead of the shortest edge.
            mask_format: Format of `mask_labels`: "float" as in the reference, "bool" (a quarter of the memory) or "rle"
                (COCO's run lengths).
            return_tensors: "pt" or "np" to stack images; None for lists.
            data_format: "channels_first" (the default) or "channels_last", for `pixel_values`.
            input_data_format: The layout of arrays; inferred from the shape by default.
            device: Device to compute on.
            disable_grouping: Resize images one by one (True, the default on the CPU) or those of one size together.
            options: Options of the processor for this call.
        """
        size = options.get("size")
        if isinstance(size, int) and default_to_square:
            options["size"] = {"height": size, "width": size}
        used = self.with_options(**options)
        convert_rgb = bool(used.do_convert_rgb)
        arrays = [_as_rgb_array(image, input_data_format, convert_rgb, used.channels) for image in as_list(images)]
        pixels = as_pixels(arrays, input_data_format=input_data_format, device=device, channels=used.channels)
        maps = None if segmentation_maps is None else read_label_maps(segmentation_maps, [*map(size_of, pixels)])
        sizes = [used.scaled_hw(size_of(image)) for image in pixels]
        group = pixels[0].device.type != "cpu" if disable_grouping is None else not disable_grouping
        scaled = _resize_all(pixels, sizes, resample_mode(used.resample), group=group)
        values = [used.normalize_pixels(image) for image in _crop_center(scaled, used.crop_hw)]
        if maps is not None:
            resized = [resize(m[None], hw, mode="nearest-exact") for m, hw in zip(maps, sizes, strict=True)]
            maps = [plane[0] for plane in _crop_center(resized, used.crop_hw)]
        return used.encode_inputs(
            values,
            maps,
            instance_id_to_semantic_id,
            mask_format=mask_format,
            return_tensors=return_tensors,
            data_format=data_format,
            input_data_format="channels_first",
        )

    @property
    def crop_hw(self) -> SizeHW | None:
        """Size of the center crop, or None without one."""
        return height_width(self.crop_size or {}, "crop_size") if self.do_center_crop else None

    def resized_hw(self, source_hw: SizeHW) -> SizeHW:
        """Return the size of an image of `source_hw` before padding."""
        return self.crop_hw or self.scaled_hw(source_hw)

    def scaled_hw(self, source_hw: SizeHW) -> SizeHW:
        """Return the size to which an image of `source_hw` is resized."""
        if not self.do_resize:
            return source_hw
        size_hw = scaled_hw(source_hw, self.size)
        return round_up_hw(size_hw, self.size_divisor) if self.size_divisor else size_hw

    def encode_inputs(
        self,
        pixel_values_list: Sequence[Array],
        segmentation_maps: object = None,
        instance_id_to_semantic_id: InstanceTable | None = None,
        ignore_index: int | None = None,
        do_reduce_labels: bool | None = None,
        return_tensors: str | None = None,
        input_data_format: str | None = None,
        pad_size: SizeOption | None = None,
        *,
        mask_format: MaskFormat = "float",
        data_format: str | None = None,
    ) -> BatchFeature:
        """Pad preprocessed images [C, H, W] to one size and split their maps into masks.

        Returns `pixel_values` [B, C, H, W] and `pixel_mask` [B, H, W] (1 for the image, 0 in the padding), and with
        maps two lists: `mask_labels` [N, H, W] and `class_labels` [N] of each image. A map ``[[2, 6, 7, 9]]`` gives the
        masks ``[[1, 0, 0, 0]], [[0, 1, 0, 0]], …`` and the classes ``[2, 6, 7, 9]``; an empty map gives none. Masks are
        float32 as in the reference: 1 inside, 0 outside, and `ignore_index`, if set, in the padding. In the formats
        bool and RLE the padding is 0.
        """
        options = self.with_options(ignore_index=ignore_index, do_reduce_labels=do_reduce_labels, pad_size=pad_size)
        images = [_channels_first(image, input_data_format) for image in as_list(pixel_values_list)]
        batch = options.pad(images, return_tensors=return_tensors, input_data_format="channels_first")
        batch["pixel_values"] = in_data_format(batch["pixel_values"], data_format)
        if segmentation_maps is None:
            return batch
        sizes = [size_of(image) for image in images]
        maps = [labels.long() for labels in read_label_maps(segmentation_maps, sizes)]
        padded_hw = options.padded_hw(sizes)
        tables = _tables(instance_id_to_semantic_id, len(maps))
        batch["mask_labels"], batch["class_labels"] = [], []
        for image, labels, table in zip(images, maps, tables, strict=True):
            masks, classes = masks_from_map(
                labels.to(image.device),
                instance_id_to_semantic_id=table,
                ignore_index=options.ignore_index,
                do_reduce_labels=options.do_reduce_labels,
                num_labels=options.num_labels,
            )
            padded = _pad_masks(masks, padded_hw or size_of(image), options.ignore_index, mask_format)
            numpy = return_tensors == "np"
            batch["mask_labels"].append(padded.cpu().numpy() if numpy and isinstance(padded, Tensor) else padded)
            batch["class_labels"].append(classes.cpu().numpy() if numpy else classes)
        return batch

    def pad(
        self,
        images: Sequence[Array],
        *,
        constant_values: float = 0.0,
        pad_size: SizeOption | None = None,
        return_pixel_mask: bool = True,
        return_tensors: str | None = None,
        input_data_format: str | None = None,
    ) -> BatchFeature:
        """Pad images [C, H, W] with a constant to `pad_size`, or to the largest height and width among them.

        Returns `pixel_values` and, with `return_pixel_mask`, `pixel_mask`: 1 for the image and 0 in the padding.
        """
        options = self.with_options(pad_size=pad_size)
        planes = [_channels_first(image, input_data_format) for image in as_list(images)]
        padded_hw = options.padded_hw([size_of(image) for image in planes])
        data: JsonObject = {"pixel_values": planes}
        if padded_hw is not None:
            data["pixel_values"] = [pad_bottom_right(image, padded_hw, constant_values) for image in planes]
        if return_pixel_mask:
            ones = [image.new_ones((1, *size_of(image)), dtype=torch.int64) for image in planes]
            data["pixel_mask"] = [pad_bottom_right(mask, padded_hw or size_of(mask))[0] for mask in ones]  # [H, W] each
        return BatchFeature(data, tensor_type=return_tensors)

    def padded_hw(self, sizes: Sequence[SizeHW]) -> SizeHW | None:
        """Return the size to which images of `sizes` are padded, or None where `do_pad` is off."""
        if not self.do_pad:
            return None
        largest = max(height for height, _ in sizes), max(width for _, width in sizes)
        if self.pad_size is None:
            return largest
        height, width = height_width(self.pad_size, "pad_size")
        if height < largest[0] or width < largest[1]:
            raise InputError(
                f"pad_size: expected at least the largest image's {largest[0]}×{largest[1]}, got {height}×{width}. "
                "Make it larger, or the images smaller with size."
            )
        return height, width

    # --------------------------------------------------------------------------------------------- post-processing

    @torch.no_grad()
    def post_process_semantic_segmentation(
        self,
        outputs: object,
        target_sizes: object = None,
        *,
        return_segmentation_scores: bool = False,
        source_sizes: object = None,
        pixel_mask: Tensor | None = None,
        legacy: bool | None = None,
    ) -> list[Any]:
        """Return the class of each pixel of each image, int64 [H, W].

        Args:
            outputs: Output of the model.
            target_sizes: (height, width) of each result, usually the size of the image; by default that of the mask
                grid.
            return_segmentation_scores: Return dicts of `segmentation` and `segmentation_scores` [K, H, W] instead.
            source_sizes: Sizes of the images, where results have other sizes; see `mask_grids`.
            pixel_mask: The processor's `pixel_mask`, the safest way to remove padding; see `mask_grids`.
            legacy: Return the results of the reference, with padding and fixed grid; by default the setting of
                `vitruvian.set_legacy_results`.
        """
        queries = QueryLogits.from_outputs(outputs)
        if use_transformers_results(legacy):
            results = [transformers_semantic(**inputs) for inputs in self._transformers_inputs(queries, target_sizes)]
            return results if return_segmentation_scores else [result.segmentation for result in results]
        grids = self.mask_grids(queries, target_sizes, source_sizes, pixel_mask)
        if not return_segmentation_scores:
            return [semantic_map(classes, grid) for classes, grid in zip(queries.classes, grids, strict=True)]
        scores = [semantic_scores(classes, grid) for classes, grid in zip(queries.classes, grids, strict=True)]
        return [SegmentationResult(segmentation=image.argmax(0), segmentation_scores=image) for image in scores]

    @torch.no_grad()
    def post_process_instance_segmentation(
        self,
        outputs: object,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        target_sizes: object = None,
        return_coco_annotation: bool = False,
        return_binary_maps: bool = False,
        *,
        source_sizes: object = None,
        pixel_mask: Tensor | None = None,
        legacy: bool | None = None,
    ) -> list[SegmentationResult]:
        """Return the objects of each image, best first.

        `segmentation` is an int32 map [H, W] of ids from 0, -1 where there is no object; or, with
        `return_binary_maps`, bool masks [N, H, W]; or, with `return_coco_annotation`, a list of COCO's compressed RLE.
        Masks and RLE may overlap and come in the order of `segments_info`, a list of dicts with `id`, `label_id`,
        `score` (class score × mean mask probability) and `was_fused`.

        Args:
            outputs: Output of the model.
            threshold: Lowest score of an object.
            mask_threshold: Lowest probability of a pixel in a mask.
            overlap_mask_area_threshold: Share of its mask that an object must win: in a map against all other objects,
                where the most probable one wins a pixel; in masks and RLE against better objects of the same label.
            return_coco_annotation: Return RLE.
            return_binary_maps: Return bool masks.
            target_sizes, source_sizes, pixel_mask, legacy: See `post_process_semantic_segmentation`; the reference
                ignores two of the thresholds.
        """
        if return_coco_annotation and return_binary_maps:
            raise InputError("return_coco_annotation, return_binary_maps: expected at most one of them, got both.")
        queries = QueryLogits.from_outputs(outputs)
        if use_transformers_results(legacy):
            kind: InstanceKind = "rle" if return_coco_annotation else "masks" if return_binary_maps else "map"
            inputs_of_images = self._transformers_inputs(queries, target_sizes)
            return [transformers_instances(kind=kind, threshold=threshold, **inputs) for inputs in inputs_of_images]
        grids = self.mask_grids(queries, target_sizes, source_sizes, pixel_mask)
        thresholds = Thresholds(threshold, mask_threshold, overlap_mask_area_threshold)
        results = []
        for classes, grid in zip(queries.classes, grids, strict=True):
            segmentation: object
            if not return_coco_annotation and not return_binary_maps:
                segmentation, segments = instance_map(classes, grid, thresholds)
            else:
                masks, segments = instance_masks(classes, grid, thresholds)
                segmentation = (
                    [mask.rle(grid.size_hw) for mask in masks]
                    if return_coco_annotation
                    else stack_masks(masks, grid.size_hw, grid.logits.device)
                )
            results.append(_with_segments(segmentation, segments))
        return results

    @torch.no_grad()
    def post_process_panoptic_segmentation(
        self,
        outputs: object,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        label_ids_to_fuse: Collection[int] | None = None,
        target_sizes: object = None,
        *,
        source_sizes: object = None,
        pixel_mask: Tensor | None = None,
        legacy: bool | None = None,
    ) -> list[SegmentationResult]:
        """Return one map of all objects and regions of each image.

        `segmentation` is an int32 map [H, W] of ids from 1, 0 where there is no segment; `segments_info` a list of
        dicts with `id`, `label_id`, `score` and `was_fused`, one for each id.

        Args:
            outputs: Output of the model.
            threshold: A query's class score must be above it.
            mask_threshold: Lowest mask probability of a pixel in a segment.
            overlap_mask_area_threshold: Share of its mask that a query must win against the others.
            label_ids_to_fuse: Labels with at most one segment, such as sky; by default none.
            target_sizes, source_sizes, pixel_mask, legacy: See `post_process_semantic_segmentation`.
        """
        queries = QueryLogits.from_outputs(outputs)
        thresholds = Thresholds(threshold, mask_threshold, overlap_mask_area_threshold)
        fuse = frozenset(label_ids_to_fuse or ())
        if use_transformers_results(legacy):
            inputs_of_images = self._transformers_inputs(queries, target_sizes)
            return [
                transformers_panoptic(**inputs, thresholds=thresholds, label_ids_to_fuse=fuse)
                for inputs in inputs_of_images
            ]
        grids = self.mask_grids(queries, target_sizes, source_sizes, pixel_mask)
        return [
            _with_segments(*panoptic_segments(classes, grid, thresholds, fuse))
            for classes, grid in zip(queries.classes, grids, strict=True)
        ]

    def _transformers_inputs(self, queries: QueryLogits, target_sizes: object) -> list[JsonObject]:
        """Return the arguments of a `transformers_*` function for each image."""
        sizes: Sequence[SizeHW | None] = size_list("target_sizes", target_sizes, len(queries)) or [None] * len(queries)
        return [
            {
                "class_logits": classes,
                "mask_logits": masks,
                "grid_hw": self.transformers_grid_hw,
                "target_hw": target_hw,
            }
            for classes, masks, target_hw in zip(queries.classes, queries.masks, sizes, strict=True)
        ]

    def mask_grids(
        self, queries: QueryLogits, target_sizes: object, source_sizes: object = None, pixel_mask: Tensor | None = None
    ) -> list[MaskGrid]:
        """Map the target pixels of each image to the part of the mask grid that is not padding.

        That part comes from `pixel_mask` if present. Otherwise the processor's size rule, applied to `source_sizes` or
        else to `target_sizes`, gives the size of each image before padding; the largest of them (or `pad_size`) must
        match the mask grid, at 4 pixels a cell. Source sizes that do not match are an error. Target sizes that do not
        match are arbitrary sizes, and the whole grid is the image.
        """
        count, grid_hw = len(queries), size_of(queries.masks)
        targets = size_list("target_sizes", target_sizes, count)
        sources = size_list("source_sizes", source_sizes, count)
        contents: list[tuple[float, float]] | None = None
        if pixel_mask is not None:
            contents = cells_from_pixel_mask(pixel_mask, count, grid_hw, self.mask_stride)
        elif sources is not None or targets is not None:
            resized = [self.resized_hw(size) for size in sources or targets or []]
            pad_hw = None if self.pad_size is None or not self.do_pad else height_width(self.pad_size, "pad_size")
            contents = cells_from_sizes(resized, pad_hw, grid_hw, self.mask_stride, must_match=sources is not None)
        return [
            MaskGrid.make(queries.masks[i], targets[i] if targets else None, contents[i] if contents else None)
            for i in range(count)
        ]


def _with_segments(segmentation: object, segments: Sequence[SegmentInfo]) -> SegmentationResult:
    """Return the result of an image."""
    return SegmentationResult(segmentation=segmentation, segments_info=[segment.info() for segment in segments])


# ---------------------------------------------------------------------------------------------------------- inputs


def _as_rgb_array(image: object, input_data_format: str | None, convert_rgb: bool, channels: int) -> object:
    """Return uint8 for wider integers (scaled by their white level) and for RGBA (blended over white).

    Other images are returned unchanged.
    """
    if not isinstance(image, (np.ndarray, Tensor)) or channels not in (1, 3):
        return image
    floating = image.is_floating_point() if isinstance(image, Tensor) else image.dtype.kind == "f"
    device = image.device if isinstance(image, Tensor) else None
    if image.ndim == 3 and 4 in (image.shape[0], image.shape[-1]) and 3 not in (image.shape[0], image.shape[-1]):
        first = input_data_format == "channels_first" or (input_data_format is None and image.shape[-1] != 4)
        if image.shape[0 if first else -1] == 4 and not (convert_rgb and not floating):
            raise InputError(
                f"images: expected 1 or 3 channels, got the shape {list(image.shape)}. "
                "Pass do_convert_rgb=True to blend integers with alpha over white, or drop the fourth channel."
            )
        values = image.cpu().numpy() if isinstance(image, Tensor) else image
        rgb = np.array(load_image(np.moveaxis(values, 0, -1) if first else values))  # [H, W, 3]
        return torch.from_numpy(np.moveaxis(rgb, -1, 0) if first else rgb).to(device)
    if floating or image.dtype in (torch.uint8, np.uint8):
        return image
    values = image.cpu().numpy() if isinstance(image, Tensor) else image
    return torch.from_numpy(to_uint8(values, subject="images")).to(device)


def _resize_all(images: Sequence[Tensor], sizes: Sequence[SizeHW], mode: ResizeMode, *, group: bool) -> list[Tensor]:
    """Resize images [C, H, W] to a size each; with `group`, those of one shape and size in one call."""
    if not group:
        return [resize(image, size, mode=mode) for image, size in zip(images, sizes, strict=True)]
    groups: dict[tuple[torch.Size, torch.dtype, torch.device, SizeHW], list[int]] = {}
    for index, (image, size) in enumerate(zip(images, sizes, strict=True)):
        groups.setdefault((image.shape, image.dtype, image.device, size), []).append(index)
    resized: dict[int, Tensor] = {}
    for (*_, size), indices in groups.items():
        resized |= zip(indices, resize(torch.stack([images[i] for i in indices]), size, mode=mode), strict=True)
    return [resized[index] for index in range(len(images))]


def _crop_center(images: Sequence[Tensor], crop_hw: SizeHW | None) -> list[Tensor]:
    """Crop images [..., H, W] at the center; without a size, return them."""
    if crop_hw is None:
        return list(images)
    for image in images:
        if image.shape[-2] < crop_hw[0] or image.shape[-1] < crop_hw[1]:
            raise InputError(
                f"crop_size: expected at most the resized image's {image.shape[-2]}×{image.shape[-1]}, "
                f"got {crop_hw[0]}×{crop_hw[1]}. Make it smaller, or the images larger with size."
            )
    return [center_on_canvas(image, crop_hw) for image in images]


def _pad_masks(
    masks: Tensor, padded_hw: SizeHW, ignore_index: int | None, mask_format: MaskFormat
) -> Tensor | list[Rle]:
    """Pad bool masks [N, H, W] and convert them to a format."""
    if mask_format not in ("float", "bool", "rle"):
        raise InputError(f"mask_format: expected float, bool or rle, got {mask_format!r}.")
    value = 0.0
    if mask_format == "float":
        masks, value = masks.float(), float(ignore_index or 0)
    if len(masks):
        masks = pad_bottom_right(masks, padded_hw, value)  # [N, H, W]
    else:
        masks = masks.new_zeros((0, *padded_hw))
    return encode_rles(masks, compress=True) if mask_format == "rle" else masks


def _channels_first(image: Array, input_data_format: str | None) -> Tensor:
    """Return a preprocessed image, numpy or torch, as [C, H, W]."""
    pixels = torch.as_tensor(image)
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise InputError(f"pixel values: expected the shape [C, H, W], got {list(pixels.shape)}.")
    return pixels.permute(2, 0, 1) if is_channels_last(pixels, input_data_format or "channels_first") else pixels


def _tables(table: InstanceTable | None, count: int) -> list[Mapping[int, int] | None]:
    """Return the table of each of `count` images, from one table for all, one for each, or none."""
    if table is None or isinstance(table, Mapping):
        return [table] * count
    check_count("instance_id_to_semantic_id", table, count)
    return list(table)
