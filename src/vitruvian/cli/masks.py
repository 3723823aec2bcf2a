"""`vitruvian masks`: masks of everything in a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import Gather, Messages, Model, Results, Sources, Video

OWN = "Masks"
EXAMPLE = "vitruvian masks photo.jpg --model facebook/sam2.1-hiera-large --save json,plot"


@dataclass(frozen=True, kw_only=True)
class MaskOptions:
    """How masks are proposed and chosen."""

    points_per_side: Annotated[int, Option(help="Points along each side of the grid.", min=1, rich_help_panel=OWN)] = 32
    points_per_batch: Annotated[
        int, Option(help="Points that are asked about at once.", min=1, rich_help_panel=OWN)
    ] = 64
    quality: Annotated[float, Option(help="Predicted IoU that a mask must exceed.", rich_help_panel=OWN)] = 0.88
    stability: Annotated[
        float, Option(help="How little a mask may change with its threshold.", rich_help_panel=OWN)
    ] = 0.95
    crop_layers: Annotated[
        int, Option(help="Look at 4, 16, … crops too, for small things.", min=0, max=4, rich_help_panel=OWN)
    ] = 0
    max_hole_area: Annotated[float, Option(help="Fill holes of up to so many pixels.", min=0, rich_help_panel=OWN)] = (
        0.0
    )
    max_sprinkle_area: Annotated[
        float, Option(help="Remove islands of up to so many pixels.", min=0, rich_help_panel=OWN)
    ] = 0.0


def masks(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    own: MaskOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Cut out everything there is. With SAM 2.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job

    run_job(
        Job(
            command="masks",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            options={
                "points_per_crop": own.points_per_side,
                "points_per_batch": own.points_per_batch,
                "pred_iou_thresh": own.quality,
                "stability_score_thresh": own.stability,
                "crops_n_layers": own.crop_layers,
                "max_hole_area": own.max_hole_area,
                "max_sprinkle_area": own.max_sprinkle_area,
            },
            coco=gather.coco,
        )
    )
