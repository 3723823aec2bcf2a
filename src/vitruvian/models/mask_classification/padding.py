"""Batches of images of several sizes: compute each image without its padding, and pad the results again.

pixel_mask [B, H, W] ─▶ group_by_size ─▶ images of one size each, computed one group after the other ─▶ a batch again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.ops.dispatch import no_compile

PADDING_LOGIT = -20.0  # mask logit of pixels in the padding


def check_pixel_mask(pixel_values: Tensor, pixel_mask: Tensor | None) -> None:
    """Raise `InputError` unless a mask has the shape [B, H, W] of images [B, C, H, W]."""
    expected = [pixel_values.shape[0], *pixel_values.shape[-2:]]
    if pixel_mask is not None and list(pixel_mask.shape) != expected:
        raise InputError(f"pixel_mask: expected shape {expected}, got {list(pixel_mask.shape)}.")


@dataclass(frozen=True)
class ImageGroups:
    """The images of a padded batch, grouped by size.

    Attributes:
        indices: Indices of the images of each group in the batch [b].
        sizes_hw: Height and width of the images of each group.
        batch: Number of images B.
        padded_hw: Height and width of the batch.
    """

    indices: tuple[Tensor, ...]
    sizes_hw: tuple[tuple[int, int], ...]
    batch: int
    padded_hw: SizeHW

    def crop(self, pixel_values: Tensor) -> list[Tensor]:
        """Crop the images [B, C, H, W] of each group: [b, C, h, w] each."""
        groups = zip(self.indices, self.sizes_hw, strict=True)
        return [pixel_values[index, :, :height, :width] for index, (height, width) in groups]

    def merge_rows(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Merge several results [b, …] of each group into batches: [B, …] each."""
        merged = []
        for results in zip(*parts, strict=True):
            whole = results[0].new_zeros((self.batch, *results[0].shape[1:]))
            for index, result in zip(self.indices, results, strict=True):
                whole = whole.index_copy(0, index, result)
            merged.append(whole)
        return merged

    def merge_maps(
        self, parts: Sequence[Sequence[Tensor]], strides_hw: Sequence[tuple[int, int]], *, fill: float = 0.0
    ) -> list[Tensor]:
        """Merge several maps [b, C, h, w] of each group, each at a stride, into padded batches: [B, C, h', w'] each."""
        padded = []
        for maps in parts:
            group = []
            for level, stride_hw in zip(maps, strides_hw, strict=True):
                height, width = (-(-side // stride) for side, stride in zip(self.padded_hw, stride_hw, strict=True))
                canvas = level.new_full((*level.shape[:2], height, width), fill)
                canvas[..., : level.shape[-2], : level.shape[-1]] = level
                group.append(canvas)
            padded.append(group)
        return self.merge_rows(padded)


@no_compile
def group_by_size(pixel_values: Tensor, pixel_mask: Tensor) -> ImageGroups | None:
    """Group padded images [B, C, H, W] by the size that their mask [B, H, W] gives; None where none has padding.

    Reads the values of the mask, so it is not part of a compiled graph and cannot be exported.
    """
    inside = pixel_mask.bool()
    sizes = [(h, w) for h, w in torch.stack((inside.any(2).sum(1), inside.any(1).sum(1)), dim=-1).tolist()]  # B pairs
    for number, (height, width) in enumerate(sizes):
        if not height or not width:
            raise InputError(f"pixel_mask[{number}]: expected some pixels to be 1, got none.")
    padded_hw = (pixel_values.shape[-2], pixel_values.shape[-1])
    if all(size == padded_hw for size in sizes):
        return None
    distinct = tuple(dict.fromkeys(sizes))
    indices = tuple(
        torch.tensor([i for i, other in enumerate(sizes) if other == size], device=pixel_values.device)
        for size in distinct
    )
    return ImageGroups(indices, distinct, len(sizes), padded_hw)
