"""Panoptic segmentation with MaskFormer or Mask2Former."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vitruvian.pipelines.engine.steps import Prepared
from vitruvian.pipelines.options import PanopticOptions
from vitruvian.pipelines.tasks.segmentation_base import Segmentation, SegmentationPipeline
from vitruvian.results import Panoptic, Segment


class PanopticPipeline(SegmentationPipeline[Panoptic, PanopticOptions]):
    """One segment for each pixel: objects separately, regions such as sky as a whole."""

    task = "panoptic"
    post_process = "post_process_panoptic_segmentation"

    def finish(self, prepared: Prepared, decoded: Segmentation) -> Panoptic:
        """Build the result."""
        ids = decoded["segmentation"].numpy().astype(np.int32, copy=False)
        names, measured = self.class_names, _areas_and_boxes(ids)
        segments = [
            Segment(
                id=info["id"],
                label_id=info["label_id"],
                label=names.get(info["label_id"], str(info["label_id"])),
                score=info["score"],
                area=measured[info["id"]][0],
                box_xyxy=measured[info["id"]][1],
            )
            for info in decoded["segments_info"]
            if info["id"] in measured
        ]
        return Panoptic(**self.result_fields(prepared.frame), segmentation=ids, segments=tuple(segments))


def _areas_and_boxes(ids: npt.NDArray[np.int32]) -> dict[int, tuple[int, tuple[float, float, float, float]]]:
    """Return the area and the bounding box (exclusive far edges) of each positive id in a map [H, W]."""
    height, width = ids.shape
    count = int(ids.max(initial=0)) + 1
    wide_ids = ids.astype(np.int64)
    # Histograms of ids per row and column: two passes, whatever the number of segments.
    rows = np.bincount((wide_ids * height + np.arange(height)[:, None]).ravel(), minlength=count * height)
    columns = np.bincount((wide_ids * width + np.arange(width)).ravel(), minlength=count * width)
    rows, columns = rows.reshape(count, height), columns.reshape(count, width)  # [N, H], [N, W]
    measured = {}
    for number in range(1, count):
        (y,), (x,) = np.nonzero(rows[number]), np.nonzero(columns[number])
        if len(y):
            box = (float(x[0]), float(y[0]), float(x[-1] + 1), float(y[-1] + 1))
            measured[number] = (int(rows[number].sum()), box)
    return measured
