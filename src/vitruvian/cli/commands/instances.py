"""`vitruvian instances`: objects and their masks."""

from __future__ import annotations

from dataclasses import dataclass

from vitruvian.cli.options import BatchGroup, CocoGroup, ThresholdGroup
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(ThresholdGroup, BatchGroup, CocoGroup, TaskCommand):
    """Find objects: a mask, a class and a score each. With Mask2Former or MaskFormer.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "instances"
    example = "vitruvian instances photo.jpg --model facebook/mask2former-swin-small-coco-instance --save json,plot"
