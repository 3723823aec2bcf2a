"""What pixel decoders share: convolutions with group norms.

On the CPU maps keep their channels last in memory, as they come from tokens: torch resizes such maps several times
faster, and 3×3 convolutions take them as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.layers.init import Kind, with_init

GROUPS = 32


def pointwise(convolution: nn.Conv2d, maps: Tensor) -> Tensor:
    """Apply a 1×1 convolution: [B, C, h, w] -> [B, C', h, w], on the CPU as one matrix product over the channels."""
    if maps.device.type != "cpu" or torch.compiler.is_exporting():
        found: Tensor = convolution(maps)
        return found
    rows = F.linear(maps.permute(0, 2, 3, 1), convolution.weight.flatten(1), convolution.bias)  # [B, h, w, C']
    return rows.permute(0, 3, 1, 2)  # [B, C', h, w]


class PointwiseNorm(nn.Sequential):
    """A 1×1 convolution and a group norm, under the names 0 and 1."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, start: Kind = "normal") -> None:
        super().__init__(with_init(nn.Conv2d(inputs, outputs, 1, bias=bias), start), nn.GroupNorm(GROUPS, outputs))

    def forward(self, maps: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', h, w]."""
        convolution, norm = self
        assert isinstance(convolution, nn.Conv2d)
        out: Tensor = norm(pointwise(convolution, maps))
        return out


def conv_norm_relu(inputs: int, outputs: int, *, start: Kind = "normal") -> nn.Sequential:
    """A 3×3 convolution, group norm and ReLU."""
    convolution = with_init(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), start)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU(inplace=True))
