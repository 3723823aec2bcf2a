"""Batches of pictures of several sizes: compute each without its padding, and lay the results in one frame again.

pixel_mask [B, H, W] ─▶ valid_sizes ─▶ groups of one size ─▶ (cropped, computed) ─▶ join_rows, join_maps ─▶ a batch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from vitruvian.errors import InputError

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


def same_size(pixel_values: Tensor, pixel_mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the places in the batch of pictures of one size [b], and these without padding [b, C, h, w]."""
    sizes = valid_sizes(pixel_mask)
    for size in dict.fromkeys(sizes):
        places = torch.tensor([i for i, other in enumerate(sizes) if other == size], device=pixel_values.device)
        yield places, pixel_values[places, :, : size[0], : size[1]]


def frame_size(frame_hw: Sequence[int], stride_hw: tuple[int, int]) -> tuple[int, int]:
    """Size of the map of a whole frame at a stride."""
    return -(-frame_hw[0] // stride_hw[0]), -(-frame_hw[1] // stride_hw[1])


def join_rows(parts: Sequence[tuple[Tensor, Tensor]], *, batch: int, dim: int = 0) -> Tensor:
    """Put results [b, …] back into their places in the batch, which lies in dimension `dim`."""
    first = parts[0][1]
    whole = first.new_zeros([batch if d == dim else size for d, size in enumerate(first.shape)])
    for places, part in parts:
        whole = whole.index_copy(dim, places, part)
    return whole


def join_maps(
    parts: Sequence[tuple[Tensor, Tensor]], *, batch: int, size_hw: tuple[int, int], outside: float = 0.0
) -> Tensor:
    """Put maps [b, C, h, w] of several sizes back into their places, in frames of one size: [B, C, h', w']."""
    first = parts[0][1]
    whole = first.new_full((batch, first.shape[1], *size_hw), outside)
    for places, part in parts:
        frame = first.new_full((len(places), first.shape[1], *size_hw), outside)
        frame[..., : part.shape[-2], : part.shape[-1]] = part
        whole = whole.index_copy(0, places, frame)
    return whole
