"""Errors of alpha mattes: SAD, MAD, MSE, Grad and Conn of each image, averaged over images.

| error | formula over the pixels of the region, p predicted and t true opacity, 0 to 1 | ÷ |
|---|---|---|
| sad | sum of abs(p − t) | 1000 |
| mad | mean of abs(p − t) | |
| mse | mean of (p − t)² | |
| grad | sum of (strength of p's gradient − strength of t's)², gradients of a Gaussian of 1.4 pixels | 1000 |
| conn | sum of abs(φ(p) − φ(t)), φ(a) = 1 − d where d = a − l is at least 0.15, else 1 | 1000 |

l is the highest level, in steps of 0.1, up to which a pixel belongs to the largest 4-connected region in which both
mattes reach the level. Gradients and levels are of the whole image; the region only selects the errors that are added
up. Opacities are compared as they are, not stretched to their own range as the original code does for gradients.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.connected_components import find_components, run_positions
from vitruvian.images.types import BoolArray, Float64Array
from vitruvian.training.evaluation.metric import Array, Averages, Metric, as_double, as_maps, require_finite

_GRADIENT_SIGMA = 1.4
_LEVELS = 10
_DISCONNECTED = 0.15
_THOUSAND = 1000.0
_SLACK = 1e-3  # of resizing and half precision


@dataclasses.dataclass(frozen=True)
class MattingErrorScores:
    """Means over images, NaN where there were none."""

    sad: float
    mad: float
    mse: float
    grad: float
    conn: float
    images: int


class MattingError(Metric):
    """SAD, MAD, MSE, Grad and Conn of alpha mattes."""

    def __init__(self) -> None:
        self.averages = Averages()

    def update(self, prediction: Array, target: Array, *, mask: Array | None = None) -> None:
        """Add opacities [H, W], [B, H, W] or [B, 1, H, W] from 0 to 1.

        `mask` of the same shape is the region that counts: None for the whole image, ``trimap == 128`` for the unknown
        part of a trimap, or `unknown_band(target)`. Images without a pixel in it do not count.
        """
        predicted, target, valid = as_maps(prediction, target, mask)
        for name, opacity in (("prediction", predicted), ("target", target)):
            require_finite(name, opacity)
            low, high = opacity.aminmax() if opacity.numel() else (0, 1)
            if not -_SLACK <= low <= high <= 1 + _SLACK:
                raise InputError(
                    f"{name}: expected 0 to 1, got {low:.4g} to {high:.4g}. Divide bytes by 255, clamp logits."
                )
        for p, t, region in zip(predicted[:, 0].clamp(0, 1), target[:, 0].clamp(0, 1), valid, strict=True):
            if bool(region.any()):
                self.averages.add(_matting_errors(p, t, region))

    def compute(self) -> MattingErrorScores:
        return self.averages.scores(MattingErrorScores)


def _matting_errors(prediction: Tensor, target: Tensor, region: Tensor) -> dict[str, float]:
    """Return the errors of one image by their names: opacities [H, W] and [H, W], region [H, W]."""
    error = (prediction - target)[region]  # [pixels]
    gradient_error = (_gradient_strength(prediction) - _gradient_strength(target))[region]  # [pixels]
    return {
        "sad": float(error.abs().sum()) / _THOUSAND,
        "mad": float(error.abs().mean()),
        "mse": float(error.square().mean()),
        "grad": float(gradient_error.square().sum()) / _THOUSAND,
        "conn": float(_connectivity_error(prediction, target)[region].sum()) / _THOUSAND,
    }


def _gradient_strength(opacity: Tensor) -> Tensor:
    """Return the length of the gradient of a smoothed map: [H, W] -> [H, W]. Borders repeat the outermost pixels."""
    gaussian, derivative = (kernel.to(opacity) for kernel in _gaussian_kernels())
    reach = len(gaussian) // 2
    padded = F.pad(opacity[None, None], (reach,) * 4, mode="replicate")  # [1, 1, H + 2 reach, W + 2 reach]
    across = F.conv2d(F.conv2d(padded, derivative[None, None, None]), gaussian[None, None, :, None])  # [1, 1, H, W]
    down = F.conv2d(F.conv2d(padded, gaussian[None, None, None]), derivative[None, None, :, None])  # [1, 1, H, W]
    return torch.hypot(across, down)[0, 0]  # [H, W]


def _gaussian_kernels() -> tuple[Tensor, Tensor]:
    """Return a Gaussian, cut off where it falls under 0.01, and its derivative; sums of squares are 1."""
    reach = math.ceil(_GRADIENT_SIGMA * math.sqrt(-2 * math.log(math.sqrt(2 * math.pi) * _GRADIENT_SIGMA * 1e-2)))
    x = torch.arange(-reach, reach + 1, dtype=torch.float64)
    gaussian = torch.exp(-(x**2) / (2 * _GRADIENT_SIGMA**2))
    derivative = x * gaussian
    return gaussian / gaussian.norm(), derivative / derivative.norm()


def _connectivity_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the difference in connectivity of each pixel: [H, W] and [H, W] -> [H, W]."""
    levels = torch.from_numpy(_connected_levels(torch.minimum(prediction, target).cpu().numpy())).to(target)

    def connectedness(opacity: Tensor) -> Tensor:
        excess = opacity - levels
        return 1 - torch.where(excess >= _DISCONNECTED, excess, 0.0)

    return (connectedness(prediction) - connectedness(target)).abs()


def _connected_levels(opacity: Float64Array) -> Float64Array:
    """Return up to which level, 0 to 1, each pixel belongs to the largest region of that opacity: [H, W] -> [H, W]."""
    levels: Float64Array = np.zeros(opacity.shape)
    inside: BoolArray = np.ones(opacity.shape, dtype=np.bool_)
    for step in range(1, _LEVELS + 1):
        inside &= _largest_region(opacity >= step / _LEVELS)
        levels[inside] = step / _LEVELS
    return levels


def _largest_region(mask: BoolArray) -> BoolArray:
    """Return the largest 4-connected region of a mask [H, W], the first of equals."""
    components = find_components(mask, 4)
    region: BoolArray = np.zeros(mask.size, dtype=np.bool_)
    if len(components.areas):
        largest = components.component == components.areas.argmax()
        region[run_positions(components.starts[largest], (components.ends - components.starts)[largest])] = True
    return region.reshape(mask.shape)


def unknown_band(opacity: Array, *, radius: int = 10) -> Tensor:
    """Return the region of a trimap made from a true matte: opacities [..., H, W] -> bool [..., H, W].

    It holds all pixels that have, up to `radius` rows and columns away, one that is not fully inside and one that is
    not fully outside.
    """
    alpha = as_double(opacity)
    maps = alpha.reshape(-1, 1, *alpha.shape[-2:])  # [B, 1, H, W]
    size = 2 * radius + 1
    highest = F.max_pool2d(maps, size, stride=1, padding=radius)
    lowest = -F.max_pool2d(-maps, size, stride=1, padding=radius)
    return ((highest > 0) & (lowest < 1)).reshape(alpha.shape)
