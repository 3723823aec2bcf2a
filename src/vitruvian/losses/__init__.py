"""Losses as pure functions: what each task learns from, with weights to tune and masks to respect.

Recipes (`heatmap_loss`, `segmentation_loss`, `normal_loss`, `albedo_loss`, `pointmap_loss`, `matting_loss`) return
`LossTerms`: the total to call ``backward()`` on, and every term by name. Single measures return a scalar tensor.
"""

from vitruvian.losses.dense import (
    ALBEDO_WEIGHTS,
    NORMAL_WEIGHTS,
    albedo_loss,
    dice_loss,
    normal_loss,
    segmentation_loss,
)
from vitruvian.losses.heatmap import heatmap_loss, heatmap_mse, heatmap_peaks
from vitruvian.losses.matting import MATTING_WEIGHTS, matting_loss
from vitruvian.losses.pointmap import POINTMAP_WEIGHTS, aligned_distance, canonical_scales, depth_steps, pointmap_loss
from vitruvian.losses.pretraining import (
    Center,
    ema_update,
    masked_reconstruction_loss,
    patchify,
    self_distillation_loss,
    sinkhorn,
)
from vitruvian.losses.terms import LossTerms

__all__ = [
    "ALBEDO_WEIGHTS",
    "MATTING_WEIGHTS",
    "NORMAL_WEIGHTS",
    "POINTMAP_WEIGHTS",
    "Center",
    "LossTerms",
    "albedo_loss",
    "aligned_distance",
    "canonical_scales",
    "depth_steps",
    "dice_loss",
    "ema_update",
    "heatmap_loss",
    "heatmap_mse",
    "heatmap_peaks",
    "masked_reconstruction_loss",
    "matting_loss",
    "normal_loss",
    "patchify",
    "pointmap_loss",
    "segmentation_loss",
    "self_distillation_loss",
    "sinkhorn",
]
