"""Objects and regions in one map, with MaskFormer or Mask2Former."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vitruvian.pipelines.runner import Prepared
from vitruvian.pipelines.segmentation import SegmentationPipeline, SegmentOptions
from vitruvian.results import Panoptic, Segment


@dataclass(frozen=True, kw_only=True)
class PanopticOptions(SegmentOptions):
    """Options of panoptic segmentation.

    Args:
        label_ids_to_fuse: Labels of which there is at most one segment, such as sky.
    """

    label_ids_to_fuse: Collection[int] | None = None


class PanopticPipeline(SegmentationPipeline[Panoptic, PanopticOptions]):
    """One segment a pixel: objects one by one, regions such as sky as a whole."""

    task = "panoptic"
    checkpoints = ("facebook/mask2former-swin-small-cityscapes-panoptic", "facebook/maskformer-swin-base-coco")
    options_class = PanopticOptions

    def decode(self, prepared: Prepared, outputs: list[Any], options: PanopticOptions) -> Any:
        """Return the map of ids [H, W] and what is known of each."""
        (found,) = self.processor.post_process_panoptic_segmentation(
            **self.queries(prepared, outputs),
            threshold=options.threshold,
            mask_threshold=options.mask_threshold,
            overlap_mask_area_threshold=options.overlap_mask_area_threshold,
            label_ids_to_fuse=options.label_ids_to_fuse,
        )
        return dict(found)

    def finish(self, prepared: Prepared, decoded: Any, options: PanopticOptions) -> Panoptic:
        """Build the result."""
        ids = decoded["segmentation"].numpy().astype(np.int32, copy=False)
        measured = measure(ids)
        segments = [
            Segment(
                id=info["id"],
                label_id=info["label_id"],
                label=self.labels.get(info["label_id"], str(info["label_id"])),
                score=info["score"],
                area=measured[info["id"]][0],
                box_xyxy=measured[info["id"]][1],
            )
            for info in decoded["segments_info"]
            if info["id"] in measured
        ]
        return Panoptic(**self.about(prepared.frame, options), segmentation=ids, segments=tuple(segments))


def measure(ids: npt.NDArray[np.int32]) -> dict[int, tuple[int, tuple[float, float, float, float]]]:
    """Return the area and the tight box of each id in a map [H, W]; far edges lie outside."""
    height, width = ids.shape
    count = int(ids.max(initial=0)) + 1
    numbers = ids.astype(np.int64)
    # How often each id appears in each row and column: two passes, however many segments there are.
    rows = np.bincount((numbers * height + np.arange(height)[:, None]).ravel(), minlength=count * height)
    columns = np.bincount((numbers * width + np.arange(width)).ravel(), minlength=count * width)
    rows, columns = rows.reshape(count, height), columns.reshape(count, width)  # [N, H], [N, W]
    found = {}
    for number in range(1, count):
        (y,), (x,) = np.nonzero(rows[number]), np.nonzero(columns[number])
        if len(y):
            box = (float(x[0]), float(y[0]), float(x[-1] + 1), float(y[-1] + 1))
            found[number] = (int(rows[number].sum()), box)
    return found
