"""Normalization layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitruvian.ops.layer_norm import layer_norm
from vitruvian.ops.rms_norm import add_rms_norm


class RMSNorm(nn.Module):
    """Divide by the root mean square over the last dimension (statistics in float32), times a learned weight."""

    def __init__(self, channels: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.eps = eps

    def forward(self, x: Tensor, branch: Tensor | None = None) -> Tensor:
        """Normalize [..., C], after adding a branch [..., C]."""
        return add_rms_norm(x, branch, self.weight, eps=self.eps)[1]

    def init_parameters(self) -> None:
        """Set the weight to ones."""
        nn.init.ones_(self.weight)

    def extra_repr(self) -> str:
        """Show the size when printed."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


class RMSNorm2d(RMSNorm):
    """`RMSNorm` over the channels of each pixel of a feature map."""

    def forward(self, x: Tensor, branch: Tensor | None = None) -> Tensor:
        """Normalize [B, C, H, W] over C."""
        rows = super().forward(x.movedim(1, -1), None if branch is None else branch.movedim(1, -1))
        return rows.movedim(-1, 1)


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of each pixel of a feature map."""

    def __init__(self, channels: int, *, eps: float) -> None:
        super().__init__(channels, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [B, C, H, W] over C."""
        return layer_norm(x.movedim(1, -1), self).movedim(-1, 1)
