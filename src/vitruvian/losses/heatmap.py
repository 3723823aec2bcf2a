"""Losses of pose heatmaps: weighted squared error, and the divergence of their peaks; `draw_heatmaps` draws targets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.losses.terms import LossTerms, weighted_mean
from vitruvian.tensor_cache import constant

MSE_WEIGHT = 10.0  # of the published recipe, for heatmaps that peak at 1


def heatmap_loss(pred: Tensor, target: Tensor, weights: Tensor | None = None) -> LossTerms:
    """Return the loss of the pose recipe, `heatmap_mse` × 10; the arguments are those of `heatmap_mse`."""
    mse = heatmap_mse(pred, target, weights)
    return LossTerms(total=MSE_WEIGHT * mse, terms={"mse": mse})


def heatmap_mse(pred: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the (weighted) mean squared error of heatmaps.

    ``Σ w · (pred − target)² / Σ w`` over all joints and pixels, or the plain mean without weights: the number that
    ``torch.nn.functional.mse_loss(pred, target, weight=w)`` gives, but 0 instead of NaN where all weights are 0. (The
    original training code divides by the number of joints and pixels instead of Σ w.)

    Args:
        pred: Predicted heatmaps [B, J, H, W].
        target: Target heatmaps [B, J, H, W].
        weights: Non-negative weight of each joint [B, J] or [B, J, 1, 1], or of each pixel [B, J, H, W].
    """
    if pred.ndim != 4 or target.shape != pred.shape:
        raise InputError(
            f"heatmaps: expected prediction and target of one shape [B, J, H, W], got {list(pred.shape)} and "
            f"{list(target.shape)}. Draw the targets at the size of the model's heatmaps."
        )
    pred, target = pred.float(), target.float()
    if weights is None:
        return F.mse_loss(pred, target)
    B, J, H, W = pred.shape
    if weights.shape not in ((B, J), (B, J, 1, 1), (B, J, H, W)):
        raise InputError(
            f"heatmap weights: expected shape {[B, J]}, {[B, J, 1, 1]} or {[B, J, H, W]}, got {list(weights.shape)}. "
            "Pass the visibility of each joint: 0 leaves it out."
        )
    weights = (weights[:, :, None, None] if weights.ndim == 2 else weights).float().expand_as(pred)  # [B, J, H, W]
    return weighted_mean((pred - target).square(), weights)


def heatmap_peaks(pred: Tensor, target: Tensor, weights: Tensor, *, sharpness: float = 12.0) -> Tensor:
    """Return the divergence of the peaks of heatmaps from the target, in nats.

    ``Σ w · KL(softmax(s · target) ‖ softmax(s · pred)) / Σ w`` over joints, with the softmax over a joint's pixels and
    s the sharpness. It is 0 for a perfect heatmap, like `heatmap_mse`, but a flat heatmap has a strong gradient
    toward the peak, which the squared error of an almost empty map lacks.

    Args:
        pred: Predicted heatmaps [B, J, H, W].
        target: Target heatmaps [B, J, H, W], with peaks of 1.
        weights: Weight of each joint [B, J].
        sharpness: Factor of the heatmaps; larger values put more weight on the peak.
    """
    if weights.shape != pred.shape[:2]:
        raise InputError(f"heatmap weights: expected shape {list(pred.shape[:2])}, got {list(weights.shape)}.")
    log_p, log_q = ((sharpness * maps.float()).flatten(2).log_softmax(dim=2) for maps in (target, pred))  # [B, J, H·W]
    divergence = F.kl_div(log_q, log_p, log_target=True, reduction="none").sum(dim=2)  # [B, J]
    return weighted_mean(divergence, weights)


def draw_heatmaps(points_xy: Tensor, visible: Tensor, *, size_hw: SizeHW, sigma: float) -> tuple[Tensor, Tensor]:
    """Draw UDP targets: a Gaussian of height 1 around each point, truncated at three sigma.

    Args:
        points_xy: Points in heatmap pixels [N, J, 2].
        visible: Which of them to draw [N, J].
        size_hw: Height and width of the heatmaps.
        sigma: Standard deviation of the Gaussian in heatmap pixels.

    Returns:
        Heatmaps [N, J, H, W] and weights [N, J]: 0 where a point is not visible or too far outside.
    """
    height, width = size_hw
    radius = int(sigma * 3)
    center = (points_xy + 0.5).long()  # [N, J, 2]
    limit = constant((width, height), points_xy.device)
    outside = ((center - radius >= limit) | (center + radius + 1 < 0)).any(-1)  # [N, J]
    weights = visible.bool() & ~outside  # [N, J]
    profiles = []
    for axis, side in ((0, width), (1, height)):
        pixels = torch.arange(side, device=points_xy.device)
        distance = pixels - points_xy[..., axis, None]  # [N, J, side]
        near = (pixels - center[..., axis, None]).abs() <= radius
        profiles.append(torch.exp(-distance.square() / (2 * sigma**2)) * near)
    across, down = profiles
    return torch.einsum("njy,njx->njyx", down * weights[..., None], across), weights.float()
