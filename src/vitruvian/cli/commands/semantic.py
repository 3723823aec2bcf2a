"""`vitruvian semantic`: the class of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import Batch, Coco
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(TaskCommand):
    """Find the class of each pixel. With Mask2Former or MaskFormer.

    --save takes png (the numbers), npz, json (areas and masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    task = "semantic"
    example = "vitruvian semantic photo.jpg --model facebook/mask2former-swin-small-ade-semantic --save png,plot"
    groups = (Batch, Coco)
    panel = "Classes"
    plot_names = ("opacity",)

    opacity: Annotated[float, Option(help="Of the colours in the drawing.", min=0, max=1)] = 0.55
