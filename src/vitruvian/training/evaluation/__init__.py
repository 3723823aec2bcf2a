"""Metrics, one class each: `update` adds predictions and truth, `merge` the work of others, `compute` returns scores.

| what | class |
|---|---|
| keypoints of known people, keypoints of people found | `KeypointAccuracy` (PCK), `KeypointPrecision` (OKS-AP) |
| parts, silhouettes | `SemanticQuality` (mean IoU), `SilhouetteQuality` |
| normals, depth, 3D points, mattes | `NormalQuality`, `DepthQuality`, `PointQuality`, `MattingQuality` |
| finding people, objects by box or mask, segments | `BoxQuality`, `AveragePrecision`, `PanopticQuality` |

All take numpy arrays and torch tensors, remember numbers but no pictures, and can be pickled to be merged across
processes. `Report` makes tables and JSON of their scores.
"""

from __future__ import annotations

from vitruvian.training.evaluation.average_precision import AveragePrecision, BoxQuality, BoxScores, DetectionScores
from vitruvian.training.evaluation.geometry import (
    DepthQuality,
    DepthScores,
    NormalQuality,
    NormalScores,
    PointQuality,
    PointScores,
)
from vitruvian.training.evaluation.iou import SemanticQuality, SemanticScores, SilhouetteQuality, SilhouetteScores
from vitruvian.training.evaluation.keypoints import (
    KeypointAccuracy,
    KeypointAccuracyScores,
    KeypointPrecision,
    KeypointScores,
    box_length,
    head_length,
    layout_groups,
    layout_sigmas,
    segment_length,
    torso_length,
)
from vitruvian.training.evaluation.matting import MattingQuality, MattingScores, unknown_band
from vitruvian.training.evaluation.panoptic import PanopticQuality, PanopticReport, PanopticScores
from vitruvian.training.evaluation.report import Goal, Report

__all__ = [
    "AveragePrecision",
    "BoxQuality",
    "BoxScores",
    "DepthQuality",
    "DepthScores",
    "DetectionScores",
    "Goal",
    "KeypointAccuracy",
    "KeypointAccuracyScores",
    "KeypointPrecision",
    "KeypointScores",
    "MattingQuality",
    "MattingScores",
    "NormalQuality",
    "NormalScores",
    "PanopticQuality",
    "PanopticReport",
    "PanopticScores",
    "PointQuality",
    "PointScores",
    "Report",
    "SemanticQuality",
    "SemanticScores",
    "SilhouetteQuality",
    "SilhouetteScores",
    "box_length",
    "head_length",
    "layout_groups",
    "layout_sigmas",
    "segment_length",
    "torso_length",
    "unknown_band",
]
