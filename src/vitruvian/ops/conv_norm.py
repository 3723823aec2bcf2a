"""Convolution, optional pixel shuffle, instance norm and SiLU of feature maps: the block of decode heads.

Four versions: Winograd, where its transformed weights are allowed; 1×1 kernels on the CPU, a few rows at a time; a
convolution of torch with the Triton version of the norm; plain torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitruvian.ops.dispatch import use_triton
from vitruvian.ops.instance_norm import FeatureMaps, instance_norm_silu
from vitruvian.ops.pointwise_conv import pointwise_conv_norm, suits_pointwise
from vitruvian.ops.winograd import WinogradConv, suits_winograd
from vitruvian.tensor_cache import WeightCache

Conv = nn.Conv2d | nn.ConvTranspose2d


def conv_norm_silu(
    maps: FeatureMaps,
    conv: Conv,
    *,
    eps: float,
    batch: int,
    shuffle: bool = False,
    winograd: WeightCache[WinogradConv] | None = None,
) -> FeatureMaps:
    """Convolve and normalize maps [B, C, h, w]: [B, C', s·h, s·w].

    The result may hold maps before norm and SiLU, and their statistics. Whatever reads it, such as the next call,
    applies both (see `FeatureMaps`).

    Args:
        maps: The maps; their memory may be reused.
        conv: The convolution.
        eps: Epsilon of the norm.
        batch: Images of the whole batch, of which `maps` may be a part.
        shuffle: Whether a pixel shuffle of factor 2 follows the convolution.
        winograd: Cache of the transformed weights; None for no Winograd convolutions.
    """
    bias = conv.bias if shuffle else None  # the norm removes it, unless pixels are shuffled before
    transposed = isinstance(conv, nn.ConvTranspose2d)
    if winograd is not None and _suits_winograd(maps.values, conv, batch=batch):
        convolve = winograd.get(
            [conv.weight] if bias is None else [conv.weight, bias],
            lambda: WinogradConv(conv.weight, bias, transposed=transposed, shuffle=shuffle),
        )
        return convolve(maps, eps=eps, batch=batch)
    if not shuffle and suits_pointwise(maps, conv):
        return pointwise_conv_norm(maps, conv.weight, eps=eps)
    x = maps.activated(conv.weight.dtype, inplace=True)
    if use_triton("instance_norm", x, conv.weight):
        function = F.conv_transpose2d if transposed else F.conv2d
        x = function(x, conv.weight, None, stride=conv.stride, padding=conv.padding)  # type: ignore[arg-type]
        return FeatureMaps(instance_norm_silu(x, bias, eps=eps, shuffle=shuffle, inplace=True))
    x = conv(x)
    if shuffle:
        x = F.pixel_shuffle(x, 2)  # [B, C', 2h, 2w]
    return FeatureMaps(F.silu(F.instance_norm(x, eps=eps)))


def fastest_memory_format(x: Tensor, conv: Conv, *, batch: int, winograd: bool) -> torch.memory_format:
    """Return the memory format in which `conv_norm_silu` is fastest for maps x [B, C, h, w]."""
    channels_last = use_triton("instance_norm", x) or (winograd and _suits_winograd(x, conv, batch=batch))
    return torch.channels_last if channels_last else torch.contiguous_format


def fastest_weight_format(weight: Tensor) -> torch.memory_format:
    """Return the memory format of a weight in which `conv_norm_silu` is fastest on its device."""
    return torch.channels_last if weight.is_cuda else torch.preserve_format


def _suits_winograd(x: Tensor, conv: Conv, *, batch: int) -> bool:
    """Return whether the convolution is one of those of `WinogradConv`, and faster as such."""
    transposed = isinstance(conv, nn.ConvTranspose2d)
    stride = (2, 2) if transposed else (1, 1)
    return (conv.padding, conv.stride) == ((1, 1), stride) and suits_winograd(
        x, conv.weight, batch=batch, transposed=transposed
    )
