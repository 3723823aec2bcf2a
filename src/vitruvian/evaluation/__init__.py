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

from vitruvian.evaluation.boxes import BoxQuality, BoxScores
from vitruvian.evaluation.depth import DepthQuality, DepthScores, PointQuality, PointScores
from vitruvian.evaluation.detection import AveragePrecision, DetectionScores
from vitruvian.evaluation.keypoints import (
    box_length,
    head_length,
    layout_groups,
    layout_sigmas,
    segment_length,
    torso_length,
)
from vitruvian.evaluation.matting import MattingQuality, MattingScores, unknown_band
from vitruvian.evaluation.normals import NormalQuality, NormalScores
from vitruvian.evaluation.panoptic import PanopticQuality, PanopticReport, PanopticScores
from vitruvian.evaluation.pose import KeypointAccuracy, KeypointAccuracyScores, KeypointPrecision, KeypointScores
from vitruvian.evaluation.report import Goal, Report
from vitruvian.evaluation.semantic import SemanticQuality, SemanticScores
from vitruvian.evaluation.silhouette import SilhouetteQuality, SilhouetteScores

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
