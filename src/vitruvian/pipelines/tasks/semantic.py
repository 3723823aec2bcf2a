"""Semantic segmentation with MaskFormer or Mask2Former."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vitruvian.pipelines.base import Options
from vitruvian.pipelines.engine.task import Prepared
from vitruvian.pipelines.tasks.segmentation_base import QueryOutputs, SegmentationPipeline
from vitruvian.results import Semantic


@dataclass(frozen=True, kw_only=True)
class SemanticOptions(Options):
    """Options of semantic segmentation: those of every pipeline."""


class SemanticPipeline(SegmentationPipeline[Semantic, SemanticOptions]):
    """One class for each pixel."""

    task = "semantic"
    options_class = SemanticOptions

    def decode(self, prepared: Prepared, outputs: list[QueryOutputs]) -> Tensor:
        """Return the class map [H, W]."""
        labels: Tensor = self.processor.post_process_semantic_segmentation(**self.post_process_args(prepared, outputs))[
            0
        ]
        return labels.int()

    def finish(self, prepared: Prepared, decoded: Tensor) -> Semantic:
        """Build the result."""
        labels = decoded.numpy().astype(np.int32, copy=False)
        return Semantic(**self.result_fields(prepared.frame), labels=labels, id2label=dict(self.class_names))
