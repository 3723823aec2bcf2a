"""Non-maximum suppression of boxes and masks, without torchvision.

Overlaps of boxes are computed row by row, only for boxes that stay; those of masks as one matrix product, N × N.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Pixels of masks that are multiplied in one step, which limits memory.
_CHUNK_PIXELS = 1 << 24


def box_nms(boxes_xyxy: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of boxes [N, 4] to keep, best first.

    Args:
        boxes_xyxy: Corners.
        scores: [N]; equal scores keep their order.
        iou_threshold: IoU above which the box with the lower score is dropped.
    """
    order = scores.sort(descending=True, stable=True).indices
    boxes = boxes_xyxy[order].float().cpu()
    areas = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=-1)  # [N]

    def iou(best: int) -> Tensor:
        low = torch.maximum(boxes[best, :2], boxes[best + 1 :, :2])  # [R, 2]
        high = torch.minimum(boxes[best, 2:], boxes[best + 1 :, 2:])  # [R, 2]
        shared = (high - low).clamp(min=0).prod(dim=-1)  # [R]
        return shared / (areas[best] + areas[best + 1 :] - shared).clamp(min=1e-9)

    return order[_suppress(iou, len(boxes), iou_threshold).to(order.device)]


def mask_nms(masks: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the indices of masks [N, H, W] to keep, best first; arguments as for `box_nms`, overlap in pixels."""
    order = scores.sort(descending=True, stable=True).indices
    overlaps = mask_iou(masks[order])
    return order[_suppress(lambda best: overlaps[best, best + 1 :], len(masks), iou_threshold).to(order.device)]


def mask_iou(masks: Tensor) -> Tensor:
    """Return the intersection over union of every two masks [N, H, W]: float32 [N, N] on the CPU."""
    shared = _shared_areas(masks)
    areas = shared.diagonal()
    return shared / (areas[:, None] + areas - shared).clamp(min=1)


def _suppress(iou: Callable[[int], Tensor], count: int, threshold: float) -> Tensor:
    """Return the indices of `count` candidates, sorted by score, that no better one suppresses.

    `iou(i)` is the overlap of candidate i with all later ones.
    """
    alive = torch.ones(count, dtype=torch.bool)
    chosen = []
    for best in range(count):
        if alive[best]:
            chosen.append(best)
            alive[best + 1 :] &= ~(iou(best) > threshold)
    return torch.tensor(chosen, dtype=torch.long)


def _shared_areas(masks: Tensor) -> Tensor:
    """Return the intersection of each pair of masks [N, H, W] in pixels: float32 [N, N] on the CPU, exact up to 2²⁴."""
    flat = masks.bool().flatten(1)  # [N, H·W]
    total = torch.zeros(len(flat), len(flat), device=flat.device)
    step = max(1, _CHUNK_PIXELS // max(1, len(flat)))
    for start in range(0, flat.shape[1], step):
        part = flat[:, start : start + step].float()
        total += part @ part.T
    return total.cpu()
