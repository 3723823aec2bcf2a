"""MaskFormer's image processor: pictures and segmentation maps in, segmentations out."""

from __future__ import annotations

from vitruvian.config import settings
from vitruvian.mask_processor import MaskProcessor


@settings
class MaskFormerImageProcessor(MaskProcessor):
    """Prepares pictures for MaskFormer and turns its outputs into segmentations; see `MaskProcessor`."""


MaskFormerImageProcessorFast = MaskFormerImageProcessor
