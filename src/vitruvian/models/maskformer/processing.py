"""The image processor of MaskFormer."""

from __future__ import annotations

from vitruvian.config import config_dataclass
from vitruvian.models.mask_classification.processing import MaskClassificationImageProcessor


@config_dataclass
class MaskFormerImageProcessor(MaskClassificationImageProcessor):
    """Preprocesses images for MaskFormer and turns its outputs into segmentations."""


MaskFormerImageProcessorFast = MaskFormerImageProcessor
MaskFormerImageProcessorPil = MaskFormerImageProcessor
