"""Loss of promptable segmentation (SAM 2): masks, their predicted IoU, and whether there is an object.

    logits [B, P, K, H, W] · targets [B, P, H, W] ─▶ focal and Dice of the best of K masks
    iou_scores [B, P, K] ─▶ distance to the true IoU of every mask
    object_scores [B, P, 1] ─▶ cross-entropy of "the object is visible"

P objects are prompted for each image and K masks predicted for each. Only the best of them gets a mask loss, so that
the others can represent other meanings of an ambiguous prompt; the IoU loss is over all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses.focal_dice import mask_dice_loss, sigmoid_focal_loss
from vitruvian.losses.terms import LossTerms, weighted_mean, weighted_sum
from vitruvian.ops.interpolate import bilinear

PROMPTED_MASK_WEIGHTS = {"focal": 20.0, "dice": 1.0, "iou": 1.0, "object_score": 1.0}  # of the training of SAM 2


class MaskPrediction(NamedTuple):
    """What a video model predicts for O objects in a frame.

    Attributes:
        logits: K masks of each object [K, h, w]. K differs among objects; it is 0 for an object with a mask prompt.
        ious: Their predicted IoU [K].
        object_scores: Logits for whether each object is visible [O, 1].
    """

    logits: list[Tensor]
    ious: list[Tensor]
    object_scores: Tensor


def clip_loss(
    predictions: Sequence[tuple[MaskPrediction, Tensor]], *, weights: Mapping[str, float] | None = None
) -> LossTerms:
    """Sum `prompted_mask_loss` over all predictions of a clip; each is a mean over its objects.

    Args:
        predictions: Predictions with the true masks of their frames [O, H, W], to whose size masks are enlarged.
        weights: Weights of terms other than `PROMPTED_MASK_WEIGHTS`.
    """
    parts: list[tuple[float, LossTerms]] = []  # with the share of their objects
    for prediction, truth in predictions:
        for count in sorted({len(masks) for masks in prediction.logits} - {0}):  # objects with as many masks
            chosen = [number for number, masks in enumerate(prediction.logits) if len(masks) == count]
            logits = torch.stack([prediction.logits[number] for number in chosen]).float()  # [O', K, h, w]
            large = bilinear(logits, truth.shape[-2:])
            ious = torch.stack([prediction.ious[number] for number in chosen])
            found = prompted_mask_loss(
                large[None], ious[None], prediction.object_scores[None, chosen], truth[None, chosen], weights=weights
            )
            parts.append((len(chosen) / len(prediction.logits), found))
    if not parts:
        raise InputError("predictions: expected at least one mask that was not a prompt, got none.")
    terms = {name: torch.stack([share * part.terms[name] for share, part in parts]).sum() for name in parts[0][1].terms}
    return LossTerms(torch.stack([share * part.total for share, part in parts]).sum(), terms)


def prompted_mask_loss(
    logits: Tensor,
    iou_scores: Tensor,
    object_scores: Tensor | None,
    targets: Tensor,
    *,
    counts: Tensor | None = None,
    weights: Mapping[str, float] | None = None,
) -> LossTerms:
    """Compare predicted masks with the true ones.

    Args:
        logits: Predicted masks [B, P, K, H, W].
        iou_scores: Their predicted IoU in [0, 1] [B, P, K].
        object_scores: Logits that there is an object [B, P, 1], or None where the model has no such head.
        targets: True masks of 0 and 1 [B, P, H, W]. An empty one means that the object is absent; only the object
            score has a loss then.
        counts: False for prompts that are padding [B, P].
        weights: Weights of terms other than `PROMPTED_MASK_WEIGHTS`.
    """
    _check_shapes(logits, iou_scores, targets)
    truth = (targets != 0).float()  # [B, P, H, W]
    present = truth.flatten(2).amax(dim=-1)  # [B, P]
    valid = torch.ones_like(present) if counts is None else counts.to(present.dtype)
    wide = logits.float()
    expanded = truth[:, :, None].expand_as(wide)  # [B, P, K, H, W]
    focal = sigmoid_focal_loss(wide.flatten(-2), expanded.flatten(-2))  # [B, P, K]
    dice = mask_dice_loss(wide.flatten(-2), expanded.flatten(-2))  # [B, P, K]
    factors = {**PROMPTED_MASK_WEIGHTS, **(weights or {})}
    best = (factors["focal"] * focal + factors["dice"] * dice).detach().argmin(dim=-1, keepdim=True)  # [B, P, 1]
    shown = valid * present
    functions = {
        "focal": lambda: weighted_mean(focal.gather(-1, best)[..., 0], shown),
        "dice": lambda: weighted_mean(dice.gather(-1, best)[..., 0], shown),
        "iou": lambda: weighted_mean((iou_scores.float() - _mask_iou(wide, expanded)).abs().mean(-1), shown),
    }
    if object_scores is not None:
        scores = object_scores[..., 0].float()  # [B, P]
        error = F.binary_cross_entropy_with_logits(scores, present, reduction="none")
        functions["object_score"] = lambda: weighted_mean(error, valid)
    return weighted_sum(functions, PROMPTED_MASK_WEIGHTS, weights, anchor=logits)


def _mask_iou(logits: Tensor, targets: Tensor) -> Tensor:
    """IoU of masks, thresholded at 0, with targets: [..., H, W] -> [...], without gradient; 1 where both are empty."""
    predicted, truth = (logits.detach() > 0).flatten(-2), (targets > 0).flatten(-2)
    union = (predicted | truth).sum(dim=-1)
    return torch.where(union > 0, (predicted & truth).sum(dim=-1) / union.clamp(min=1), 1.0)


def _check_shapes(logits: Tensor, iou_scores: Tensor, targets: Tensor) -> None:
    """Raise `InputError` unless the shapes of masks, scores and targets match."""
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
