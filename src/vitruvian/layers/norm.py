"""Normalisation layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension (statistics in float32), times a learned weight."""

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [..., C]."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)

    def extra_repr(self) -> str:
        """Show the size when printed."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


class ChannelRMSNorm(RMSNorm):
    """`RMSNorm` over the channels of each pixel of a feature map."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise [B, C, H, W] over C."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)
