"""`MaskProcessor`: what the image processors of MaskFormer and Mask2Former share.

    pictures, maps ── resize ─ normalise ─ pad ──▶ pixel_values, pixel_mask, mask_labels, class_labels ──▶ model
    model outputs ── padding left out, masks resized once ──▶ semantic, instance or panoptic results in target pixels

How padding is found again: the processor's own size rule tells how large each picture was before padding, and the
model's mask grid (one cell for 4×4 input pixels) how large the padded batch was. If both fit together, only the cells
of the picture are used; see `MaskProcessor.mask_grids`. The functions behind the results live in `mask_results`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from vitruvian.config import settings
from vitruvian.errors import ConfigError, InputError
from vitruvian.images import fit_inside_hw, pad_bottom_right, resample_mode, resize, round_up_hw, shortest_edge_hw
from vitruvian.images.mask_grid import MaskGrid, SizeHW
from vitruvian.mask_inputs import (
    InstanceTable,
    MaskFormat,
    crop_center,
    move_channels_last,
    planes,
    read_maps,
    read_pictures,
    resize_all,
    size_of,
    split_maps,
    tables_for,
)
from vitruvian.mask_results import (
    Queries,
    SegmentationResult,
    cells_from_pixel_mask,
    cells_from_sizes,
    instance_result,
    legacy_instance_result,
    legacy_panoptic_result,
    legacy_semantic_result,
    panoptic_result,
    read_queries,
    semantic_result,
)
from vitruvian.outputs import BatchFeature
from vitruvian.processor import ImageInput, ImageProcessor, as_list, height_width, size_list, size_table

DEFAULT_LONGEST_EDGE = 1333


@settings
class MaskProcessor(ImageProcessor):
    """Pictures and segmentation maps → model inputs; mask queries → segmentations.

    Args:
        do_resize: Whether to resize.
        size: ``{"shortest_edge", "longest_edge"}``, ``{"height", "width"}``, ``{"max_height", "max_width"}``, a number
            for the shortest edge, or (height, width).
        size_divisor: Height and width are rounded up to multiples of this; 0 leaves them.
        resample: PIL's number of the filter for pictures: 0 nearest, 2 bilinear, 3 bicubic. Maps are never smoothed.
        do_center_crop: Whether to cut `crop_size` out of the middle after resizing, of pictures and maps alike. Results
            then are those of the cut.
        crop_size: ``{"height", "width"}`` of that cut, or a number for a square.
        do_rescale: Whether to multiply pixel values by `rescale_factor`.
        rescale_factor: By default 1/255.
        do_normalize: Whether to subtract `image_mean` and divide by `image_std`.
        image_mean: Mean of each channel.
        image_std: Standard deviation of each channel.
        ignore_index: Number of the pixels in segmentation maps that belong to nothing, and the value of the padding in
            `mask_labels`.
        do_reduce_labels: Whether 0 in segmentation maps is background without a class, so that class n is label n - 1.
        num_labels: Number of labels; maps with labels beyond it are refused.
        do_pad: Whether to pad the pictures of a batch, below and to the right, to one size.
        pad_size: ``{"height", "width"}`` to pad to; by default the largest height and width of the batch.
        max_size: Older spelling of ``size["longest_edge"]``.
        reduce_labels: Older spelling of `do_reduce_labels`.
    """

    model_input_names: ClassVar[list[str]] = ["pixel_values", "pixel_mask"]
    not_saved: ClassVar[frozenset[str]] = frozenset({"extra", "max_size", "reduce_labels"})
    mask_stride: ClassVar[int] = 4  # input pixels a cell of the mask grid, each way
    legacy_grid_hw: ClassVar[SizeHW | None] = None  # where the reference sends masks first

    size: dict[str, int] = dataclasses.field(
        default_factory=lambda: {"shortest_edge": 800, "longest_edge": DEFAULT_LONGEST_EDGE}
    )
    size_divisor: int = 32
    do_center_crop: bool | None = None
    crop_size: dict[str, int] | None = None
    ignore_index: int | None = None
    do_reduce_labels: bool = False
    num_labels: int | None = None
    do_pad: bool = True
    pad_size: dict[str, int] | None = None
    max_size: int | None = None
    reduce_labels: bool | None = None

    def __post_init__(self) -> None:
        longest = DEFAULT_LONGEST_EDGE if self.max_size is None else self.max_size
        size: Any = self.size  # older files and callers give a number
        if isinstance(size, int):
            self.size = {"shortest_edge": size, "longest_edge": longest}
        elif self.max_size is not None and isinstance(size, Mapping) and "shortest_edge" in size:
            self.size = {**size, "longest_edge": longest}
        if self.reduce_labels is not None:
            self.do_reduce_labels = self.reduce_labels
        if self.pad_size is not None:
            self.pad_size = size_table(self.pad_size)
        if self.crop_size is not None:
            self.crop_size = size_table(self.crop_size)
        self.max_size = self.reduce_labels = None
        super().__post_init__()

    def validate(self) -> None:
        """Raise `ConfigError` for sizes that cannot be used."""
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

    @classmethod
    def upgrade(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Read the spellings of older files too."""
        values = super().upgrade(values)
        for older, name in (("size_divisibility", "size_divisor"), ("_max_size", "max_size")):
            if older in values:
                values.setdefault(name, values.pop(older))
        return values

    # ------------------------------------------------------------------------------------------------ pictures in

    def preprocess(
        self,
        images: ImageInput,
        segmentation_maps: Any = None,
        instance_id_to_semantic_id: InstanceTable | None = None,
        *,
        do_resize: bool | None = None,
        size: Any = None,
        default_to_square: bool = False,
        size_divisor: int | None = None,
        resample: int | None = None,
        do_center_crop: bool | None = None,
        crop_size: Any = None,
        do_rescale: bool | None = None,
        rescale_factor: float | None = None,
        do_normalize: bool | None = None,
        image_mean: float | list[float] | None = None,
        image_std: float | list[float] | None = None,
        ignore_index: int | None = None,
        do_reduce_labels: bool | None = None,
        num_labels: int | None = None,
        do_pad: bool | None = None,
        pad_size: Any = None,
        do_convert_rgb: bool | None = None,
        mask_format: MaskFormat = "float",
        return_tensors: str | None = None,
        data_format: str = "channels_first",
        input_data_format: str | None = None,
        device: str | torch.device | None = None,
        disable_grouping: bool | None = None,
    ) -> BatchFeature:
        """Turn pictures, with or without segmentation maps, into model inputs; see `encode_inputs` for what comes out.

        Options left out are the processor's own.

        Args:
            images: A picture or a list of pictures of any sizes: PIL, numpy, torch, path, URL or bytes; values from 0
                to 255 unless `do_rescale` is off.
            segmentation_maps: For each picture a map of its size with one number a pixel: classes, or objects.
            instance_id_to_semantic_id: The class of each object, one table for all or one a picture. With it maps hold
                object numbers.
            default_to_square: Whether a number given as `size` means a square instead of the shortest edge.
            mask_format: What `mask_labels` are: "float" as the reference has them, "bool" (a quarter of the memory) or
                "rle" (COCO's run lengths).
            return_tensors: "pt" or "np" to stack pictures; None for lists.
            data_format: "channels_first" or "channels_last", for `pixel_values`.
            input_data_format: The layout of pictures given as arrays; worked out from the shape if left out.
            device: Where to compute.
            disable_grouping: Resize pictures one by one (True, by default on the CPU) or those of one size together.
        """
        if isinstance(size, int) and default_to_square:
            size = {"height": size, "width": size}
        options = self.with_options(
            do_resize=do_resize,
            size=size,
            size_divisor=size_divisor,
            resample=resample,
            do_center_crop=do_center_crop,
            crop_size=crop_size,
            do_rescale=do_rescale,
            rescale_factor=rescale_factor,
            do_normalize=do_normalize,
            image_mean=image_mean,
            image_std=image_std,
            ignore_index=ignore_index,
            do_reduce_labels=do_reduce_labels,
            num_labels=num_labels,
            do_pad=do_pad,
            pad_size=pad_size,
            do_convert_rgb=do_convert_rgb,
        )
        convert_rgb = bool(options.do_convert_rgb)
        pixels = read_pictures(images, input_data_format=input_data_format, device=device, convert_rgb=convert_rgb)
        maps = read_maps(segmentation_maps, pixels)
        sizes = [options.scaled_hw(size_of(picture)) for picture in pixels]
        together = pixels[0].device.type != "cpu" if disable_grouping is None else not disable_grouping
        scaled = resize_all(pixels, sizes, resample_mode(options.resample), together=together)
        values = [options.finish_pixels(picture) for picture in crop_center(scaled, options.crop_hw)]
        if maps is not None:
            planes_of_maps = [resize(m[None], hw, mode="nearest-exact") for m, hw in zip(maps, sizes, strict=True)]
            maps = [plane[0] for plane in crop_center(planes_of_maps, options.crop_hw)]
        return options.encode_inputs(
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
        """Size of the cut out of the middle, or None where pictures stay whole."""
        return height_width(self.crop_size or {}, "crop_size") if self.do_center_crop else None

    def resized_hw(self, source_hw: SizeHW) -> SizeHW:
        """Return the size that a picture of `source_hw` has before padding."""
        return self.crop_hw or self.scaled_hw(source_hw)

    def scaled_hw(self, source_hw: SizeHW) -> SizeHW:
        """Return the size that a picture of `source_hw` is resized to."""
        if not self.do_resize:
            return source_hw
        size = self.size
        if "shortest_edge" in size:
            found = shortest_edge_hw(source_hw, size["shortest_edge"], size.get("longest_edge"))
        elif "max_height" in size:
            found = fit_inside_hw(source_hw, (size["max_height"], size["max_width"]))
        else:
            found = (size["height"], size["width"])
        return round_up_hw(found, self.size_divisor) if self.size_divisor else found

    def encode_inputs(
        self,
        pixel_values_list: Sequence[Any],
        segmentation_maps: Any = None,
        instance_id_to_semantic_id: InstanceTable | None = None,
        ignore_index: int | None = None,
        do_reduce_labels: bool | None = None,
        return_tensors: str | None = None,
        input_data_format: str | None = None,
        pad_size: Any = None,
        *,
        mask_format: MaskFormat = "float",
        data_format: str = "channels_first",
    ) -> BatchFeature:
        """Pad finished pictures [C, H, W] to one size and split their maps into masks.

        Returns `pixel_values` [B, C, H, W] and `pixel_mask` [B, H, W] (1 where the picture is, 0 in the padding), and
        with maps two lists: `mask_labels`, for each picture [N, H, W], and `class_labels`, for each picture [N]. A map
        ``[[2, 6, 7, 9]]`` gives the masks ``[[1, 0, 0, 0]], [[0, 1, 0, 0]], …`` and the classes ``[2, 6, 7, 9]``; an
        empty one gives none. Masks are float32 as in the reference: 1 inside, 0 outside, and `ignore_index` in the
        padding where it is set; `mask_format` can make them bool or RLE, whose padding is outside.
        """
        options = self.with_options(ignore_index=ignore_index, do_reduce_labels=do_reduce_labels, pad_size=pad_size)
        pictures = [planes(image, input_data_format) for image in as_list(pixel_values_list)]
        maps = read_maps(segmentation_maps, pictures)
        batch = options.pad(pictures, return_tensors=return_tensors, input_data_format="channels_first")
        if data_format not in ("channels_first", "channels_last"):
            raise InputError(f"data_format: expected channels_first or channels_last, got {data_format!r}.")
        if data_format == "channels_last":
            batch["pixel_values"] = move_channels_last(batch["pixel_values"])
        if maps is None:
            return batch
        batch["mask_labels"], batch["class_labels"] = masks, classes = split_maps(
            maps,
            pictures,
            tables_for(instance_id_to_semantic_id, len(maps)),
            padded_hw=options.padded_hw([size_of(picture) for picture in pictures]),
            mask_format=mask_format,
            ignore_index=options.ignore_index,
            do_reduce_labels=options.do_reduce_labels,
            num_labels=options.num_labels,
        )
        if return_tensors == "np":
            batch["class_labels"] = [label.cpu().numpy() for label in classes]
            batch["mask_labels"] = [m.cpu().numpy() if isinstance(m, Tensor) else m for m in masks]
        return batch

    def pad(
        self,
        images: Sequence[Any],
        *,
        constant_values: float = 0.0,
        pad_size: Any = None,
        return_pixel_mask: bool = True,
        return_tensors: str | None = None,
        input_data_format: str | None = None,
    ) -> BatchFeature:
        """Pad pictures [C, H, W] with a constant to `pad_size`, or the largest height and width among them.

        Returns `pixel_values` and, unless unwanted, `pixel_mask`, 1 where the picture is and 0 in the padding.
        """
        options = self.with_options(pad_size=pad_size)
        pictures = [planes(image, input_data_format) for image in as_list(images)]
        padded_hw = options.padded_hw([size_of(picture) for picture in pictures])
        data: dict[str, Any] = {"pixel_values": pictures}
        if padded_hw is not None:
            data["pixel_values"] = [pad_bottom_right(picture, padded_hw, constant_values) for picture in pictures]
        if return_pixel_mask:
            ones = [p.new_ones((1, *size_of(p)), dtype=torch.int64) for p in pictures]
            data["pixel_mask"] = [pad_bottom_right(one, padded_hw or size_of(one))[0] for one in ones]  # [H, W] each
        return BatchFeature(data, tensor_type=return_tensors)

    def padded_hw(self, sizes: Sequence[SizeHW]) -> SizeHW | None:
        """Return the size that pictures of `sizes` are padded to, or None where `do_pad` is off."""
        if not self.do_pad:
            return None
        largest = max(height for height, _ in sizes), max(width for _, width in sizes)
        if self.pad_size is None:
            return largest
        height, width = height_width(self.pad_size, "pad_size")
        if height < largest[0] or width < largest[1]:
            raise InputError(
                f"pad_size: expected at least the largest picture's {largest[0]}×{largest[1]}, got {height}×{width}. "
                "Make it larger, or the pictures smaller with size."
            )
        return height, width

    # ------------------------------------------------------------------------------------------------ results out

    @torch.no_grad()
    def post_process_semantic_segmentation(
        self,
        outputs: Any,
        target_sizes: Any = None,
        *,
        return_segmentation_scores: bool = False,
        source_sizes: Any = None,
        pixel_mask: Tensor | None = None,
        legacy: bool = False,
    ) -> list[Any]:
        """Return for each picture the class of each pixel, int64 [H, W].

        Args:
            outputs: What the model returned.
            target_sizes: (height, width) of each result, as a rule the size of the picture; the mask grid if left out.
            return_segmentation_scores: Return dicts of `segmentation` and `segmentation_scores` [K, H, W] instead.
            source_sizes: Sizes of the pictures, where results are wanted in other sizes; see `mask_grids`.
            pixel_mask: What the processor returned under this name: the surest way to tell padding; see `mask_grids`.
            legacy: Reproduce the reference, padding and fixed grid included.
        """
        queries = read_queries(outputs)
        if legacy:
            targets = size_list("target_sizes", target_sizes, len(queries))
            return legacy_semantic_result(queries, targets, self.legacy_grid_hw, return_segmentation_scores)
        grids = self.mask_grids(queries, target_sizes, source_sizes, pixel_mask)
        return [semantic_result(c, g, return_segmentation_scores) for c, g in zip(queries.classes, grids, strict=True)]

    @torch.no_grad()
    def post_process_instance_segmentation(
        self,
        outputs: Any,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        target_sizes: Any = None,
        return_coco_annotation: bool = False,
        return_binary_maps: bool = False,
        *,
        source_sizes: Any = None,
        pixel_mask: Tensor | None = None,
        legacy: bool = False,
    ) -> list[SegmentationResult]:
        """Return for each picture the objects that were found, best first.

        `segmentation` is an int32 map [H, W] of ids from 0, -1 where there is no object; or, with
        `return_binary_maps`, bool masks [N, H, W]; or, with `return_coco_annotation`, a list of COCO's compressed RLE.
        Masks and RLE may overlap and come in the order of `segments_info`, a list of dicts with `id`, `label_id`,
        `score` (class score × mean mask probability) and `was_fused`.

        Args:
            outputs: What the model returned.
            threshold: Lowest score of an object.
            mask_threshold: Lowest probability of a pixel in a mask.
            overlap_mask_area_threshold: Share of its mask that an object must keep: in a map against all other objects,
                pixel by pixel the surest one winning; among masks and RLE against better objects of the same label.
            target_sizes: (height, width) of each result, as a rule the size of the picture; the mask grid if left out.
            return_coco_annotation: Return RLE.
            return_binary_maps: Return bool masks.
            source_sizes: Sizes of the pictures, where results are wanted in other sizes; see `mask_grids`.
            pixel_mask: What the processor returned under this name: the surest way to tell padding; see `mask_grids`.
            legacy: Reproduce the reference, which ignores two of the thresholds.
        """
        if return_coco_annotation and return_binary_maps:
            raise InputError("return_coco_annotation, return_binary_maps: expected at most one of them, got both.")
        kind: Literal["map", "rle", "masks"] = (
            "rle" if return_coco_annotation else "masks" if return_binary_maps else "map"
        )
        queries = read_queries(outputs)
        if legacy:
            targets = size_list("target_sizes", target_sizes, len(queries))
            return legacy_instance_result(queries, targets, self.legacy_grid_hw, threshold, kind)
        return [
            instance_result(
                classes,
                grid,
                kind,
                threshold=threshold,
                mask_threshold=mask_threshold,
                overlap_mask_area_threshold=overlap_mask_area_threshold,
            )
            for classes, grid in zip(
                queries.classes, self.mask_grids(queries, target_sizes, source_sizes, pixel_mask), strict=True
            )
        ]

    @torch.no_grad()
    def post_process_panoptic_segmentation(
        self,
        outputs: Any,
        threshold: float = 0.5,
        mask_threshold: float = 0.5,
        overlap_mask_area_threshold: float = 0.8,
        label_ids_to_fuse: Collection[int] | None = None,
        target_sizes: Any = None,
        *,
        source_sizes: Any = None,
        pixel_mask: Tensor | None = None,
        legacy: bool = False,
    ) -> list[SegmentationResult]:
        """Return for each picture one map of all objects and regions.

        `segmentation` is an int32 map [H, W] of ids from 1, 0 where there is no segment; `segments_info` a list of
        dicts with `id`, `label_id`, `score` and `was_fused`, one for each id.

        Args:
            outputs: What the model returned.
            threshold: A query's class score must be above it.
            mask_threshold: Lowest mask probability of a pixel in a segment.
            overlap_mask_area_threshold: Share of its mask that a query must keep against the others.
            label_ids_to_fuse: Labels of which there is at most one segment, such as sky; None fuses none.
            target_sizes: (height, width) of each result, as a rule the size of the picture; the mask grid if left out.
            source_sizes: Sizes of the pictures, where results are wanted in other sizes; see `mask_grids`.
            pixel_mask: What the processor returned under this name: the surest way to tell padding; see `mask_grids`.
            legacy: Reproduce the reference, padding and fixed grid included.
        """
        queries = read_queries(outputs)
        options: dict[str, Any] = {
            "threshold": threshold,
            "mask_threshold": mask_threshold,
            "overlap_mask_area_threshold": overlap_mask_area_threshold,
            "label_ids_to_fuse": frozenset(label_ids_to_fuse or ()),
        }
        if legacy:
            targets = size_list("target_sizes", target_sizes, len(queries))
            return legacy_panoptic_result(queries, targets, self.legacy_grid_hw, options)
        grids = self.mask_grids(queries, target_sizes, source_sizes, pixel_mask)
        return [panoptic_result(c, g, options) for c, g in zip(queries.classes, grids, strict=True)]

    def mask_grids(
        self, queries: Queries, target_sizes: Any, source_sizes: Any = None, pixel_mask: Tensor | None = None
    ) -> list[MaskGrid]:
        """Lay each picture's target pixels over the part of the mask grid that is not padding.

        The part is read from `pixel_mask` if given. Otherwise each of `source_sizes`, or if these are left out
        `target_sizes`, goes through the processor's own size rule, which gives the picture's size before padding; the
        largest of them (or `pad_size`) must fill the mask grid, at 4 pixels a cell. Source sizes that do not are an
        error; target sizes that do not are taken as free choices, and the whole grid as the picture.
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
            contents = cells_from_sizes(resized, pad_hw, grid_hw, self.mask_stride, must_fit=sources is not None)
        return [
            MaskGrid.make(queries.masks[i], targets[i] if targets else None, contents[i] if contents else None)
            for i in range(count)
        ]
