"""Semantic segmentation with MaskFormer or Mask2Former."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import Options
from vitruvian.pipelines.tasks.segmentation_base import QueryOutputs, SegmentationPipeline
from vitruvian.results import Semantic


class SemanticPipeline(SegmentationPipeline[Semantic, Options]):
    """One class for each pixel."""

    task = "semantic"
    post_process = "post_process_semantic_segmentation"

    def decode(self, prepared: Prepared, outputs: list[QueryOutputs]) -> Tensor:
        """Return the class map [H, W], in half the bytes."""
        labels: Tensor = super().decode(prepared, outputs)
        return labels.int()

    def finish(self, prepared: Prepared, decoded: Tensor) -> Semantic:
        """Build the result."""
        labels = decoded.numpy().astype(np.int32, copy=False)
        return Semantic(**self.result_fields(prepared.frame), labels=labels, id2label=dict(self.class_names))
