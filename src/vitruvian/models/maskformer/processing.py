"""The image processor of MaskFormer."""

from __future__ import annotations

from vitruvian.config import settings
from vitruvian.models.mask_classification.processing import MaskProcessor


@settings
class MaskFormerImageProcessor(MaskProcessor):
    """Preprocesses images for MaskFormer and turns its outputs into segmentations; see `MaskProcessor`."""


MaskFormerImageProcessorFast = MaskFormerImageProcessor
MaskFormerImageProcessorPil = MaskFormerImageProcessor
