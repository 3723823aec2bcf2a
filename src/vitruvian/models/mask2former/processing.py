"""The image processor of Mask2Former."""

from __future__ import annotations

from typing import ClassVar

from vitruvian.config import config_dataclass
from vitruvian.images.types import SizeHW
from vitruvian.models.mask_classification.processing import MaskClassificationImageProcessor


@config_dataclass
class Mask2FormerImageProcessor(MaskClassificationImageProcessor):
    """Preprocesses images for Mask2Former and turns its outputs into segmentations."""

    transformers_grid_hw: ClassVar[SizeHW | None] = (384, 384)


Mask2FormerImageProcessorFast = Mask2FormerImageProcessor
Mask2FormerImageProcessorPil = Mask2FormerImageProcessor
