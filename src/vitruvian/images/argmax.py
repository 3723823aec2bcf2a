"""Class scores → class maps at another size, without ever holding all scores at that size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def resized_argmax(scores: Tensor, size_hw: tuple[int, int]) -> Tensor:
    """Resize scores [K, h, w] bilinearly and return the best class of each pixel, int64 [H, W].

    Equal to resizing all at once and taking the argmax, one class at a time: what is live stays in the cache, and
    memory does not grow with the number of classes.
    """
    best = resize_one(scores, 0, size_hw)  # [H, W]
    winner = torch.zeros(size_hw, dtype=torch.uint8 if len(scores) <= 256 else torch.int32, device=scores.device)
    for index in range(1, len(scores)):
        rival = resize_one(scores, index, size_hw)  # [H, W]
        winner.masked_fill_(rival > best, index)
        best = torch.maximum(best, rival, out=best)
    return winner.long()


def resize_one(scores: Tensor, index: int, size_hw: tuple[int, int]) -> Tensor:
    """Resize one of [K, h, w] to [H, W]."""
    one = scores[index][None, None]
    if tuple(one.shape[-2:]) == tuple(size_hw):
        return scores[index].clone()
    return F.interpolate(one, size=size_hw, mode="bilinear", align_corners=False)[0, 0]
