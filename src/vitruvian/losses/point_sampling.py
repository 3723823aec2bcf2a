"""Sample masks at points: logits and labels bilinearly, without resizing either.

Points are (x, y) in [0, 1] over the whole frame, so that low-resolution logits and full-resolution labels are sampled
at the same positions. Labels stay bool or uint8: only the four pixels around each point are converted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.images.types import SizeHW

_MAX_POINTS = 1 << 20  # of a gather or a sort, to bound temporary memory
_CACHE_BYTES = 1 << 21  # of masks sampled together on the CPU: random reads should hit its cache


def sample_logits(logits: Tensor, points: Tensor) -> Tensor:
    """Sample each map at its own points, bilinearly, 0 outside: [M, h, w], [M, P, 2] -> [M, P] in float32."""
    grid = (2 * points - 1)[:, None]  # [M, 1, P, 2]
    return F.grid_sample(logits[:, None].float(), grid, align_corners=False)[:, 0, 0]  # [M, P]


def sample_logits_at(logits: Tensor, points: Tensor) -> Tensor:
    """Sample all maps at the same points, bilinearly, 0 outside: [Q, h, w], [P, 2] -> [Q, P] in float32."""
    grid = (2 * points - 1)[None, None]  # [1, 1, P, 2]
    return F.grid_sample(logits[None].float(), grid, align_corners=False)[0, :, 0]  # [Q, P]


def sample_labels(masks: Tensor, rows: Tensor, points: Tensor, frame_hw: SizeHW) -> Tensor:
    """Sample masks of any type, each at its own points, bilinearly, 0 outside.

    Args:
        masks: Masks [T, H, W] (bool, uint8 or floating point), at the upper left corner of the frame.
        rows: Index of the mask of each row of points [M].
        points: Points [M, P, 2].
        frame_hw: Size of the frame in pixels of the masks.

    Returns:
        Values in float32 [M, P].
    """
    flat, area = masks.flatten(), masks.shape[1] * masks.shape[2]
    sampled = torch.zeros(points.shape[:2], device=points.device)  # [M, P]
    step = _masks_per_step(masks, points.shape[1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        first = (rows[part] * area)[:, None]  # [m, 1]
        for index, weight in _corners(points[part], masks.shape[1:], frame_hw):
            sampled[part] += flat.index_select(0, (first + index).flatten()).view_as(weight) * weight
    return sampled


def sample_labels_at(masks: Tensor, points: Tensor, frame_hw: SizeHW) -> Tensor:
    """Sample all masks at the same points, as `sample_labels` does: [T, H, W], [P, 2] -> [T, P] in float32."""
    flat = masks.flatten(1)  # [T, H·W]
    sampled = torch.zeros(masks.shape[0], points.shape[0], device=points.device)  # [T, P]
    pixels = list(_corners(points, masks.shape[1:], frame_hw))
    step = _masks_per_step(masks, points.shape[0])
    for start in range(0, len(masks), step):
        part = slice(start, start + step)
        for index, weight in pixels:
            sampled[part] += flat[part].index_select(1, index) * weight
    return sampled


def _corners(points: Tensor, size_hw: Sequence[int], frame_hw: SizeHW) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the index in a mask and the weight (0 outside) of each of the four pixels around points [..., 2]: [...]."""
    H, W = size_hw
    x, y = points[..., 0] * frame_hw[1] - 0.5, points[..., 1] * frame_hw[0] - 0.5
    left, top = x.floor(), y.floor()
    for row in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - (x - column).abs()) * (1 - (y - row).abs())
            inside = (column >= 0) & (column < W) & (row >= 0) & (row < H)
            index = row.clamp(0, H - 1).long() * W + column.clamp(0, W - 1).long()
            yield index, weight * inside


def _masks_per_step(masks: Tensor, points: int) -> int:
    """Number of masks to sample together: bounded by memory and, on the CPU, by its caches."""
    count = _MAX_POINTS // max(points, 1)
    if masks.device.type == "cpu":
        count = min(count, _CACHE_BYTES // max(masks[:1].numel() * masks.element_size(), 1))
    return max(1, count)


@torch.no_grad()
def uncertain_points(logits: Tensor, *, count: int, oversample_ratio: float, importance_sample_ratio: float) -> Tensor:
    """Draw points for each map [M, h, w], most of them where its logits are nearest to 0: [M, P, 2].

    Args:
        logits: The maps.
        count: Number of points P for each.
        oversample_ratio: Candidates drawn for each point.
        importance_sample_ratio: Share of the points that are the least certain candidates; the others are random.
    """
    M = logits.shape[0]
    drawn = int(count * oversample_ratio)
    chosen_count = int(importance_sample_ratio * count)
    chosen = []
    for maps in torch.split(logits, max(1, _MAX_POINTS // max(drawn, 1))):
        candidates = torch.rand(maps.shape[0], drawn, 2, device=logits.device)
        certainty = sample_logits(maps, candidates).abs()  # [m, drawn]
        least = certainty.topk(chosen_count, dim=1, largest=False).indices
        chosen.append(candidates.gather(1, least[..., None].expand(-1, -1, 2)))  # [m, chosen_count, 2]
    points = torch.cat(chosen) if chosen else logits.new_zeros(0, chosen_count, 2, dtype=torch.float32)
    if count > chosen_count:
        points = torch.cat((points, torch.rand(M, count - chosen_count, 2, device=logits.device)), dim=1)
    return points  # [M, P, 2]
