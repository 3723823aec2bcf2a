"""Results of one image after another from the outputs of mask-classification models."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.models.mask_classification.mask_grid import SizeHW


class SegmentationResult(dict[str, Any]):
    """Items of a result, above all `segmentation` and `segments_info`, as a dict and as attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"SegmentationResult has no item {name!r}; it has {sorted(self)}") from None

    @property
    def shape(self) -> torch.Size:
        """Shape of `segmentation`, where that is a tensor."""
        return torch.Size(self["segmentation"].shape)


@dataclasses.dataclass(frozen=True)
class QueryLogits:
    """Class logits [B, Q, K+1] and mask logits [B, Q, h, w] of a batch."""

    classes: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.classes)

    @classmethod
    def from_outputs(cls, outputs: object) -> QueryLogits:
        """Read and check the logits of a model's output."""
        both = []
        for name, ndim in (("class_queries_logits", 3), ("masks_queries_logits", 4)):
            logits = outputs.get(name) if isinstance(outputs, dict) else getattr(outputs, name, None)
            if not isinstance(logits, Tensor) or logits.ndim != ndim:
                got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise InputError(f"outputs.{name}: expected a tensor of {ndim} dimensions, got {got}.")
            both.append(logits)
        classes, masks = both
        if classes.shape[:2] != masks.shape[:2]:
            raise InputError(
                f"outputs: expected class and mask logits of the same images and queries, "
                f"got {list(classes.shape)} and {list(masks.shape)}."
            )
        return cls(classes, masks)


def cells_from_pixel_mask(pixel_mask: Tensor, count: int, grid_hw: SizeHW, stride: int) -> list[tuple[float, float]]:
    """Return how many rows and columns of the mask grid each image covers, from `pixel_mask` [B, H, W]."""
    mask = torch.as_tensor(pixel_mask).bool()
    if mask.ndim != 3 or len(mask) != count or not bool(mask.flatten(1).any(1).all()):
        raise InputError(
            f"pixel_mask: expected the shape [{count}, H, W] with some pixels in each image, got {list(mask.shape)}."
        )
    padded_hw = mask.shape[1:]
    # Models round inputs up to whole cells. A grid with another stride covers the input evenly.
    steps = [stride if math.ceil(p / stride) == g else p / g for p, g in zip(padded_hw, grid_hw, strict=True)]
    heights, widths = mask.any(2).sum(1).tolist(), mask.any(1).sum(1).tolist()
    return [(height / steps[0], width / steps[1]) for height, width in zip(heights, widths, strict=True)]


def cells_from_sizes(
    resized: Sequence[SizeHW], pad_hw: SizeHW | None, grid_hw: SizeHW, stride: int, *, must_match: bool
) -> list[tuple[float, float]] | None:
    """Return how many rows and columns of the mask grid each image covers, from the sizes before padding.

    Sizes are valid if a batch padded to the largest of them has the grid that the model returned. Others are an error
    with `must_match`; without it, return None (the whole grid), with a warning if the images of a batch differ.
    """
    padded = pad_hw or (max(height for height, _ in resized), max(width for _, width in resized))
    matches = all(math.ceil(p / stride) == g for p, g in zip(padded, grid_hw, strict=True)) and all(
        height <= padded[0] and width <= padded[1] for height, width in resized
    )
    if matches:
        return [(height / stride, width / stride) for height, width in resized]
    message = (
        f"images resized to {list(resized)} would give a mask grid of "
        f"{math.ceil(padded[0] / stride)}×{math.ceil(padded[1] / stride)}, but the model's is {grid_hw[0]}×{grid_hw[1]}"
    )
    if must_match:
        raise InputError(f"source_sizes: {message}. Give the sizes before resizing, or pixel_mask.")
    if len(set(resized)) > 1:
        warnings.warn(
            f"target_sizes: {message}; padding is not removed. Give source_sizes or pixel_mask to remove it.",
            VitruvianWarning,
            stacklevel=4,
        )
    return None
