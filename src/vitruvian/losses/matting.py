"""Loss of mattes: premultiplied color and alpha, compared directly, at several scales and composited.

A matte is [B, 4, H, W]: red, green, blue *premultiplied* by alpha, then alpha; all 0 to 1. Its composite over a
background is ``color + (1 − alpha) · background``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses import terms
from vitruvian.ops.interpolate import bilinear

_PYRAMID_LEVELS = 5
_MID_GRAY = 0.5
_BINOMIAL = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
# No recipe is published: these weights are our own.
MATTING_WEIGHTS = {"alpha": 1.0, "color": 1.0, "laplacian": 1.0, "composite": 1.0, "gradient": 1.0}


def matting_loss(
    pred: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    background: Tensor | None = None,
    weights: Mapping[str, float] | None = None,
) -> terms.LossTerms:
    """Return the loss for mattes.

    Terms, as masked means:

        alpha: ``|α − α*|``
        color: ``Σ_rgb |F − F*|`` of the premultiplied colors
        laplacian: L1 of a Laplacian pyramid of alpha, see `_laplacian_error`
        composite: ``Σ_rgb |(F + (1 − α) b) − (F* + (1 − α*) b)|``: the composite over the background b
        gradient: squared difference of the image gradients of alpha, along x plus along y

    Args:
        pred: Predicted matte [B, 4, H, W], after the sigmoid.
        target: Target matte [B, 4, H, W].
        mask: Weight of each pixel [B, 1, H, W] or [B, H, W].
        background: Image to composite over, broadcastable to [B, 3, H, W], 0 to 1; by default mid-gray. A random color
            for each image, ``torch.rand(B, 3, 1, 1)``, penalizes halos of every hue.
        weights: Weights of terms other than `MATTING_WEIGHTS`.
    """
    pred, target, valid = terms.check_maps(pred, target, mask, channels=4, what="mattes")
    behind = _check_background(background, pred)  # broadcasts to [B, 3, H, W]
    error = terms.clear_invalid(pred - target, valid)  # [B, 4, H, W]
    color, alpha = error[:, :3], error[:, 3:]  # [B, 3, H, W], [B, 1, H, W]
    functions = {
        "alpha": lambda: terms.weighted_mean(alpha.abs(), valid),
        "color": lambda: terms.weighted_mean(color.abs(), valid),
        "laplacian": lambda: _laplacian_error(alpha, valid),
        "composite": lambda: terms.weighted_mean((color - alpha * behind).abs(), valid),
        "gradient": lambda: terms.sum_gradient_error(alpha, valid),
    }
    return terms.weighted_sum(functions, MATTING_WEIGHTS, weights, anchor=pred)


def _laplacian_error(error: Tensor, weights: Tensor) -> Tensor:
    """L1 of the Laplacian pyramid of an error [B, C, H, W]: ``1/L Σ_l 2^l · mean |band_l|``, l from 0 (finest).

    A band is a level minus its blur at half the size; the last band is the coarsest level. Small images have fewer
    levels. Each band is averaged over the share of weighted pixels.
    """
    share = weights.mean()
    level = error * weights  # [B, C, H, W]
    bands: list[Tensor] = []
    while len(bands) < _PYRAMID_LEVELS - 1 and min(level.shape[-2:]) > 1:
        coarser = _pyramid_down(level)  # [B, C, h/2, w/2]
        smooth = bilinear(coarser, level.shape[-2:])  # [B, C, h, w]
        bands.append(level - smooth)
        level = coarser
    bands.append(level)
    means = torch.stack([2**i * band.abs().sum(dim=1).mean() for i, band in enumerate(bands)])  # [L]
    return means.mean() / terms.safe_divisor(share)


def _pyramid_down(image: Tensor) -> Tensor:
    """Blur with the binomial 1 4 6 4 1 along both axes and keep every other pixel: [B, C, H, W] -> half the size."""
    H, W = image.shape[-2:]
    padded = F.pad(image, (2, 2, 2, 2), mode="replicate")  # [B, C, H+4, W+4]
    # Sums of slices, since autocast would compute a convolution in half precision.
    half_height = sum(
        (tap * padded[..., i : i + H : 2, :] for i, tap in enumerate(_BINOMIAL)), start=padded.new_zeros(())
    )
    return sum((tap * half_height[..., i : i + W : 2] for i, tap in enumerate(_BINOMIAL)), start=padded.new_zeros(()))


def _check_background(background: Tensor | None, pred: Tensor) -> Tensor:
    if background is None:
        return pred.new_full((1, 3, 1, 1), _MID_GRAY)
    B, _, H, W = pred.shape
    shape = background.shape
    if len(shape) != 4 or any(have not in (1, want) for have, want in zip(shape, (B, 3, H, W), strict=True)):
        raise InputError(
            f"background: expected a shape that broadcasts to {[B, 3, H, W]}, got {list(shape)}. "
            "Pass an image, or a color as [1, 3, 1, 1]."
        )
    return background.float()
