"""Instance segmentation with MaskFormer or Mask2Former."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from vitruvian.images.rle import rle_box_xywh
from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import QueryThresholdOptions
from vitruvian.pipelines.tasks.segmentation_base import Segmentation, SegmentationPipeline
from vitruvian.results import Masks


class InstancesPipeline(SegmentationPipeline[Masks, QueryThresholdOptions]):
    """One mask for each object, by score; masks may overlap."""

    task = "instances"
    post_process = "post_process_instance_segmentation"
    post_process_options: ClassVar[dict[str, object]] = {"return_coco_annotation": True}

    def finish(self, prepared: Prepared, decoded: Segmentation) -> Masks:
        """Build the result."""
        rles, infos = decoded["segmentation"], decoded["segments_info"]
        boxes = np.array([rle_box_xywh(rle) for rle in rles], np.float32).reshape(-1, 4)  # [N, 4]
        boxes[:, 2:] += boxes[:, :2]
        return Masks(
            **self.result_fields(prepared.frame),
            kind="instances",
            rles=rles,
            scores=np.array([info["score"] for info in infos], np.float32),
            boxes_xyxy=boxes,
            label_ids=np.array([info["label_id"] for info in infos], np.int64),
            label_names=tuple(self.class_names.get(info["label_id"], str(info["label_id"])) for info in infos),
        )
