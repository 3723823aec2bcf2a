"""Losses of all tasks, with weights to tune and masks to respect.

Recipes (`heatmap_loss`, `segmentation_loss`, `normal_loss`, `albedo_loss`, `pointmap_loss`, `matting_loss`,
`people_loss`, `prompted_mask_loss`) are functions that return `LossTerms`: the total to call ``backward()`` on, and
every term by name. Single measures return a scalar tensor. Two losses have a state: `MaskSetLoss`, the module that
MaskFormer and Mask2Former train with, and `TeacherCenter`, the running mean of a teacher, which `ema_update` changes.
"""

from vitruvian.losses.classification import classification_loss
from vitruvian.losses.dense import (
    ALBEDO_WEIGHTS,
    NORMAL_WEIGHTS,
    albedo_loss,
    dice_loss,
    normal_loss,
    segmentation_loss,
)
from vitruvian.losses.detection import PeopleTarget, draw_people, people_loss
from vitruvian.losses.heatmap import heatmap_loss, heatmap_mse, heatmap_peaks
from vitruvian.losses.mask_comparison import PixelComparison, PointComparison
from vitruvian.losses.mask_set import MaskLossWeights, MaskSetLoss
from vitruvian.losses.matting import MATTING_WEIGHTS, matting_loss
from vitruvian.losses.pointmap import POINTMAP_WEIGHTS, aligned_distance, canonical_scales, depth_steps, pointmap_loss
from vitruvian.losses.pretraining import (
    TeacherCenter,
    ema_update,
    masked_reconstruction_loss,
    patchify,
    self_distillation_loss,
    sinkhorn,
)
from vitruvian.losses.prompted_masks import PROMPTED_MASK_WEIGHTS, prompted_mask_loss
from vitruvian.losses.terms import LossTerms

__all__ = [
    "ALBEDO_WEIGHTS",
    "MATTING_WEIGHTS",
    "NORMAL_WEIGHTS",
    "POINTMAP_WEIGHTS",
    "PROMPTED_MASK_WEIGHTS",
    "LossTerms",
    "MaskLossWeights",
    "MaskSetLoss",
    "PeopleTarget",
    "PixelComparison",
    "PointComparison",
    "TeacherCenter",
    "albedo_loss",
    "aligned_distance",
    "canonical_scales",
    "classification_loss",
    "depth_steps",
    "dice_loss",
    "draw_people",
    "ema_update",
    "heatmap_loss",
    "heatmap_mse",
    "heatmap_peaks",
    "masked_reconstruction_loss",
    "matting_loss",
    "normal_loss",
    "patchify",
    "people_loss",
    "pointmap_loss",
    "prompted_mask_loss",
    "segmentation_loss",
    "self_distillation_loss",
    "sinkhorn",
]
