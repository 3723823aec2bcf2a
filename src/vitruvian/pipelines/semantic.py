"""The class of each pixel, with MaskFormer or Mask2Former."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitruvian.pipelines.base import Options
from vitruvian.pipelines.runner import Prepared
from vitruvian.pipelines.segmentation import SegmentationPipeline
from vitruvian.results import Semantic


@dataclass(frozen=True, kw_only=True)
class SemanticOptions(Options):
    """Options of semantic segmentation: those of every pipeline."""


class SemanticPipeline(SegmentationPipeline[Semantic, SemanticOptions]):
    """One class a pixel."""

    task = "semantic"
    checkpoints = ("facebook/mask2former-swin-small-ade-semantic", "facebook/maskformer-swin-base-ade")
    options_class = SemanticOptions

    def decode(self, prepared: Prepared, outputs: list[Any], options: SemanticOptions) -> Any:
        """Return the class map [H, W]."""
        return self.processor.post_process_semantic_segmentation(**self.queries(prepared, outputs))[0].int()

    def finish(self, prepared: Prepared, decoded: Any, options: SemanticOptions) -> Semantic:
        """Build the result."""
        labels = decoded.numpy().astype(np.int32, copy=False)
        return Semantic(**self.about(prepared.frame, options), labels=labels, id2label=dict(self.labels))
