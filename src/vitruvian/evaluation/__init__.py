"""Metrics: panoptic quality, average precision of masks and boxes, mean intersection over union."""

from vitruvian.evaluation.detection import AveragePrecision, DetectionScores
from vitruvian.evaluation.panoptic import PanopticQuality, PanopticReport, PanopticScores
from vitruvian.evaluation.semantic import SemanticQuality, SemanticScores

__all__ = [
    "AveragePrecision",
    "DetectionScores",
    "PanopticQuality",
    "PanopticReport",
    "PanopticScores",
    "SemanticQuality",
    "SemanticScores",
]
