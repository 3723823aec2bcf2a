"""What all losses share: named terms with weights, and weighted means over pixels.

Conventions:

- Everything is computed in float32, whatever the dtype of the inputs.
- A mask holds the weights of the pixels: bool, or non-negative numbers; [B, 1, H, W] or [B, H, W]. A mean over pixels
  is ``Σ mask · value / Σ mask``, and 0, still attached to the graph, where all weights are 0.
- Targets may have any values, NaN too, where the weight is 0.
- The L1 of a vector is the sum of its components' absolute values, so a mean over pixels does not divide by channels.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.errors import ConfigError, InputError


@dataclass(frozen=True)
class LossTerms:
    """A loss and its terms.

    Attributes:
        total: Scalar to call ``backward()`` on: the weighted sum of the terms.
        terms: Each term by name, before its weight. Terms with weight 0 or without inputs are omitted.
    """

    total: Tensor
    terms: dict[str, Tensor]


@dataclass(frozen=True)
class LossWeights:
    """Base of the weights of a recipe: one finite, non-negative number for each term; 0 omits the term."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ConfigError(
                    f"{type(self).__name__}.{field.name}: expected a finite number of at least 0, got {value!r}. "
                    "Use 0 to omit the term."
                )


def weigh(weights: LossWeights, terms: Mapping[str, Callable[[], Tensor]], *, anchor: Tensor) -> LossTerms:
    """Return the weighted sum of the terms whose weight is not 0; `anchor` keeps an empty sum attached to the graph."""
    computed = {name: term() for name, term in terms.items() if getattr(weights, name) != 0}
    total = zero_like(anchor)
    for name, value in computed.items():
        total = total + getattr(weights, name) * value
    return LossTerms(total=total, terms=computed)


def zero_like(anchor: Tensor) -> Tensor:
    """Return a float32 zero that depends on `anchor`, whatever values that holds."""
    return anchor.flatten()[:0].float().sum()  # []


def pixel_weights(mask: Tensor | None, like: Tensor) -> Tensor:
    """Return a mask (None: all ones) as float32 [B, 1, H, W], for `like` [B, C, H, W]."""
    B, _, H, W = like.shape
    if mask is None:
        return torch.ones(B, 1, H, W, device=like.device)
    if mask.shape not in ((B, 1, H, W), (B, H, W)):
        raise InputError(
            f"mask: expected shape {[B, 1, H, W]} or {[B, H, W]}, got {list(mask.shape)}. "
            "Pass one weight for each pixel; resize the mask with nearest neighbours."
        )
    return mask.float().reshape(B, 1, H, W)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Average [B, C, H, W] over pixels with weights [B, 1, H, W], channels summed; 0 where all weights are 0."""
    return (values * weights).sum() / nonzero(weights.sum())


def weighted_mean_per_image(values: Tensor, weights: Tensor) -> Tensor:
    """Average each channel of each image over its pixels: [B, C, H, W] with [B, 1, H, W] -> [B, C, 1, 1]."""
    total = (values * weights).sum(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
    return total / nonzero(weights.sum(dim=(2, 3), keepdim=True))


def nonzero(total: Tensor) -> Tensor:
    """Replace zeros by ones, for divisions."""
    return torch.where(total == 0, 1.0, total)


def clear_invalid(values: Tensor, weights: Tensor) -> Tensor:
    """Set values to zero where the weights are 0, so that NaN there reaches neither the loss nor its gradient."""
    return torch.where(weights > 0, values.float(), 0.0)


def sum_gradient_error(error: Tensor, weights: Tensor) -> Tensor:
    """Return the mean squared difference of `error` [B, C, H, W] between neighbours along x plus that along y.

    As differences are linear, this compares the image gradients of prediction and target. The weight of a pair of
    neighbours is the product of their weights.
    """
    along_x = (error[..., :, 1:] - error[..., :, :-1]).square()  # [B, C, H, W-1]
    along_y = (error[..., 1:, :] - error[..., :-1, :]).square()  # [B, C, H-1, W]
    mean_x = weighted_mean(along_x, weights[..., :, 1:] * weights[..., :, :-1])
    return mean_x + weighted_mean(along_y, weights[..., 1:, :] * weights[..., :-1, :])


def check_image_pair(pred: Tensor, target: Tensor, *, channels: int, what: str) -> None:
    """Raise `InputError` unless predictions and targets are both [B, channels, H, W]."""
    if pred.ndim != 4 or pred.shape[1] != channels:
        raise InputError(
            f"predicted {what}: expected shape [B, {channels}, H, W], got {list(pred.shape)}. "
            "Pass the output of the model."
        )
    if target.shape != pred.shape:
        raise InputError(
            f"target {what}: expected the shape of the prediction, {list(pred.shape)}, got {list(target.shape)}. "
            "Resize the labels to the size of the model's output."
        )
    if not target.is_floating_point():
        raise InputError(
            f"target {what}: expected floating point, got {target.dtype}. Convert it with .float(), and rescale bytes."
        )
