"""`vitruvian masks`: masks of everything in an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import CocoGroup, HoleArea, IslandArea
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(CocoGroup, TaskCommand):
    """Segment everything in an image, without prompts. With SAM 2.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "masks"
    example = "vitruvian masks photo.jpg --model facebook/sam2.1-hiera-large --save json,plot"
    panel = "Masks"
    call_names = (
        "points_per_crop",
        "points_per_batch",
        "pred_iou_thresh",
        "stability_score_thresh",
        "crops_n_layers",
        "max_hole_area",
        "max_sprinkle_area",
    )

    points_per_side: Annotated[int, Option(help="Points along each side of the grid.", min=1)] = 32
    points_per_batch: Annotated[int, Option(help="Points in a batch.", min=1)] = 64
    quality: Annotated[float, Option(help="Predicted IoU that a mask must exceed.")] = 0.88
    stability: Annotated[float, Option(help="How little a mask may change with its threshold.")] = 0.95
    crop_layers: Annotated[int, Option(help="Process 4, 16, … crops too, for small things.", min=0, max=4)] = 0
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0
