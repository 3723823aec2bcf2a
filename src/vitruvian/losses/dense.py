"""Losses of dense tasks: body-part segmentation, surface normals, albedo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from vitruvian.errors import InputError
from vitruvian.losses import terms
from vitruvian.ops.interpolate import bilinear

# Shorter predictions are not normalized, so that the gradient of a zero vector stays finite and small.
_MIN_NORMAL = 1e-3
_MIN_BRIGHTNESS = 1e-3
_DICE_SMOOTHING = 1e-3

# The published weights.
NORMAL_WEIGHTS = {"cosine": 10.0, "l1": 1.0, "gradient": 10.0}
ALBEDO_WEIGHTS = {"l1": 2.0, "gradient": 2.0, "chromaticity": 1.0}


def segmentation_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    ignore_index: int = 255,
    class_weights: Tensor | Sequence[float] | None = None,
    dice_weight: float = 0.0,
) -> terms.LossTerms:
    """Return cross-entropy, and Dice where `dice_weight` is not 0.

    Logits of another size than the labels are resized bilinearly first. With the defaults the total is torch's
    ``cross_entropy(resized_logits, labels, ignore_index=ignore_index)``, but 0 instead of NaN where every pixel is
    ignored.

    Terms:
        cross_entropy: ``Σ w[label] · −log p[label] / Σ w[label]`` over the pixels that are not ignored.
        dice: see `dice_loss`.

    Args:
        logits: [B, K, h, w].
        labels: Class of each pixel [B, H, W], an integer from 0 to K − 1, or `ignore_index`.
        ignore_index: Label of the pixels to ignore.
        class_weights: Weight of each class in the cross-entropy [K].
        dice_weight: Weight of the Dice term; the cross-entropy has weight 1. The published recipe has 1, and class
            weights.
    """
    _check_labels(labels, logits, ignore_index=ignore_index)
    logits = bilinear(logits.float(), labels.shape[-2:])  # [B, K, H, W]
    labels = labels.long()
    functions = {
        "cross_entropy": lambda: cross_entropy(logits, labels, ignore_index=ignore_index, class_weights=class_weights),
        "dice": lambda: dice_loss(logits, labels, ignore_index=ignore_index),
    }
    weights = {"cross_entropy": 1.0, "dice": 0.0}
    return terms.weighted_sum(functions, weights, {"dice": dice_weight}, anchor=logits)


def cross_entropy(
    logits: Tensor, labels: Tensor, *, ignore_index: int = 255, class_weights: Tensor | Sequence[float] | None = None
) -> Tensor:
    """Return the cross-entropy of `segmentation_loss` for logits of the size of the labels, which are not checked."""
    K = logits.shape[1]
    valid = labels != ignore_index  # [B, H, W]
    if class_weights is None:
        summed = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum")
        return summed / valid.sum().clamp(min=1)
    per_class = torch.as_tensor(class_weights, dtype=torch.float32, device=logits.device)  # [K]
    if per_class.shape != (K,):
        raise InputError(
            f"class_weights: expected {K} numbers, one for each class, got shape {list(per_class.shape)}. "
            "Leave it out to weight all classes alike."
        )
    summed = F.cross_entropy(logits, labels, weight=per_class, ignore_index=ignore_index, reduction="sum")
    return summed / terms.safe_divisor(per_class[labels.where(valid, 0)].where(valid, 0.0).sum())


def dice_loss(logits: Tensor, labels: Tensor, *, ignore_index: int = 255) -> Tensor:
    """Return 1 − Dice, averaged over the foreground classes present in an image, then over images that have any.

    For class k of an image, with p its softmax probability and g its 0/1 label at each pixel that is not ignored:
    ``Dice = (2 Σ p·g + s) / (Σ p² + Σ g² + s)``, s = 1e-3. Class 0, the background, and classes without a label in the
    image are left out.

    Args:
        logits: [B, K, H, W].
        labels: [B, H, W], integers.
        ignore_index: Label of the pixels to ignore.
    """
    B, K, _, _ = logits.shape
    valid = (labels != ignore_index).flatten(1)  # [B, HW]
    index = labels.long().flatten(1).where(valid, 0)  # [B, HW]; class 0 is left out in the end
    probability = logits.float().softmax(dim=1).flatten(2)  # [B, K, HW]
    weight = valid.float()  # [B, HW]
    target = probability.gather(1, index.unsqueeze(1)).squeeze(1)  # [B, HW]
    overlap = target.new_zeros(B, K).scatter_add(1, index, target)  # [B, K]
    area = target.new_zeros(B, K).scatter_add(1, index, weight)  # [B, K]
    squared = (probability.square() * weight.unsqueeze(1)).sum(dim=2)  # [B, K]
    dice = (2 * overlap + _DICE_SMOOTHING) / (squared + area + _DICE_SMOOTHING)  # [B, K]
    present = (area > 0).float()  # [B, K]
    present[:, 0] = 0
    counted = present.sum(dim=1)  # [B]
    per_image = ((1 - dice) * present).sum(dim=1) / terms.safe_divisor(counted)  # [B]
    return terms.weighted_mean(per_image, (counted > 0).float())


def _check_labels(labels: Tensor, logits: Tensor, *, ignore_index: int) -> None:
    """Raise `InputError` for label maps that do not match the logits; values are not checked under torch.compile."""
    if logits.ndim != 4:
        raise InputError(f"logits: expected shape [B, K, h, w], got {list(logits.shape)}. Pass the model's output.")
    if labels.ndim != 3 or labels.shape[0] != logits.shape[0]:
        raise InputError(
            f"labels: expected shape [{logits.shape[0]}, H, W], got {list(labels.shape)}. "
            "Pass one class for each pixel, without a channel axis."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"labels: expected integers, got {labels.dtype}. Convert class maps with .long().")
    if torch.compiler.is_compiling():
        return
    classes = logits.shape[1]
    wide = labels.long()
    wrong = (wide != ignore_index) & ((wide < 0) | (wide >= classes))
    if bool(wrong.any()):
        values = wide[wrong]
        worst = values[(values - (classes - 1) / 2).abs().argmax()]
        raise InputError(
            f"labels: expected classes 0 to {classes - 1} or ignore_index {ignore_index}, got {int(worst)} "
            f"({int(wrong.sum())} pixels out of range). Check the number of classes, or mark those pixels as ignored."
        )


def normal_loss(
    pred: Tensor, target: Tensor, mask: Tensor | None = None, *, weights: Mapping[str, float] | None = None
) -> terms.LossTerms:
    """Return the loss of the recipe for surface normals.

    The target n is normalized; pixels where it is zero or not finite are ignored. The prediction p is not normalized,
    except for the cosine. Terms, as masked means:

        cosine: ``1 − p·n / |p|``
        l1: ``Σ_xyz |p − n|``, which also moves |p| to 1
        gradient: squared difference of the image gradients of p and n, Σ over xyz; along x plus along y

    Normals are [B, 3, H, W], of any length. See `terms` for the other arguments.
    """
    pred, target, valid = terms.check_maps(pred, target, mask, channels=3, what="normals")
    length = torch.linalg.vector_norm(target, dim=1, keepdim=True)  # [B, 1, H, W]
    known = length.isfinite() & (length > 0)
    valid = valid * known  # [B, 1, H, W]
    unit = terms.clear_invalid(target, valid) / torch.where(known, length, 1.0)  # [B, 3, H, W]
    error = pred - unit  # [B, 3, H, W]

    def cosine() -> Tensor:
        direction = F.normalize(pred, dim=1, eps=_MIN_NORMAL)  # [B, 3, H, W]
        return terms.weighted_mean(1 - (direction * unit).sum(dim=1, keepdim=True), valid)

    functions = {
        "cosine": cosine,
        "l1": lambda: terms.weighted_mean(error.abs(), valid),
        "gradient": lambda: terms.sum_gradient_error(error, valid),
    }
    return terms.weighted_sum(functions, NORMAL_WEIGHTS, weights, anchor=pred)


def albedo_loss(
    pred: Tensor, target: Tensor, mask: Tensor | None = None, *, weights: Mapping[str, float] | None = None
) -> terms.LossTerms:
    """Return the loss of the recipe for albedo.

    Terms, as masked means over the pixels with a finite target:

        l1: ``Σ_rgb |p − a|``
        gradient: squared difference of the image gradients of p and a, Σ over rgb; mean of along x and along y
        chromaticity: ``Σ_rgb |c(p) − c(a)|`` with ``c(x) = x / (Σ_rgb x + 1e-3)`` and p clamped to [0, 1]: the color
            regardless of brightness

    Albedo is [B, 3, H, W]; predictions are those before they are clamped to [0, 1]. See `terms` for the other
    arguments.
    """
    pred, target, valid = terms.check_maps(pred, target, mask, channels=3, what="albedo")
    error = pred - target  # [B, 3, H, W]
    functions = {
        "l1": lambda: terms.weighted_mean(error.abs(), valid),
        "gradient": lambda: terms.sum_gradient_error(error, valid) / 2,
        "chromaticity": lambda: terms.weighted_mean(
            (_chromaticity(pred.clamp(0, 1)) - _chromaticity(target)).abs(), valid
        ),
    }
    return terms.weighted_sum(functions, ALBEDO_WEIGHTS, weights, anchor=pred)


def _chromaticity(rgb: Tensor) -> Tensor:
    """Divide colors by their brightness: [B, 3, H, W] -> [B, 3, H, W], components that add up to (almost) 1."""
    return rgb / (rgb.sum(dim=1, keepdim=True) + _MIN_BRIGHTNESS)
