"""The image processor of MaskFormer."""

from __future__ import annotations

from vitruvian.config import config_dataclass
from vitruvian.models.mask_classification.processing import MaskProcessor


@config_dataclass
class MaskFormerImageProcessor(MaskProcessor):
    """Preprocesses images for MaskFormer and turns its outputs into segmentations; see `MaskProcessor`."""


MaskFormerImageProcessorFast = MaskFormerImageProcessor
MaskFormerImageProcessorPil = MaskFormerImageProcessor
