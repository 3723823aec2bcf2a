"""Layers on residual branches: layer scale, and stochastic depth in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LayerScale(nn.Module):
    """Multiply each channel by a learned factor."""

    def __init__(self, channels: int, *, value: float = 1.0) -> None:
        super().__init__()
        self.value = value
        self.lambda1 = nn.Parameter(torch.full((channels,), float(value)))

    def forward(self, x: Tensor) -> Tensor:
        """Scale [..., C]."""
        return x * self.lambda1

    def init_parameters(self) -> None:
        """Set the factors to their initial value."""
        nn.init.constant_(self.lambda1, self.value)


class DropPath(nn.Module):
    """In training, zero a branch for a random share of the batch and scale the rest up (stochastic depth)."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop whole samples of [B, ...]."""
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        survives = torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), device=x.device, dtype=torch.float32) < keep
        return x * (survives / keep).to(x.dtype)

    def extra_repr(self) -> str:
        """Show the rate when printed."""
        return f"rate={self.rate}"
