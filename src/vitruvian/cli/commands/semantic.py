"""`vitruvian semantic`: the class of each pixel."""

from __future__ import annotations

from dataclasses import dataclass

from vitruvian.cli.options import BatchGroup, CocoGroup, Opacity
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(BatchGroup, CocoGroup, TaskCommand):
    """Find the class of each pixel. With Mask2Former or MaskFormer.

    --save takes png (the numbers), npz, json (areas and masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "semantic"
    example = "vitruvian semantic photo.jpg --model facebook/mask2former-swin-small-ade-semantic --save png,plot"
    panel = "Classes"
    plot_names = ("opacity",)

    opacity: Opacity = 0.55
