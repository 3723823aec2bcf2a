"""Masks at points: read logits and labels where a loss wants them, without ever enlarging either.

Points are (x, y) in [0, 1] over the whole frame, so low-resolution logits and full-resolution labels are read at the
same places. Labels stay bool or uint8: only the four pixels around each point become numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

POINTS_AT_ONCE = 1 << 20  # bounds the temporary memory of a gather or a sort
CACHED_BYTES = 1 << 21  # masks that are read at random places, four times each, before the next ones


def read_logits(logits: Tensor, points: Tensor) -> Tensor:
    """Read each map at its own points, bilinearly, 0 outside: [M, h, w], [M, P, 2] -> [M, P] in float32."""
    grid = (2 * points - 1)[:, None]  # [M, 1, P, 2]
    return F.grid_sample(logits[:, None].float(), grid, align_corners=False)[:, 0, 0]  # [M, P]


def read_logits_together(logits: Tensor, points: Tensor) -> Tensor:
    """Read all maps at the same points, bilinearly, 0 outside: [Q, h, w], [P, 2] -> [Q, P] in float32."""
    grid = (2 * points - 1)[None, None]  # [1, 1, P, 2]
    return F.grid_sample(logits[None].float(), grid, align_corners=False)[0, :, 0]  # [Q, P]


def read_labels(masks: Tensor, rows: Tensor, points: Tensor, frame_hw: tuple[int, int]) -> Tensor:
    """Read masks of any type, each at its own points, bilinearly, 0 outside.

    Args:
        masks: Masks [T, H, W] (bool, uint8 or floating point), which lie in the upper left corner of the frame.
        rows: Which mask each row of points belongs to [M].
        points: Points [M, P, 2].
        frame_hw: Size of the frame in pixels of the masks.

    Returns:
        Values in float32 [M, P].
    """
    flat, area = masks.flatten(), masks.shape[1] * masks.shape[2]
    found = torch.zeros(points.shape[:2], device=points.device)  # [M, P]
    at_once = masks_at_once(masks, points.shape[1])
    for start in range(0, len(rows), at_once):
        part = slice(start, start + at_once)
        first = (rows[part] * area)[:, None]  # [m, 1]
        for place, weight in corners(points[part], masks.shape[1:], frame_hw):
            found[part] += flat.index_select(0, (first + place).flatten()).view_as(weight) * weight
    return found


def read_labels_together(masks: Tensor, points: Tensor, frame_hw: tuple[int, int]) -> Tensor:
    """Read all masks at the same points, as `read_labels` does: [T, H, W], [P, 2] -> [T, P] in float32."""
    flat = masks.flatten(1)  # [T, H·W]
    found = torch.zeros(masks.shape[0], points.shape[0], device=points.device)  # [T, P]
    around = list(corners(points, masks.shape[1:], frame_hw))
    at_once = masks_at_once(masks, points.shape[0])
    for start in range(0, len(masks), at_once):
        part = slice(start, start + at_once)
        for place, weight in around:
            found[part] += flat[part].index_select(1, place) * weight
    return found


def corners(points: Tensor, size_hw: Sequence[int], frame_hw: tuple[int, int]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each of the four pixels around points [..., 2] its place in a mask and its weight, 0 outside: [...]."""
    H, W = size_hw
    x, y = points[..., 0] * frame_hw[1] - 0.5, points[..., 1] * frame_hw[0] - 0.5
    left, top = x.floor(), y.floor()
    for line in (top, top + 1):
        for column in (left, left + 1):
            weight = (1 - (x - column).abs()) * (1 - (y - line).abs())
            inside = (column >= 0) & (column < W) & (line >= 0) & (line < H)
            place = line.clamp(0, H - 1).long() * W + column.clamp(0, W - 1).long()
            yield place, weight * inside


def masks_at_once(masks: Tensor, points: int) -> int:
    """How many masks to read in one go: on the CPU what its caches hold, elsewhere what memory should take."""
    fitting = POINTS_AT_ONCE // max(points, 1)
    if masks.device.type == "cpu":
        fitting = min(fitting, CACHED_BYTES // max(masks[:1].numel() * masks.element_size(), 1))
    return max(1, fitting)


@torch.no_grad()
def uncertain_points(logits: Tensor, *, count: int, oversample_ratio: float, importance_sample_ratio: float) -> Tensor:
    """Choose points for each map [M, h, w], most of them where its logits are nearest to 0: [M, P, 2].

    Args:
        logits: The maps.
        count: Number of points P for each.
        oversample_ratio: Candidates drawn for each point.
        importance_sample_ratio: Share of the points that are the least certain of the candidates; the others are drawn
            anew.
    """
    M = logits.shape[0]
    drawn = int(count * oversample_ratio)
    wanted = int(importance_sample_ratio * count)
    chosen = []
    for maps in torch.split(logits, max(1, POINTS_AT_ONCE // max(drawn, 1))):
        candidates = torch.rand(maps.shape[0], drawn, 2, device=logits.device)
        certainty = read_logits(maps, candidates).abs()  # [m, drawn]
        least = certainty.topk(wanted, dim=1, largest=False).indices
        chosen.append(candidates.gather(1, least[..., None].expand(-1, -1, 2)))  # [m, wanted, 2]
    points = torch.cat(chosen) if chosen else logits.new_zeros(0, wanted, 2, dtype=torch.float32)
    if count > wanted:
        points = torch.cat((points, torch.rand(M, count - wanted, 2, device=logits.device)), dim=1)
    return points  # [M, P, 2]
