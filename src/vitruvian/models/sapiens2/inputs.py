"""Reading what people give beside pictures: boxes, keypoints, label maps, backgrounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images import crop_params, image_to_tensor, load_image
from vitruvian.processor import ImageInput, channels_first, check_count


def read_boxes(boxes: Any, count: int) -> list[Tensor]:
    """Read boxes (x, y, width, height), a list for each of `count` pictures: a list of float32 [n, 4]."""
    rows = boxes.tolist() if isinstance(boxes, np.ndarray | Tensor) else list(boxes)
    check_count("boxes", rows, count)
    found = []
    for number, row in enumerate(rows):
        try:
            table = torch.as_tensor(np.asarray(row, dtype=np.float32))
        except (TypeError, ValueError) as error:
            raise bad_boxes(number, row) from error
        if not table.numel():
            table = table.reshape(0, 4)
        if table.ndim != 2 or table.shape[1] != 4:
            raise bad_boxes(number, row)
        found.append(table)
    return found


def bad_boxes(number: int, row: Any) -> InputError:
    """Say that the boxes of a picture are not a list of four numbers each."""
    return InputError(
        f"boxes: expected a list of [x, y, width, height] for each picture, got {row!r} for picture {number}. "
        "Nest them as [[[x, y, width, height], …], …]."
    )


def read_keypoints(points: Any, device: str | torch.device | None) -> Tensor:
    """Read the keypoints of people, (x, y) or (x, y, visibility): float32 [n, J, 3]."""
    try:
        table = torch.as_tensor(np.asarray(points, dtype=np.float32), device=device)
    except ValueError as error:
        raise InputError("keypoints: expected the same number of keypoints for each person of a picture.") from error
    if table.ndim != 3 or table.shape[-1] not in (2, 3):
        raise InputError(f"keypoints: expected (x, y, visibility) for each, got the shape {list(table.shape)}.")
    if table.shape[-1] == 2:
        table = F.pad(table, (0, 1), value=1.0)  # [n, J, 3]
    return table


def as_map_list(maps: ImageInput) -> list[Any]:
    """Return segmentation maps one by one: a single one, a list, or a stack [B, H, W]."""
    if isinstance(maps, np.ndarray | Tensor) and maps.ndim == 3 and maps.shape[0] != 1:
        return list(maps)
    return list(maps) if isinstance(maps, list | tuple) else [maps]


def read_map(one: Any, device: str | torch.device | None) -> Tensor:
    """Read a segmentation map as integers [1, H, W]; a picture's palette indices or gray values are its labels."""
    if not isinstance(one, Tensor):
        one = torch.as_tensor(np.array(one))
    if one.ndim == 3 and 1 in (one.shape[0], one.shape[-1]):
        one = one.squeeze(0 if one.shape[0] == 1 else -1)
    found: Tensor = one
    if found.ndim != 2 or found.is_floating_point() or found.is_complex():
        raise InputError(f"segmentation_maps: expected integers [H, W], got {found.dtype} {list(found.shape)}.")
    return found[None] if device is None else found[None].to(device)


def reduce_labels(labels: Tensor) -> Tensor:
    """Count labels from 1: 0 becomes 255 (ignore), and 255 stays."""
    lowered = labels.long() - 1
    return torch.where((labels == 0) | (labels == 255), 255, lowered).to(labels.dtype)


def crop_labels(labels: Tensor, boxes: Tensor, size_hw: tuple[int, int], outside: int = 255) -> Tensor:
    """Cut boxes out of a label map [1, H, W] without blending: [n, 1, h, w], `outside` beyond the picture."""
    center, extent = crop_params(boxes.to(labels.device), size_hw)
    places = []
    for axis, (side, count) in enumerate(((labels.shape[-1], size_hw[1]), (labels.shape[-2], size_hw[0]))):
        steps = torch.arange(count, device=labels.device) / max(count - 1, 1) - 0.5
        place = (center[:, axis, None] + steps * extent[:, axis, None]).round().long()  # [n, count]
        places.append((place.clamp(0, side - 1), (place >= 0) & (place < side)))
    (x, x_inside), (y, y_inside) = places
    found = labels[0][y[:, :, None], x[:, None, :]].long()  # [n, h, w]
    return torch.where(y_inside[:, :, None] & x_inside[:, None, :], found, outside)[:, None]


def read_background(background: Any) -> Tensor:
    """Read a background as float32 [3, H, W] from 0 to 1."""
    if isinstance(background, np.ndarray | Tensor):
        pixels = channels_first(torch.as_tensor(background))
    else:
        pixels = image_to_tensor(load_image(background))
    return pixels.float() if pixels.is_floating_point() else pixels.float() / torch.iinfo(pixels.dtype).max
