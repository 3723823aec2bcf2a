"""Objects and their masks, with MaskFormer or Mask2Former."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitruvian.images.rle import rle_box_xywh
from vitruvian.pipelines.runner import Prepared
from vitruvian.pipelines.segmentation import SegmentationPipeline, SegmentOptions
from vitruvian.results import Masks


class InstancePipeline(SegmentationPipeline[Masks, SegmentOptions]):
    """One mask an object, best first; masks may overlap."""

    task = "instance"
    checkpoints = ("facebook/mask2former-swin-small-coco-instance", "facebook/maskformer-swin-base-coco")
    options_class = SegmentOptions

    def decode(self, prepared: Prepared, outputs: list[Any], options: SegmentOptions) -> Any:
        """Return run lengths and what is known of each object."""
        (found,) = self.processor.post_process_instance_segmentation(
            **self.queries(prepared, outputs),
            threshold=options.threshold,
            mask_threshold=options.mask_threshold,
            overlap_mask_area_threshold=options.overlap_mask_area_threshold,
            return_coco_annotation=True,
        )
        return dict(found)

    def finish(self, prepared: Prepared, decoded: Any, options: SegmentOptions) -> Masks:
        """Build the result."""
        runs, infos = decoded["segmentation"], decoded["segments_info"]
        boxes = np.array([rle_box_xywh(run) for run in runs], np.float32).reshape(-1, 4)  # [N, 4]
        boxes[:, 2:] += boxes[:, :2]
        return Masks(
            **self.about(prepared.frame, options),
            kind="instance",
            runs=runs,
            scores=np.array([info["score"] for info in infos], np.float32),
            boxes_xyxy=boxes,
            label_ids=np.array([info["label_id"] for info in infos], np.int64),
            label_names=tuple(self.labels.get(info["label_id"], str(info["label_id"])) for info in infos),
        )
