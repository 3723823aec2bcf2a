"""Layers of pixel decoders, and the mask head of object queries.

queries [B, Q, C] ─▶ mask_head ─▶ [B, Q, M]; with a feature map [B, M, h, w] ─▶ mask_logits ─▶ [B, Q, h, w]

On the CPU feature maps stay channels-last in memory, as they come from tokens: torch resizes such maps several times
faster, and 3×3 convolutions take them as they are.
"""

from __future__ import annotations

from torch import Tensor, nn, unflatten

from vitruvian.layers.init import InitKind, with_init
from vitruvian.ops.pointwise_conv import conv1x1

_NORM_GROUPS = 32


class PointwiseConvNorm(nn.Sequential):
    """A 1×1 convolution and a group norm, with the parameter names 0 and 1."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, init: InitKind = "normal") -> None:
        convolution = with_init(nn.Conv2d(inputs, outputs, 1, bias=bias), init)
        super().__init__(convolution, nn.GroupNorm(_NORM_GROUPS, outputs))

    def forward(self, maps: Tensor) -> Tensor:
        """Map [B, C, h, w] to [B, C', h, w]."""
        convolution, norm = self
        assert isinstance(convolution, nn.Conv2d)
        out: Tensor = norm(conv1x1(convolution, maps))
        return out


def conv_norm_relu(inputs: int, outputs: int, *, init: InitKind = "normal") -> nn.Sequential:
    """Build a 3×3 convolution, group norm and ReLU."""
    convolution = with_init(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), init)
    return nn.Sequential(convolution, nn.GroupNorm(_NORM_GROUPS, outputs), nn.ReLU(inplace=True))


def mask_head(channels: int, outputs: int, *, init: InitKind = "xavier") -> nn.Sequential:
    """Build three linear layers that map queries [B, Q, C] to mask embeddings [B, Q, M]."""
    sizes = [channels, channels, channels, outputs]
    linear = [with_init(nn.Linear(sizes[i], sizes[i + 1]), init) for i in range(3)]
    return nn.Sequential(
        nn.Sequential(linear[0], nn.ReLU()), nn.Sequential(linear[1], nn.ReLU()), nn.Sequential(linear[2])
    )


def mask_logits(embeddings: Tensor, pixels: Tensor) -> Tensor:
    """Score every pixel for every query: [B, Q, M] with pixel embeddings [B, M, h, w] -> [B, Q, h, w]."""
    return unflatten(embeddings @ pixels.flatten(2), 2, pixels.shape[-2:])  # [B, Q, h, w]
