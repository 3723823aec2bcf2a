"""Mask2Former's image processor: pictures and segmentation maps in, segmentations out."""

from __future__ import annotations

from typing import ClassVar

from vitruvian.config import settings
from vitruvian.images.mask_grid import SizeHW
from vitruvian.mask_processor import MaskProcessor


@settings
class Mask2FormerImageProcessor(MaskProcessor):
    """Prepares pictures for Mask2Former and turns its outputs into segmentations; see `MaskProcessor`."""

    legacy_grid_hw: ClassVar[SizeHW | None] = (384, 384)


Mask2FormerImageProcessorFast = Mask2FormerImageProcessor
