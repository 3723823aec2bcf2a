"""Metrics, one class each: `update` adds predictions and targets, `merge` another instance, `compute` returns scores.

| what | class |
|---|---|
| keypoints | `PCK` of known people, `KeypointAP` (OKS) of detected people |
| parts, silhouettes | `MeanIoU`, `ForegroundIoU` |
| normals, depth, 3D points, mattes | `AngularError`, `DepthError`, `PointError`, `MattingError` |
| boxes of people, objects by box or mask, segments | `BoxAP`, `MeanAveragePrecision`, `PanopticQuality` |

All take numpy arrays and torch tensors, hold numbers but no images, and can be pickled to be merged across processes.
`Report` turns their scores into tables and JSON.
"""

from vitruvian.training.evaluation.average_precision import (
    BoxAP,
    BoxAPScores,
    MeanAveragePrecision,
    MeanAveragePrecisionScores,
)
from vitruvian.training.evaluation.geometry import (
    AngularError,
    AngularErrorScores,
    DepthError,
    DepthErrorScores,
    PointError,
    PointErrorScores,
)
from vitruvian.training.evaluation.iou import ForegroundIoU, ForegroundIoUScores, MeanIoU, MeanIoUScores
from vitruvian.training.evaluation.keypoints import (
    PCK,
    KeypointAP,
    KeypointAPScores,
    PCKScores,
    box_length,
    head_length,
    layout_groups,
    layout_sigmas,
    segment_length,
    torso_length,
)
from vitruvian.training.evaluation.matting import MattingError, MattingErrorScores, unknown_band
from vitruvian.training.evaluation.panoptic import PanopticQuality, PanopticReport, PanopticScores
from vitruvian.training.evaluation.report import Goal, Report

__all__ = [
    "PCK",
    "AngularError",
    "AngularErrorScores",
    "BoxAP",
    "BoxAPScores",
    "DepthError",
    "DepthErrorScores",
    "ForegroundIoU",
    "ForegroundIoUScores",
    "Goal",
    "KeypointAP",
    "KeypointAPScores",
    "MattingError",
    "MattingErrorScores",
    "MeanAveragePrecision",
    "MeanAveragePrecisionScores",
    "MeanIoU",
    "MeanIoUScores",
    "PCKScores",
    "PanopticQuality",
    "PanopticReport",
    "PanopticScores",
    "PointError",
    "PointErrorScores",
    "Report",
    "box_length",
    "head_length",
    "layout_groups",
    "layout_sigmas",
    "segment_length",
    "torso_length",
    "unknown_band",
]
