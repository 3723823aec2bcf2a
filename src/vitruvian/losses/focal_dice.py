"""Focal, Dice and cross-entropy losses of binary masks: of matching pairs, and as costs of all pairs.

A cost compares every query with every target at P pixels or points. Each is written as one product of a [Q, P] and a
[P, T] matrix, without a [Q, T, P] tensor and without a second product for the background.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

FOCAL_ALPHA = 0.25  # weight of the foreground; the background has the rest
FOCAL_GAMMA = 2.0  # exponent that reduces the loss of easy pixels


def sigmoid_focal_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean focal loss of each mask, for targets of 0 and 1 as floats: [..., P] -> [...]."""
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    probability = logits.sigmoid()
    error = probability + targets - 2 * probability * targets  # one minus the probability of the true class
    return (loss * error**FOCAL_GAMMA * (1 - FOCAL_ALPHA + (2 * FOCAL_ALPHA - 1) * targets)).mean(-1)


def mask_dice_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """One minus the Dice coefficient of each mask, smoothed by one pixel: [..., P] -> [...]."""
    probability = logits.sigmoid()
    return 1 - (2 * (probability * targets).sum(-1) + 1) / (probability.sum(-1) + targets.sum(-1) + 1)


def class_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """Minus the probability of each target's class for each query: [Q, K + 1], [T] -> [Q, T]."""
    return -logits.float().softmax(-1)[:, labels]  # [Q, T]


def dice_cost(logits: Tensor, targets: Tensor) -> Tensor:
    """`mask_dice_loss` of each pair: [Q, P], [T, P] -> [Q, T]."""
    probability = logits.sigmoid()
    total = probability.sum(-1)[:, None] + targets.sum(-1)  # [Q, T]
    return 1 - (2 * probability @ targets.t() + 1) / (total + 1)


def cross_entropy_cost(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy of each pair: [Q, P], [T, P] -> [Q, T]."""
    # softplus(x) is the loss against 0; against 1 it is less by x.
    return (F.softplus(logits).sum(-1, keepdim=True) - logits @ targets.t()) / logits.shape[1]


def focal_cost(logits: Tensor, targets: Tensor) -> Tensor:
    """`sigmoid_focal_loss` of each pair: [Q, P], [T, P] -> [Q, T]."""
    probability = logits.sigmoid()
    foreground = FOCAL_ALPHA * (1 - probability) ** FOCAL_GAMMA * F.softplus(-logits)
    background = (1 - FOCAL_ALPHA) * probability**FOCAL_GAMMA * F.softplus(logits)
    return (background.sum(-1, keepdim=True) + (foreground - background) @ targets.t()) / logits.shape[1]
