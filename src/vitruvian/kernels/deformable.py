"""Deformable attention from the raw outputs of its projections: one kernel, or the steps of `layers.deformable`."""

from __future__ import annotations

import torch
from torch import Tensor, unflatten

from vitruvian.kernels.available import takes_kernel
from vitruvian.layers.deformable import Levels, deformable_attention, level_centers
from vitruvian.ops.cache import cached_tensors


def sample_points(value: Tensor, projected: Tensor, level_hw: Levels, *, heads: int, points: int) -> Tensor:
    """Sum samples around every token of every level.

    Args:
        value: Tokens of all levels [B, N, C], level after level, each row by row.
        projected: For each token the offsets of its points in pixels of their level [A, L, P, 2], then the scores of
            the points [A, L, P], of which a head's softmax are their weights: [B, N, 3·A·L·P].
        level_hw: (height, width) of each level.
        heads: A.
        points: P.

    Returns:
        [B, N, C] in the dtype of `value`.
    """
    if takes_kernel(value, projected, name="deformable", wide=True):
        from vitruvian.kernels import deformable_triton

        centers, levels = token_table(level_hw, value.device)
        return deformable_triton.sample_points(
            value, projected.contiguous(), centers, levels, heads=heads, points=points
        )
    count = heads * len(level_hw) * points
    offsets = unflatten(projected[..., : 2 * count].float(), -1, (heads, len(level_hw), points, 2))
    weights = unflatten(projected[..., 2 * count :].float(), -1, (heads, -1)).softmax(-1)  # [B, N, A, L·P]
    places = offsets + level_centers(level_hw, value.device)[:, None, :, None]  # [B, N, A, L, P, 2]
    x, y = places[..., 0].contiguous(), places[..., 1].contiguous()
    weights = unflatten(weights, -1, (len(level_hw), points))
    return deformable_attention(unflatten(value, -1, (heads, -1)), level_hw, x, y, weights)


@cached_tensors
def token_table(level_hw: Levels, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where each token lies in its picture, x and y in [0, 1] [N, 2], and each level's height, width, first token."""
    parts, rows, first = [], [], 0
    for height, width in level_hw:
        y = (torch.arange(height, dtype=torch.float32, device=device) + 0.5) / height
        x = (torch.arange(width, dtype=torch.float32, device=device) + 0.5) / width
        parts.append(torch.stack((x.repeat(height), y.repeat_interleave(width)), dim=-1))  # [h·w, 2]
        rows.append((height, width, first))
        first += height * width
    return torch.cat(parts), torch.tensor(rows, dtype=torch.int32, device=device)
