"""Losses as pure functions: what each task learns from, with weights to tune and masks to respect.

Recipes (`heatmap_loss`, `segmentation_loss`, `normal_loss`, `albedo_loss`, `pointmap_loss`, `matting_loss`) return
`LossTerms`: the total to call ``backward()`` on, and every term by name. Single measures return a scalar tensor.
"""

from vitruvian.losses.dense import (
    AlbedoLossWeights,
    NormalLossWeights,
    albedo_loss,
    chromaticity,
    dice_loss,
    normal_loss,
    segmentation_loss,
)
from vitruvian.losses.heatmap import HeatmapLossWeights, heatmap_loss, heatmap_mse, heatmap_peaks
from vitruvian.losses.matting import MattingLossWeights, laplacian_error, matting_loss
from vitruvian.losses.pointmap import (
    PointmapLossWeights,
    aligned_distance,
    canonical_scales,
    depth_steps,
    multiscale_error,
    pixel_rays,
    pointmap_loss,
    pointmap_normal_error,
    pointmap_normals,
    silog_error,
)
from vitruvian.losses.pretraining import (
    Center,
    ema_update,
    masked_reconstruction_loss,
    patchify,
    self_distillation_loss,
    sinkhorn,
)
from vitruvian.losses.terms import LossTerms, LossWeights

__all__ = [
    "AlbedoLossWeights",
    "Center",
    "HeatmapLossWeights",
    "LossTerms",
    "LossWeights",
    "MattingLossWeights",
    "NormalLossWeights",
    "PointmapLossWeights",
    "albedo_loss",
    "aligned_distance",
    "canonical_scales",
    "chromaticity",
    "depth_steps",
    "dice_loss",
    "ema_update",
    "heatmap_loss",
    "heatmap_mse",
    "heatmap_peaks",
    "laplacian_error",
    "masked_reconstruction_loss",
    "matting_loss",
    "multiscale_error",
    "normal_loss",
    "patchify",
    "pixel_rays",
    "pointmap_loss",
    "pointmap_normal_error",
    "pointmap_normals",
    "segmentation_loss",
    "self_distillation_loss",
    "silog_error",
    "sinkhorn",
]
