"""Metrics, one class each: `update` adds predictions and targets, `merge` another instance, `compute` returns scores.

| what | class |
|---|---|
| keypoints | `PCK` of known people, `KeypointAP` (OKS) of detected people |
| parts, person masks | `MeanIoU`, `ForegroundIoU` |
| normals, depth, 3D points, mattes | `AngularError`, `DepthError`, `PointError`, `MattingError` |
| boxes of people, objects by box or mask, segments | `BoxAP`, `MeanAveragePrecision`, `PanopticQuality` |

All take numpy arrays and torch tensors, hold numbers but no images, and can be pickled to be merged across processes.
`ScoreReport` turns their scores into tables and JSON; `evaluate.evaluate_folder` scores the tasks of a model.
"""

from vitruvian.training.evaluation.average_precision import BoxAP, MeanAveragePrecision
from vitruvian.training.evaluation.geometry import AngularError, DepthError, PointError
from vitruvian.training.evaluation.iou import ForegroundIoU, MeanIoU
from vitruvian.training.evaluation.keypoints import (
    PCK,
    KeypointAP,
    box_length,
    head_length,
    layout_groups,
    layout_sigmas,
    torso_length,
)
from vitruvian.training.evaluation.matting import MattingError, unknown_band
from vitruvian.training.evaluation.panoptic import PanopticQuality
from vitruvian.training.evaluation.report import Goal, ScoreReport

__all__ = [
    "PCK",
    "AngularError",
    "BoxAP",
    "DepthError",
    "ForegroundIoU",
    "Goal",
    "KeypointAP",
    "MattingError",
    "MeanAveragePrecision",
    "MeanIoU",
    "PanopticQuality",
    "PointError",
    "ScoreReport",
    "box_length",
    "head_length",
    "layout_groups",
    "layout_sigmas",
    "torso_length",
    "unknown_band",
]
