"""Masks at points: read logits and labels where a loss wants them, without ever enlarging either.

Points are (x, y) in [0, 1] over the whole frame, so low-resolution logits and full-resolution labels are read at the
same places. Labels stay bool or uint8: only the four pixels around each point become numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

POINTS_AT_ONCE = 1 << 20  # bounds the temporary memory of a gather or a sort


def read_logits(logits: Tensor, points: Tensor) -> Tensor:
    """Read each map at its own points, bilinearly, 0 outside: [M, h, w], [M, P, 2] -> [M, P] in float32."""
    grid = (2 * points - 1)[:, None]  # [M, 1, P, 2]
    return F.grid_sample(logits[:, None].float(), grid, align_corners=False)[:, 0, 0]  # [M, P]


def read_logits_together(logits: Tensor, points: Tensor) -> Tensor:
    """Read all maps at the same points, bilinearly, 0 outside: [Q, h, w], [P, 2] -> [Q, P] in float32."""
    grid = (2 * points - 1)[None, None]  # [1, 1, P, 2]
    return F.grid_sample(logits[None].float(), grid, align_corners=False)[0, :, 0]  # [Q, P]


def read_labels(masks: Tensor, rows: Tensor | None, points: Tensor, frame_hw: tuple[int, int]) -> Tensor:
    """Read masks of any type at points, bilinearly, 0 outside.

    Args:
        masks: Masks [T, H, W] (bool, uint8 or floating point), which lie in the upper left corner of the frame.
        rows: Which mask each row of points belongs to [M]; None for all masks at the same points.
        points: Points [M, P, 2], or [P, 2] for the same ones everywhere.
        frame_hw: Size of the frame in pixels of the masks.

    Returns:
        Values in float32 [M, P], or [T, P] for the same points everywhere.
    """
    if rows is not None:
        at_once = max(1, POINTS_AT_ONCE // max(points.shape[1], 1))
        if len(rows) > at_once:
            parts = zip(torch.split(rows, at_once), torch.split(points, at_once), strict=True)
            return torch.cat([read_labels(masks, row, part, frame_hw) for row, part in parts])
    _, H, W = masks.shape
    x, y = points[..., 0] * frame_hw[1] - 0.5, points[..., 1] * frame_hw[0] - 0.5
    left, top = x.floor(), y.floor()
    total: Tensor | float = 0.0
    for down in (0, 1):
        for across in (0, 1):
            column, line = left + across, top + down
            weight = (1 - (x - column).abs()) * (1 - (y - line).abs())
            weight = weight * ((column >= 0) & (column < W) & (line >= 0) & (line < H))
            place = line.clamp(0, H - 1).long() * W + column.clamp(0, W - 1).long()
            if rows is None:
                found = masks.flatten(1).index_select(1, place)  # [T, P]
            else:
                found = masks.flatten().take(place + (rows * (H * W))[:, None])  # [M, P]
            total = total + found.float() * weight
    assert isinstance(total, Tensor)
    return total


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
