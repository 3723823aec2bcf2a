"""Rotary positions for patch grids, as Sapiens2 and DINOv3 use them.

Patch centres in [-1, 1] (y, x) ─▶ angles [N, D/2] (y block, x block) ─▶ cos, sin ─▶ rotation of the last N tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def patch_centers(grid_hw: tuple[int, int], device: torch.device | None = None) -> Tensor:
    """Centres of the cells of an h × w grid as (y, x) in [-1, 1], row by row: [h·w, 2]."""
    axes = [((torch.arange(n, device=device, dtype=torch.float32) + 0.5) / n) * 2.0 - 1.0 for n in grid_hw]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, 1)  # [h·w, 2]


def augment_centers(
    centers: Tensor, *, shift: float | None = None, jitter: float | None = None, rescale: float | None = None
) -> Tensor:
    """Move [N, 2] coordinates at random for training: a shift and a stretch for each axis, one scale for both."""
    if shift is not None:
        centers = centers + torch.empty(2, device=centers.device).uniform_(-shift, shift)
    if jitter is not None:
        centers = centers * torch.empty(2, device=centers.device).uniform_(-math.log(jitter), math.log(jitter)).exp()
    if rescale is not None:
        span = math.log(rescale)
        centers = centers * torch.empty(1, device=centers.device).uniform_(-span, span).exp()
    return centers


def rope_table(centers: Tensor, *, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines for coordinates [N, 2], each [N, D/2] in float32; D must be a multiple of 4."""
    steps = torch.arange(0, 1, 4 / head_dim, device=centers.device, dtype=torch.float32)  # [D/4]
    angles = (2 * math.pi * centers[:, :, None] / theta**steps).flatten(1)  # [N, D/2]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last N tokens of [B, A, P + N, D], pairing channel j with j + D/2; the first P stay as they are."""
    first = x.shape[-2] - cos.shape[-2]
    left, right = x[..., first:, :].chunk(2, dim=-1)  # [B, A, N, D/2] each
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)  # [B, A, N, D]
    return torch.cat((x[..., :first, :], turned), dim=-2) if first else turned  # [B, A, P + N, D]
