"""Blurs with a kernel of its own for each picture of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

RADIUS = 7  # kernels are 15 x 15


def gaussian_kernels(sigma: Tensor) -> Tensor:
    """Normal blur of `sigma` [B] pixels, [B, 15, 15]; 0 leaves the picture as it is."""
    _, _, distance = _grid(sigma)
    return _normalised((-0.5 * (distance / sigma.clamp_min(0.05)[:, None, None]) ** 2).exp())


def disc_kernels(radius: Tensor) -> Tensor:
    """Defocus: a disc of `radius` [B] pixels, [B, 15, 15]."""
    _, _, distance = _grid(radius)
    return _normalised((radius[:, None, None] - distance + 0.5).clamp(0.0, 1.0) + 1e-6 * (distance == 0))


def motion_kernels(length: Tensor, angle: Tensor) -> Tensor:
    """Motion along a straight line of `length` [B] pixels at `angle` [B], [B, 15, 15]."""
    x, y, _ = _grid(length)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    along, across = x * cos + y * sin, y * cos - x * sin
    beyond = (along.abs() - length[:, None, None] / 2).clamp_min(0.0)
    return _normalised((1.0 - torch.hypot(beyond, across)).clamp_min(0.0))


def _grid(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and distance from the middle, each [1, 15, 15]."""
    step = torch.arange(-RADIUS, RADIUS + 1, device=like.device, dtype=torch.float32)
    y, x = torch.meshgrid(step, step, indexing="ij")
    return x[None], y[None], torch.hypot(x, y)[None]


def _normalised(kernels: Tensor) -> Tensor:
    return kernels / kernels.sum(dim=(1, 2), keepdim=True)


def blur(images: Tensor, kernels: Tensor) -> Tensor:
    """Filter [B, C, H, W] with one kernel a picture, [B, 15, 15]; borders repeat."""
    B, C, H, W = images.shape
    padded = F.pad(images, (RADIUS,) * 4, mode="replicate").reshape(1, B * C, H + 2 * RADIUS, W + 2 * RADIUS)
    weights = kernels.repeat_interleave(C, dim=0)[:, None]  # [B·C, 1, 15, 15]
    return F.conv2d(padded, weights, groups=B * C).view(B, C, H, W)


def blur_far(images: Tensor, radius: Tensor) -> Tensor:
    """Defocus by `radius` [B] pixels of any size: large discs are applied to a picture shrunk four times."""
    H, W = images.shape[-2:]
    small = F.interpolate(images, size=(max(H // 4, 1), max(W // 4, 1)), mode="area")
    small = blur(small, disc_kernels((radius / 4).clamp_max(RADIUS)))
    large = F.interpolate(small, size=(H, W), mode="bilinear", align_corners=False)
    near = blur(images, disc_kernels(radius.clamp_max(RADIUS)))
    return torch.where((radius > RADIUS - 1)[:, None, None, None], large, near)
