"""1×1 convolutions: of plain maps (`conv1x1`), and between two deferred norms (`pointwise_conv_norm`, on the CPU).

The latter takes a few rows of pixels at a time: the norm and SiLU of the input, the product and the statistics of the
output are computed while the rows are in the cache, so that maps are read and written once.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.ops.dispatch import use_cpu_version
from vitruvian.ops.instance_norm import FeatureMaps, MapStatistics

_PIXELS = 768  # of a thread at a time


def conv1x1(convolution: nn.Conv2d, maps: Tensor) -> Tensor:
    """Apply a 1×1 convolution: [B, C, h, w] -> [B, C', h, w], on the CPU as one matrix product over the channels."""
    if maps.device.type != "cpu" or torch.compiler.is_exporting() or type(convolution) is not nn.Conv2d:
        out: Tensor = convolution(maps)
        return out
    rows = F.linear(maps.permute(0, 2, 3, 1), convolution.weight.flatten(1), convolution.bias)  # [B, h, w, C']
    return rows.permute(0, 3, 1, 2)  # [B, C', h, w]


def suits_pointwise(maps: FeatureMaps, conv: nn.Module) -> bool:
    """Return whether the version for the CPU can run a convolution: a 1×1 kernel, inference."""
    return (
        isinstance(conv, nn.Conv2d)
        and (conv.kernel_size, conv.stride, conv.padding) == ((1, 1), (1, 1), (0, 0))
        and use_cpu_version("pointwise_conv", maps.values, conv.weight)
    )


def pointwise_conv_norm(maps: FeatureMaps, weight: Tensor, *, eps: float) -> FeatureMaps:
    """Convolve maps [B, C, H, W] by a weight [C', C, 1, 1]: [B, C', H, W], their instance norm and SiLU deferred."""
    B, _, H, W = maps.values.shape
    out = torch.empty((B, len(weight), H, W), memory_format=torch.channels_last)
    statistics = MapStatistics()
    for image, rows in _parts(maps.values):
        part = F.linear(maps.activated_rows(image, rows), weight.flatten(1))  # [h, W, C']
        out[image, :, rows] = part.permute(2, 0, 1)
        statistics.add(image, part)
    return FeatureMaps(out, *statistics.merge(eps=eps))


def _parts(maps: Tensor) -> Iterator[tuple[int, slice]]:
    """Yield images and rows of maps [B, C, H, W] that are convolved together."""
    step = max(1, _PIXELS * torch.get_num_threads() // maps.shape[3])
    for image in range(len(maps)):
        for first in range(0, maps.shape[2], step):
            yield image, slice(first, first + step)
