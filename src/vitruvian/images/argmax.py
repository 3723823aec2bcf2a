"""Class scores → class maps at another size, without ever holding all scores at that size."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


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
        out.copy_(F.interpolate(one[None, None], size=size_hw, mode="bilinear", align_corners=False))
