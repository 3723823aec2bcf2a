"""Batches of pictures of several sizes: compute each without its padding, and lay the results in one frame again.

pixel_mask [B, H, W] ─▶ pictures_of ─▶ groups of one size, computed one after the other ─▶ Frames ─▶ a batch again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.layers.uncompiled import uncompiled

OUTSIDE = -20.0  # logit of pixels that are not part of a picture


def check_pixel_mask(pixel_values: Tensor, pixel_mask: Tensor | None) -> None:
    """Raise `InputError` unless a mask fits images [B, C, H, W]."""
    if pixel_mask is None:
        return
    expected = [pixel_values.shape[0], *pixel_values.shape[-2:]]
    if list(pixel_mask.shape) != expected:
        raise InputError(f"pixel_mask: expected shape {expected}, got {list(pixel_mask.shape)}.")


def valid_sizes(pixel_mask: Tensor) -> list[tuple[int, int]]:
    """Height and width of the picture in the upper left corner of each frame [B, H, W], 1 where there is picture."""
    inside = pixel_mask.bool()
    sizes = torch.stack((inside.any(2).sum(1), inside.any(1).sum(1)), dim=-1).tolist()  # [B, 2]
    for number, (height, width) in enumerate(sizes):
        if not height or not width:
            raise InputError(f"pixel_mask[{number}]: expected some pixels to be picture, got none.")
    return [(height, width) for height, width in sizes]


@dataclass(frozen=True)
class Frames:
    """Where the pictures of one size each lie in a batch of frames, and how results become a batch again.

    Attributes:
        places: For each size the places of its pictures in the batch [b].
        sizes_hw: The sizes.
        batch: Number of frames.
        frame_hw: Size of the frames.
    """

    places: tuple[Tensor, ...]
    sizes_hw: tuple[tuple[int, int], ...]
    batch: int
    frame_hw: tuple[int, int]

    def cut(self, pixel_values: Tensor) -> list[Tensor]:
        """Cut the pictures of each size out of their frames [B, C, H, W]: [b, C, h, w] each."""
        return [
            pixel_values[places, :, :height, :width]
            for places, (height, width) in zip(self.places, self.sizes_hw, strict=True)
        ]

    def rows(self, parts: Sequence[Tensor]) -> Tensor:
        """Put results [b, …] of each size back into their places in the batch: [B, …]."""
        whole = parts[0].new_zeros((self.batch, *parts[0].shape[1:]))
        for places, part in zip(self.places, parts, strict=True):
            whole = whole.index_copy(0, places, part)
        return whole

    def maps(self, parts: Sequence[Tensor], stride_hw: tuple[int, int], outside: float = 0.0) -> Tensor:
        """Lay maps [b, C, h, w] of each size, at a stride, into frames of one size: [B, C, h', w']."""
        size = [-(-side // stride) for side, stride in zip(self.frame_hw, stride_hw, strict=True)]
        whole = parts[0].new_full((self.batch, parts[0].shape[1], *size), outside)
        for places, part in zip(self.places, parts, strict=True):
            frame = part.new_full((len(places), part.shape[1], *size), outside)
            frame[..., : part.shape[-2], : part.shape[-1]] = part
            whole = whole.index_copy(0, places, frame)
        return whole

    def all_rows(self, parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """`rows` for each of several results."""
        return [self.rows(same) for same in zip(*parts, strict=True)]

    def all_maps(
        self, parts: Sequence[Sequence[Tensor]], strides_hw: Sequence[tuple[int, int]], outside: float = 0.0
    ) -> list[Tensor]:
        """`maps` for each of several results, each at a stride of its own."""
        return [
            self.maps(same, stride, outside) for same, stride in zip(zip(*parts, strict=True), strides_hw, strict=True)
        ]


@uncompiled
def pictures_of(pixel_values: Tensor, pixel_mask: Tensor) -> Frames | None:
    """Find the pictures in frames [B, C, H, W] by their mask [B, H, W]; None where none has padding.

    It looks at the values of the mask, so it is no part of a compiled graph and cannot be exported.
    """
    sizes = valid_sizes(pixel_mask)
    frame = (pixel_values.shape[-2], pixel_values.shape[-1])
    if all(size == frame for size in sizes):
        return None
    kinds = tuple(dict.fromkeys(sizes))
    places = tuple(
        torch.tensor([i for i, other in enumerate(sizes) if other == size], device=pixel_values.device)
        for size in kinds
    )
    return Frames(places, kinds, len(sizes), frame)
