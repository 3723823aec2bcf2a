"""Non-maximum suppression of boxes and masks, without torchvision, and bounding boxes of masks.

Overlaps of boxes are computed row by row, for the kept ones only; those of masks as one matrix product, N × N.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitruvian.errors import InputError

# Pixels of masks that are multiplied in one step, which limits memory.
CHUNK_PIXELS = 1 << 24


def box_nms(boxes_xyxy: Tensor, scores: Tensor, iou_threshold: float, *, groups: Tensor | None = None) -> Tensor:
    """Return the indices of boxes [N, 4] to keep, best first.

    Args:
        boxes_xyxy: Corners.
        scores: [N]; equal scores keep their order.
        iou_threshold: IoU above which the box with the lower score is dropped.
        groups: Numbers [N], such as classes; boxes of different groups do not suppress each other.
    """
    _check(boxes_xyxy.shape, scores, groups, "boxes_xyxy", "[N, 4]")
    order = scores.sort(descending=True, stable=True).indices
    boxes = boxes_xyxy[order].float().cpu()
    areas = (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=-1)  # [N]

    def overlaps(best: int, rest: slice) -> Tensor:
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])  # [R, 2]
        high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])  # [R, 2]
        shared = (high - low).clamp(min=0).prod(dim=-1)  # [R]
        return shared / (areas[best] + areas[rest] - shared).clamp(min=1e-9)

    return order[_suppress(overlaps, len(boxes), iou_threshold, _sorted_groups(groups, order)).to(order.device)]


def mask_nms(masks: Tensor, scores: Tensor, iou_threshold: float, *, groups: Tensor | None = None) -> Tensor:
    """Return the indices of masks [N, H, W] to keep, best first; arguments as for `box_nms`, overlap in pixels."""
    _check(masks.shape, scores, groups, "masks", "[N, H, W]")
    order = scores.sort(descending=True, stable=True).indices
    shared = shared_areas(masks[order])  # [N, N]
    areas = shared.diagonal()

    def overlaps(best: int, rest: slice) -> Tensor:
        both = shared[best, rest]
        return both / (areas[best] + areas[rest] - both).clamp(min=1)

    return order[_suppress(overlaps, len(masks), iou_threshold, _sorted_groups(groups, order)).to(order.device)]


def shared_areas(masks: Tensor) -> Tensor:
    """Return the intersection of each pair of masks [N, H, W] in pixels: float32 [N, N] on the CPU, exact up to 2²⁴."""
    flat = masks.bool().flatten(1)  # [N, H·W]
    total = torch.zeros(len(flat), len(flat), device=flat.device)
    step = max(1, CHUNK_PIXELS // max(1, len(flat)))
    for start in range(0, flat.shape[1], step):
        part = flat[:, start : start + step].float()
        total += part @ part.T
    return total.cpu()


def mask_boxes(masks: Tensor) -> Tensor:
    """Return the bounding boxes x1, y1, x2, y2 of masks [..., H, W], with exclusive ends: int64 [..., 4].

    Empty masks have zeros.
    """
    sides = []
    for line in (masks.any(dim=-2), masks.any(dim=-1)):  # columns [..., W], rows [..., H]
        marks = line.to(torch.uint8)
        first = marks.argmax(dim=-1)
        last = marks.shape[-1] - marks.flip(-1).argmax(dim=-1)
        some = line.any(dim=-1)
        sides.append((first * some, last * some))
    (left, right), (top, bottom) = sides
    return torch.stack((left, top, right, bottom), dim=-1)  # [..., 4]


def _suppress(overlaps: Callable[[int, slice], Tensor], count: int, threshold: float, groups: Tensor | None) -> Tensor:
    """Return the indices of `count` candidates, sorted by score, that no better one suppresses."""
    alive = torch.ones(count, dtype=torch.bool)
    kept = []
    for best in range(count):
        if not alive[best]:
            continue
        kept.append(best)
        rest = slice(best + 1, count)
        hit = overlaps(best, rest) > threshold
        if groups is not None:
            hit &= groups[rest] == groups[best]
        alive[rest] &= ~hit
    return torch.tensor(kept, dtype=torch.long)


def _sorted_groups(groups: Tensor | None, order: Tensor) -> Tensor | None:
    """Return the groups in the order of the scores, on the CPU."""
    return None if groups is None else groups.to(order.device)[order].cpu()


def _check(shape: torch.Size, scores: Tensor, groups: Tensor | None, name: str, form: str) -> None:
    """Raise `InputError` unless there is one score, and one group if any, for each candidate."""
    if len(shape) != form.count(",") + 1 or (form.endswith("4]") and shape[-1] != 4):
        raise InputError(f"{name}: expected the shape {form}, got {list(shape)}.")
    if scores.shape != shape[:1] or (groups is not None and groups.shape != shape[:1]):
        raise InputError(f"scores and groups: expected one for each of {shape[0]} candidates.")
