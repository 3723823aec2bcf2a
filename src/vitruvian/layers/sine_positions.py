"""Fixed sine and cosine positions of a grid, normalized to its size, as in DETR."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitruvian.tensor_cache import cached_tensors

_TEMPERATURE = 10000.0


def sine_periods(channels: int, device: torch.device) -> Tensor:
    """Return the periods of C channels of sines or cosines, in pairs: [C], float32."""
    step = torch.arange(channels, dtype=torch.float32, device=device)
    period: Tensor = _TEMPERATURE ** (2 * torch.div(step, 2, rounding_mode="floor") / channels)
    return period


@cached_tensors
def sine_positions(grid_hw: tuple[int, int], channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the positions of an h × w grid, row by row: [h·w, C], the y half first.

    Computed in float32 whatever the dtype: bfloat16 cannot represent the steps of a fine grid.
    """
    half = channels // 2
    period = sine_periods(half, device)  # [C/2]
    axes = []
    for count in grid_hw:
        position = torch.arange(1, count + 1, dtype=torch.float32, device=device) / (count + 1e-6) * (2 * math.pi)
        angle = position[:, None] / period  # [n, C/2]
        axes.append(torch.stack((angle[:, 0::2].sin(), angle[:, 1::2].cos()), dim=-1).flatten(1))  # [n, C/2]
    height, width = grid_hw
    y = axes[0][:, None].expand(height, width, half)
    x = axes[1][None].expand(height, width, half)
    return torch.cat((y, x), dim=-1).flatten(0, 1).to(dtype)  # [h·w, C]
