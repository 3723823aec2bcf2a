"""What promptable segmentation learns from: masks, their predicted quality, and whether there is an object.

    logits [B, P, K, H, W] · targets [B, P, H, W] ─▶ focal and Dice of the best of K masks
    iou_scores [B, P, K] ─▶ distance to the true IoU of every mask
    object_scores [B, P, 1] ─▶ cross-entropy of «the object is there»

P objects are prompted for each picture and K masks proposed for each. Only the mask that fits best is pulled towards
the target, so that the others stay free for other readings of an ambiguous prompt; the quality of all is learnt.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses.terms import LossTerms, LossWeights, weigh, zero_like


@dataclass(frozen=True)
class PromptedMaskLossWeights(LossWeights):
    """Weights of the terms, by default those that SAM 2 was trained with."""

    focal: float = 20.0
    dice: float = 1.0
    iou: float = 1.0
    object_score: float = 1.0


DEFAULT_WEIGHTS = PromptedMaskLossWeights()


def prompted_mask_loss(
    logits: Tensor,
    iou_scores: Tensor,
    object_scores: Tensor | None,
    targets: Tensor,
    *,
    counts: Tensor | None = None,
    weights: PromptedMaskLossWeights = DEFAULT_WEIGHTS,
) -> LossTerms:
    """Compare proposed masks with the true ones.

    Args:
        logits: Proposed masks [B, P, K, H, W].
        iou_scores: Their predicted IoU in [0, 1] [B, P, K].
        object_scores: Logits that there is an object [B, P, 1], or None where the model has no such head.
        targets: True masks of 0 and 1 [B, P, H, W]; an empty one says that the object is absent, which only the
            object score learns from.
        counts: Which prompts count [B, P], bool; padding does not.
        weights: Weights of the terms.
    """
    check_shapes(logits, iou_scores, targets)
    truth = (targets != 0).float()  # [B, P, H, W]
    present = truth.flatten(2).amax(dim=-1)  # [B, P]
    valid = torch.ones_like(present) if counts is None else counts.to(present.dtype)
    wide = logits.float()
    spread = truth[:, :, None].expand_as(wide)  # [B, P, K, H, W]
    focal = mask_focal_loss(wide, spread)  # [B, P, K]
    dice = mask_dice_loss(wide, spread)  # [B, P, K]
    best = (weights.focal * focal + weights.dice * dice).detach().argmin(dim=-1, keepdim=True)  # [B, P, 1]

    def mean(values: Tensor, which: Tensor) -> Tensor:
        """Mean of [B, P] over the prompts that count; 0 where none does."""
        return (values * which).sum() / which.sum().clamp(min=1)

    def object_term() -> Tensor:
        if object_scores is None:
            return zero_like(logits)
        return mean(object_score_loss(object_scores[..., 0], present), valid)

    return weigh(
        weights,
        {
            "focal": lambda: mean(focal.gather(-1, best)[..., 0], valid * present),
            "dice": lambda: mean(dice.gather(-1, best)[..., 0], valid * present),
            "iou": lambda: mean(iou_regression_loss(iou_scores, wide, spread).mean(dim=-1), valid * present),
            "object_score": object_term,
        },
        anchor=logits,
    )


def mask_focal_loss(logits: Tensor, targets: Tensor, *, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Cross-entropy that dwells on hard pixels, mean over a mask: [..., H, W] to [...].

    Args:
        logits: Mask logits.
        targets: 0 and 1, as floats.
        alpha: Weight of pixels on the object; those off it get 1 − alpha. Negative for no balance.
        gamma: How much easy pixels are played down.
    """
    error = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    inside = logits.sigmoid()
    missed = inside * (1 - targets) + (1 - inside) * targets
    loss = error * missed**gamma
    if alpha >= 0:
        loss = loss * (alpha * targets + (1 - alpha) * (1 - targets))
    return loss.flatten(-2).mean(dim=-1)


def mask_dice_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """One minus the Dice overlap of a soft mask with its target, smoothed by one pixel: [..., H, W] to [...]."""
    inside, truth = logits.sigmoid().flatten(-2), targets.flatten(-2)
    overlap = 2 * (inside * truth).sum(dim=-1)
    return 1 - (overlap + 1) / (inside.sum(dim=-1) + truth.sum(dim=-1) + 1)


def mask_iou(logits: Tensor, targets: Tensor) -> Tensor:
    """IoU of a mask cut at 0 with its target: [..., H, W] to [...], without gradient; 1 where both are empty."""
    found, truth = (logits.detach() > 0).flatten(-2), (targets > 0).flatten(-2)
    union = (found | truth).sum(dim=-1)
    return torch.where(union > 0, (found & truth).sum(dim=-1) / union.clamp(min=1), 1.0)


def iou_regression_loss(predicted: Tensor, logits: Tensor, targets: Tensor, *, squared: bool = False) -> Tensor:
    """Distance of a predicted IoU [...] to the true one of masks [..., H, W]: absolute, or squared."""
    error = predicted.float() - mask_iou(logits, targets)
    return error.square() if squared else error.abs()


def object_score_loss(logits: Tensor, present: Tensor) -> Tensor:
    """Cross-entropy of object logits [...] with whether the object is there (0 or 1) [...]."""
    return F.binary_cross_entropy_with_logits(logits.float(), present.float(), reduction="none")


def check_shapes(logits: Tensor, iou_scores: Tensor, targets: Tensor) -> None:
    """Raise `InputError` unless masks, scores and targets belong together."""
    if logits.ndim != 5 or iou_scores.shape != logits.shape[:3]:
        raise InputError(
            "logits and iou_scores: expected [B, P, K, H, W] and [B, P, K], "
            f"got {list(logits.shape)} and {list(iou_scores.shape)}. Pass a model's pred_masks and iou_scores."
        )
    if targets.shape != (*logits.shape[:2], *logits.shape[3:]):
        raise InputError(
            f"targets: expected {[*logits.shape[:2], *logits.shape[3:]]}, one mask for each prompted object, "
            f"got {list(targets.shape)}."
        )
