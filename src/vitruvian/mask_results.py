"""Outputs of mask-classification models → results, one picture at a time: the functions behind `MaskProcessor`."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.images.mask_grid import MaskGrid, SizeHW
from vitruvian.images.segments import instance_map, instance_masks, panoptic_segments, stack_masks
from vitruvian.images.segments_legacy import legacy_instances, legacy_panoptic, legacy_runs, legacy_semantic
from vitruvian.images.semantic import semantic_map, semantic_scores

InstanceKind = Literal["map", "rle", "masks"]


class SegmentationResult(dict[str, Any]):
    """A result's items, `segmentation` and `segments_info` above all, as a dict and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"SegmentationResult has no item {name!r}; it holds {sorted(self)}") from None

    @property
    def shape(self) -> torch.Size:
        """Shape of `segmentation`, where that is a tensor."""
        return torch.Size(self["segmentation"].shape)


@dataclasses.dataclass(frozen=True)
class Queries:
    """What a model says of a batch: class logits [B, Q, K+1] and mask logits [B, Q, h, w]."""

    classes: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.classes)


def read_queries(outputs: Any) -> Queries:
    """Take class and mask logits out of a model's output, checked."""
    found = []
    for name, ndim in (("class_queries_logits", 3), ("masks_queries_logits", 4)):
        logits = outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, None)
        if not isinstance(logits, Tensor) or logits.ndim != ndim:
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise InputError(f"outputs.{name}: expected a tensor of {ndim} dimensions, got {got}.")
        found.append(logits)
    classes, masks = found
    if classes.shape[:2] != masks.shape[:2]:
        raise InputError(
            f"outputs: expected class and mask logits of the same pictures and queries, "
            f"got {list(classes.shape)} and {list(masks.shape)}."
        )
    return Queries(classes, masks)


# ------------------------------------------------------------------------------------------------------- padding


def cells_from_pixel_mask(pixel_mask: Tensor, count: int, grid_hw: SizeHW, stride: int) -> list[tuple[float, float]]:
    """Return how many rows and columns of the mask grid each picture fills, from `pixel_mask` [B, H, W]."""
    mask = torch.as_tensor(pixel_mask).bool()
    if mask.ndim != 3 or len(mask) != count or not bool(mask.flatten(1).any(1).all()):
        raise InputError(
            f"pixel_mask: expected the shape [{count}, H, W] with a picture in each, got {list(mask.shape)}."
        )
    padded_hw = mask.shape[1:]
    # Models round input up to whole cells. A grid that is not one of `stride` covers the input evenly.
    steps = [stride if math.ceil(p / stride) == g else p / g for p, g in zip(padded_hw, grid_hw, strict=True)]
    heights, widths = mask.any(2).sum(1).tolist(), mask.any(1).sum(1).tolist()
    return [(height / steps[0], width / steps[1]) for height, width in zip(heights, widths, strict=True)]


def cells_from_sizes(
    resized: Sequence[SizeHW], pad_hw: SizeHW | None, grid_hw: SizeHW, stride: int, *, must_fit: bool
) -> list[tuple[float, float]] | None:
    """Return how many rows and columns of the mask grid each picture fills, from the sizes before padding.

    Sizes are right if the padded batch that follows from them has the grid that the model returned. Others are an error
    if they `must_fit`; if not, None: the whole grid is taken, with a warning where pictures of a batch differ.
    """
    padded = pad_hw or (max(height for height, _ in resized), max(width for _, width in resized))
    fits = all(math.ceil(p / stride) == g for p, g in zip(padded, grid_hw, strict=True)) and all(
        height <= padded[0] and width <= padded[1] for height, width in resized
    )
    if fits:
        return [(height / stride, width / stride) for height, width in resized]
    message = (
        f"pictures resized to {list(resized)} would give a mask grid of "
        f"{math.ceil(padded[0] / stride)}×{math.ceil(padded[1] / stride)}, but the model's is {grid_hw[0]}×{grid_hw[1]}"
    )
    if must_fit:
        raise InputError(f"source_sizes: {message}. Give the sizes before resizing, or pixel_mask.")
    if len(set(resized)) > 1:
        warnings.warn(
            f"target_sizes: {message}; padding is not removed. Give source_sizes or pixel_mask to remove it.",
            VitruvianWarning,
            stacklevel=4,
        )
    return None


# ------------------------------------------------------------------------------------------------------- results


def semantic_result(class_logits: Tensor, grid: MaskGrid, with_scores: bool) -> Any:
    """Return the class of each pixel, or a result with the scores of all classes too."""
    if not with_scores:
        return semantic_map(class_logits, grid)
    scores = semantic_scores(class_logits, grid)  # [K, H, W]
    return SegmentationResult(segmentation=scores.argmax(0), segmentation_scores=scores)


def instance_result(
    class_logits: Tensor,
    grid: MaskGrid,
    kind: InstanceKind,
    *,
    threshold: float,
    mask_threshold: float,
    overlap_mask_area_threshold: float,
) -> SegmentationResult:
    """Return the instances of a picture as a map, as masks or as RLE."""
    find = instance_map if kind == "map" else instance_masks
    found, segments = find(
        class_logits,
        grid,
        threshold=threshold,
        mask_threshold=mask_threshold,
        overlap_mask_area_threshold=overlap_mask_area_threshold,
    )
    segmentation: Any = found
    if not isinstance(found, Tensor):
        size, device = grid.size_hw, grid.logits.device
        segmentation = [mask.rle(size) for mask in found] if kind == "rle" else stack_masks(found, size, device)
    return SegmentationResult(segmentation=segmentation, segments_info=[segment.info() for segment in segments])


def panoptic_result(class_logits: Tensor, grid: MaskGrid, options: dict[str, Any]) -> SegmentationResult:
    """Return the segments of a picture as one map."""
    ids, segments = panoptic_segments(class_logits, grid, **options)
    return SegmentationResult(segmentation=ids, segments_info=[segment.info() for segment in segments])


def legacy_semantic_result(
    queries: Queries, targets: list[SizeHW] | None, grid_hw: SizeHW | None, with_scores: bool
) -> list[Any]:
    """Return the reference's semantic results."""
    results: list[Any] = []
    for index in range(len(queries)):
        target_hw = targets[index] if targets else None
        classes, scores = legacy_semantic(
            queries.classes[index], queries.masks[index], grid_hw=grid_hw, target_hw=target_hw
        )
        both = SegmentationResult(segmentation=classes, segmentation_scores=scores)
        results.append(both if with_scores else classes)
    return results


def legacy_instance_result(
    queries: Queries, targets: list[SizeHW] | None, grid_hw: SizeHW | None, threshold: float, kind: InstanceKind
) -> list[SegmentationResult]:
    """Return the reference's instance results."""
    results = []
    for index in range(len(queries)):
        ids, masks, infos = legacy_instances(
            queries.classes[index],
            queries.masks[index],
            grid_hw=grid_hw,
            target_hw=targets[index] if targets else None,
            threshold=threshold,
        )
        segmentation: Any = ids
        if kind == "rle":
            segmentation = legacy_runs(ids)
        elif kind == "masks" and masks:
            segmentation = torch.stack(masks)  # [N, H, W]
        results.append(SegmentationResult(segmentation=segmentation, segments_info=infos))
    return results


def legacy_panoptic_result(
    queries: Queries, targets: list[SizeHW] | None, grid_hw: SizeHW | None, options: dict[str, Any]
) -> list[SegmentationResult]:
    """Return the reference's panoptic results."""
    results = []
    for index in range(len(queries)):
        ids, infos = legacy_panoptic(
            queries.classes[index],
            queries.masks[index],
            grid_hw=grid_hw,
            target_hw=targets[index] if targets else None,
            **options,
        )
        results.append(SegmentationResult(segmentation=ids, segments_info=infos))
    return results
