"""Pictures and segmentation maps on their way into mask-classification models: the functions behind `MaskProcessor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images import ResizeMode, center_on_canvas, load_image, pad_bottom_right, resize
from vitruvian.images.decode import to_uint8
from vitruvian.images.label_maps import masks_from_map, read_label_map
from vitruvian.images.mask_grid import SizeHW
from vitruvian.images.rle import encode_rles
from vitruvian.processor import as_list, as_pixels, check_count

InstanceTable = Mapping[int, int] | Sequence[Mapping[int, int]]
MaskFormat = Literal["float", "bool", "rle"]


def read_pictures(
    images: Any, *, input_data_format: str | None, device: str | torch.device | None, convert_rgb: bool
) -> list[Tensor]:
    """Read pictures of any kind as [3, H, W]: 8-bit pictures and arrays as uint8, floating point as it is.

    Integers wider than 8 bits are scaled by their white level; with `convert_rgb` arrays of four channels are laid over
    white by their alpha.
    """
    plain = [plain_array(image, input_data_format, convert_rgb) for image in as_list(images)]
    return as_pixels(plain, input_data_format=input_data_format, device=device)


def plain_array(image: Any, input_data_format: str | None, convert_rgb: bool) -> Any:
    """Return an array of other integers than uint8, or with alpha, as one that models take; leave the rest alone."""
    if not isinstance(image, (np.ndarray, Tensor)):
        return image
    floating = image.is_floating_point() if isinstance(image, Tensor) else image.dtype.kind == "f"
    place = image.device if isinstance(image, Tensor) else None
    if image.ndim == 3 and 4 in (image.shape[0], image.shape[-1]) and 3 not in (image.shape[0], image.shape[-1]):
        first = input_data_format == "channels_first" or (input_data_format is None and image.shape[-1] != 4)
        if image.shape[0 if first else -1] == 4 and not (convert_rgb and not floating):
            raise InputError(
                f"images: expected 1 or 3 channels, got the shape {list(image.shape)}. "
                "Pass do_convert_rgb=True to lay integers with alpha over white, or cut the fourth channel off."
            )
        values = image.cpu().numpy() if isinstance(image, Tensor) else image
        rgb = np.array(load_image(np.moveaxis(values, 0, -1) if first else values))  # [H, W, 3]
        return torch.from_numpy(np.moveaxis(rgb, -1, 0) if first else rgb).to(place)
    if floating or image.dtype in (torch.uint8, np.uint8):
        return image
    values = image.cpu().numpy() if isinstance(image, Tensor) else image
    return torch.from_numpy(to_uint8(values, subject="images")).to(place)


def resize_all(
    pictures: Sequence[Tensor], sizes: Sequence[SizeHW], mode: ResizeMode, *, together: bool
) -> list[Tensor]:
    """Resize pictures [C, H, W] to a size each, those of one shape and size in one go where `together`."""
    if not together:
        return [resize(picture, size, mode=mode) for picture, size in zip(pictures, sizes, strict=True)]
    groups: dict[Any, list[int]] = {}
    for place, (picture, size) in enumerate(zip(pictures, sizes, strict=True)):
        groups.setdefault((picture.shape, picture.dtype, picture.device, size), []).append(place)
    found: dict[int, Tensor] = {}
    for (*_, size), places in groups.items():
        found |= zip(places, resize(torch.stack([pictures[p] for p in places]), size, mode=mode), strict=True)
    return [found[place] for place in range(len(pictures))]


def crop_center(pictures: Sequence[Tensor], crop_hw: SizeHW | None) -> list[Tensor]:
    """Cut the middle out of pictures [..., H, W], or leave them whole without a size."""
    if crop_hw is None:
        return list(pictures)
    for picture in pictures:
        if picture.shape[-2] < crop_hw[0] or picture.shape[-1] < crop_hw[1]:
            raise InputError(
                f"crop_size: expected at most the resized picture's {picture.shape[-2]}×{picture.shape[-1]}, "
                f"got {crop_hw[0]}×{crop_hw[1]}. Make it smaller, or the pictures larger with size."
            )
    return [center_on_canvas(picture, crop_hw) for picture in pictures]


def split_maps(
    maps: Sequence[Tensor],
    pictures: Sequence[Tensor],
    tables: Sequence[Mapping[int, int] | None],
    *,
    padded_hw: SizeHW | None,
    mask_format: MaskFormat,
    ignore_index: int | None,
    do_reduce_labels: bool,
    num_labels: int | None,
) -> tuple[list[Any], list[Tensor]]:
    """Split the map of each picture into its masks, padded to one size, and their classes; see `masks_from_map`."""
    masks, classes = [], []
    for labels, table, picture in zip(maps, tables, pictures, strict=True):
        split, label = masks_from_map(
            labels.to(picture.device),
            instance_id_to_semantic_id=table,
            ignore_index=ignore_index,
            do_reduce_labels=do_reduce_labels,
            num_labels=num_labels,
        )
        masks.append(finish_masks(split, padded_hw or size_of(picture), ignore_index, mask_format))
        classes.append(label)
    return masks, classes


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
