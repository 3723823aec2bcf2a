"""Pictures and segmentation maps on their way into mask-classification models: the functions behind `MaskProcessor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images import pad_bottom_right
from vitruvian.images.label_maps import read_label_map
from vitruvian.images.mask_grid import SizeHW
from vitruvian.images.rle import encode_rles
from vitruvian.processor import check_count

InstanceTable = Mapping[int, int] | Sequence[Mapping[int, int]]
MaskFormat = Literal["float", "bool", "rle"]


def finish_masks(masks: Tensor, padded_hw: SizeHW, ignore_index: int | None, mask_format: MaskFormat) -> Any:
    """Pad bool masks [N, H, W] and bring them to the format asked for."""
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


def size_of(pixels: Tensor) -> SizeHW:
    """Return (height, width) of [..., H, W]."""
    return int(pixels.shape[-2]), int(pixels.shape[-1])


def planes(image: Any, input_data_format: str | None) -> Tensor:
    """Return a finished picture given as numpy or torch as [C, H, W]."""
    pixels = torch.as_tensor(image)
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise InputError(f"pixel values: expected the shape [C, H, W], got {list(pixels.shape)}.")
    last = input_data_format in ("channels_last", "last")
    return pixels.permute(2, 0, 1) if last else pixels


def move_channels_last(values: Any) -> Any:
    """Turn [..., C, H, W] into [..., H, W, C], for each item of a list too."""
    if isinstance(values, list):
        return [move_channels_last(value) for value in values]
    return values.movedim(-3, -1) if isinstance(values, Tensor) else values.transpose(0, 2, 3, 1)


def read_maps(maps: Any, pictures: Sequence[Tensor]) -> list[Tensor] | None:
    """Return one int64 map [H, W] a picture, each of its picture's size."""
    if maps is None:
        return None
    stacked = getattr(maps, "ndim", 0) == 3 and len(maps) == len(pictures)
    found = [read_label_map(one) for one in (maps if isinstance(maps, (list, tuple)) or stacked else [maps])]
    check_count("segmentation_maps", found, len(pictures))
    for labels, picture in zip(found, pictures, strict=True):
        if size_of(labels) != size_of(picture):
            raise InputError(
                f"segmentation_maps: expected the size of the picture, {size_of(picture)}, got {size_of(labels)}."
            )
    return found


def tables_for(table: InstanceTable | None, count: int) -> list[Mapping[int, int] | None]:
    """Return the table of each of `count` pictures from one table for all, one a picture, or none."""
    if table is None or isinstance(table, Mapping):
        return [table] * count
    check_count("instance_id_to_semantic_id", table, count)
    return list(table)
