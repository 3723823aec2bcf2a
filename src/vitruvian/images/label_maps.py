"""Label maps: the best class of each pixel from scores of another size, and the number of pixels of each class."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitruvian.ops.interpolate import bilinear

_MAX_BINS = 1 << 20


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


def _resize_into(out: Tensor, one: Tensor) -> None:
    """Resize a map [h, w] bilinearly into [1, 1, H, W]."""
    size_hw = (out.shape[-2], out.shape[-1])
    if tuple(one.shape) == size_hw:
        out.copy_(one)
    elif one.dtype == torch.float32:
        torch.ops.aten.upsample_bilinear2d.out(one[None, None], size_hw, False, None, None, out=out)
    else:
        out.copy_(bilinear(one, size_hw))
