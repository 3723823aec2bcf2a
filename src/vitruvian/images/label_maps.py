"""Label maps: reading, the best class of each pixel from scores of another size, and the pixels of each class."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitruvian.errors import InputError, check_count
from vitruvian.images.types import SizeHW
from vitruvian.ops.interpolate import bilinear

_MAX_BINS = 1 << 20
_NUMBER_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")  # modes of PIL with one number per pixel


def read_label_maps(maps: object, sizes_hw: Sequence[SizeHW | None], *, planes: bool = False) -> list[Tensor]:
    """Read segmentation maps: one, a list or a stack of them, one for each image.

    Args:
        maps: PIL (gray, palette or 16/32-bit), numpy or torch; integers, or floating-point numbers that are whole.
        sizes_hw: Heights and widths of the images; None where a map may have any size.
        planes: Whether an image may have several planes [P, H, W].

    Returns:
        Maps [H, W], or [P, H, W] where there are planes: uint8 where they were bool or uint8, otherwise int64.
    """
    stacked = isinstance(maps, np.ndarray | Tensor) and maps.ndim > 2 and len(maps) == len(sizes_hw)
    listed = list(maps) if stacked or isinstance(maps, list | tuple) else [maps]  # type: ignore[call-overload]
    check_count("segmentation_maps", listed, len(sizes_hw))
    read = [_read_numbers(labels, planes=planes) for labels in listed]
    for labels, size_hw in zip(read, sizes_hw, strict=True):
        if size_hw is not None and tuple(labels.shape[-2:]) != tuple(size_hw):
            raise InputError(
                f"segmentation_maps: expected the size of the image, {list(size_hw)}, got {list(labels.shape[-2:])}."
            )
    return read


def _read_numbers(source: object, *, planes: bool) -> Tensor:
    """Read a map as integers [H, W], or [P, H, W] with `planes`."""
    if isinstance(source, Image.Image):
        if source.mode not in _NUMBER_MODES:
            raise InputError(
                f"segmentation_maps: expected one number per pixel, got an image of mode {source.mode}. "
                "Turn colors into class or object numbers first."
            )
        source = np.array(source)
    if isinstance(source, np.ndarray) and source.dtype.kind in "ui" and source.dtype.itemsize > 1:
        source = source.astype(np.int64)  # torch lacks some unsigned and all foreign-endian types
    if not isinstance(source, np.ndarray | Tensor):
        raise InputError(f"segmentation_maps: expected PIL, numpy or torch, got {type(source).__name__}.")
    values = torch.as_tensor(source)
    if values.ndim == 3 and not planes and 1 in (values.shape[0], values.shape[2]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]  # [H, W]
    if values.ndim not in ((2, 3) if planes else (2,)) or 0 in values.shape:
        shapes = "[H, W] or [P, H, W]" if planes else "[H, W]"
        raise InputError(f"segmentation_maps: expected the shape {shapes}, got {list(values.shape)}.")
    if values.is_complex() or (values.is_floating_point() and values.frac().any()):
        raise InputError("segmentation_maps: expected integers, got fractions. Resize them without smoothing.")
    return values.to(torch.uint8 if values.dtype in (torch.bool, torch.uint8) else torch.int64)


def count_labels(labels: NDArray[np.integer]) -> dict[int, int]:
    """Return the number of pixels [H, W] of each class, in the order of the classes, which are not negative."""
    if labels.dtype == np.uint8:
        counts = np.array(Image.fromarray(labels).histogram())
    elif labels.max() < _MAX_BINS:  # counting is many times faster than sorting
        counts = np.bincount(labels.ravel())
    else:
        values, areas = np.unique(labels, return_counts=True)
        return dict(zip(values.tolist(), areas.tolist(), strict=True))
    return {int(label): int(counts[label]) for label in np.flatnonzero(counts)}


@torch.no_grad()
def resized_argmax(scores: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Resize scores [K, h, w] bilinearly and return the best class of each pixel, int64 [H, W].

    Equal to resizing all classes and taking the argmax, but one class at a time, in buffers that are used again: what
    is live stays in the cache, and memory does not grow with the number of classes.
    """
    small = torch.uint8 if len(scores) <= 256 else torch.int32
    winner = torch.zeros((1, 1, *size_hw), dtype=small, device=scores.device)
    best, rival = (torch.empty((1, 1, *size_hw), dtype=scores.dtype, device=scores.device) for _ in range(2))
    ahead = torch.empty(winner.shape, dtype=torch.bool, device=scores.device)
    number = torch.empty_like(winner)
    as_number = ahead.view(torch.uint8) if small == torch.uint8 else ahead
    _resize_into(best, scores[0])
    for index in range(1, len(scores)):
        _resize_into(rival, scores[index])
        torch.gt(rival, best, out=ahead)
        # Numbers only grow, so the larger of the old and the new one is right; arithmetic beats a masked write.
        torch.mul(as_number, index, out=number)
        torch.maximum(winner, number, out=winner)
        torch.maximum(best, rival, out=best)
    return winner[0, 0].long()


def _resize_into(out: Tensor, scores: Tensor) -> None:
    """Resize a map [h, w] bilinearly into [1, 1, H, W]."""
    size_hw = (out.shape[-2], out.shape[-1])
    if tuple(scores.shape) == size_hw:
        out.copy_(scores)
    elif scores.dtype == torch.float32:
        torch.ops.aten.upsample_bilinear2d.out(scores[None, None], size_hw, False, None, None, out=out)
    else:
        out.copy_(bilinear(scores, size_hw))
