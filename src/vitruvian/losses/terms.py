"""What all losses share: named terms with weights, and weighted means over pixels.

Conventions:

- Everything is computed in float32, whatever the dtype of the inputs.
- A mask holds the weights of the pixels: bool, or non-negative numbers; [B, 1, H, W] or [B, H, W]. A mean over pixels
  is ``Σ mask · value / Σ mask``, and 0, still attached to the graph, where all weights are 0.
- Targets may have any values, NaN too, where the weight is 0.
- `pred` and `target` are predictions and targets [B, C, H, W]; `weights` are weights of terms, by name, that replace
  the default ones; 0 omits a term.
- The L1 of a vector is the sum of its components' absolute values, so a mean over pixels does not divide by channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vitruvian.errors import ConfigError, InputError, check_names


@dataclass(frozen=True)
class LossTerms:
    """A loss and its terms.

    Attributes:
        total: Scalar to call ``backward()`` on: the weighted sum of the terms.
        terms: Each term by name, before its weight. Terms with weight 0 or without inputs are omitted.
    """

    total: Tensor
    terms: dict[str, Tensor]


def weighted_sum(
    terms: Mapping[str, Callable[[], Tensor]],
    defaults: Mapping[str, float],
    weights: Mapping[str, float] | None,
    *,
    anchor: Tensor,
) -> LossTerms:
    """Return the sum of the terms times `weights`, or `defaults` where those have none.

    Terms with weight 0 are not computed; `anchor` attaches an empty sum to the graph.
    """
    weights = weights or {}
    check_names("weights", weights, defaults, error=ConfigError)
    for name, value in weights.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise ConfigError(
                f"weights, {name}: expected a finite number of at least 0, got {value!r}. Use 0 to omit the term."
            )
    factors = {**defaults, **weights}
    computed = {name: term() for name, term in terms.items() if factors[name] != 0}
    total = zero_like(anchor)
    for name, term in computed.items():
        total = total + factors[name] * term
    return LossTerms(total=total, terms=computed)


def zero_like(anchor: Tensor) -> Tensor:
    """Return a float32 zero that depends on `anchor`, whatever values that holds."""
    return anchor.flatten()[:0].float().sum()  # []


def _pixel_weights(mask: Tensor | None, like: Tensor) -> Tensor:
    """Return a mask (None: all ones) as float32 [B, 1, H, W], for `like` [B, C, H, W]."""
    B, _, H, W = like.shape
    if mask is None:
        return torch.ones(B, 1, H, W, device=like.device)
    if mask.shape not in ((B, 1, H, W), (B, H, W)):
        raise InputError(
            f"mask: expected shape {[B, 1, H, W]} or {[B, H, W]}, got {list(mask.shape)}. "
            "Pass one weight for each pixel; resize the mask with nearest neighbors."
        )
    return mask.float().reshape(B, 1, H, W)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return ``Σ weights · values / Σ weights``, 0 where all weights are 0.

    Channels of images [B, C, H, W] with weights [B, 1, H, W] are summed, not averaged.
    """
    return (values * weights).sum() / safe_divisor(weights.sum())


def weighted_mean_per_image(values: Tensor, weights: Tensor) -> Tensor:
    """Average each channel of each image over its pixels: [B, C, H, W] with [B, 1, H, W] -> [B, C, 1, 1]."""
    total = (values * weights).sum(dim=(2, 3), keepdim=True)  # [B, C, 1, 1]
    return total / safe_divisor(weights.sum(dim=(2, 3), keepdim=True))


def safe_divisor(total: Tensor) -> Tensor:
    """Replace zeros by ones, for divisions."""
    return torch.where(total == 0, 1.0, total)


def clear_invalid(values: Tensor, weights: Tensor) -> Tensor:
    """Set values to zero where the weights are 0, so that NaN there reaches neither the loss nor its gradient."""
    return torch.where(weights > 0, values.float(), 0.0)


def sum_gradient_error(error: Tensor, weights: Tensor, *, power: int = 2) -> Tensor:
    """Return the mean squared difference of `error` [B, C, H, W] between neighbors along x plus that along y.

    As differences are linear, this compares the image gradients of prediction and target. The weight of a pair of
    neighbors is the product of their weights. `power` 1 is for absolute differences.
    """
    along_x = (error[..., :, 1:] - error[..., :, :-1]).abs() ** power  # [B, C, H, W-1]
    along_y = (error[..., 1:, :] - error[..., :-1, :]).abs() ** power  # [B, C, H-1, W]
    mean_x = weighted_mean(along_x, weights[..., :, 1:] * weights[..., :, :-1])
    return mean_x + weighted_mean(along_y, weights[..., 1:, :] * weights[..., :-1, :])


def sum_over_processes(values: Tensor) -> Tensor:
    """Sum a tensor over the processes of a distributed run, in place; in a single process, return it."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(values)
    return values


def check_maps(
    pred: Tensor, target: Tensor, mask: Tensor | None, *, channels: int, what: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Check images [B, channels, H, W]; return predictions, targets and pixel weights [B, 1, H, W] in float32.

    Pixels whose target is not finite have weight 0; targets are 0 there.
    """
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
    pred = pred.float()
    valid = _pixel_weights(mask, pred) * target.isfinite().all(dim=1, keepdim=True)  # [B, 1, H, W]
    return pred, clear_invalid(target, valid), valid
