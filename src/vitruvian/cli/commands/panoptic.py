"""`vitruvian panoptic`: objects and regions in one map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import BatchGroup, CocoGroup, ThresholdGroup
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(ThresholdGroup, BatchGroup, CocoGroup, TaskCommand):
    """Divide images into objects, one by one, and regions such as sky. With Mask2Former or MaskFormer.

    --save takes png (COCO's numbers as colours), json (the segments), npz, plot, plot.jpg; of videos also mp4, webm,
    mov.
    """

    name = "panoptic"
    example = "vitruvian panoptic photo.jpg --model facebook/mask2former-swin-small-cityscapes-panoptic --save png,json"
    panel = "Objects"
    call_names = ("label_ids_to_fuse",)

    fuse: Annotated[
        list[int] | None,
        Option(help="Number of a class of which there is one segment at most, such as sky. Repeat for more."),
    ] = None
