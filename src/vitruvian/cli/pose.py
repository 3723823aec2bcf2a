"""`vitruvian pose`: 308 keypoints of each person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from typer import Option

from vitruvian.cli.options import Batch, Gather, Messages, Model, People, Results, Sources, Video

OWN = "Poses"
EXAMPLE = "vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b --save json,plot"


@dataclass(frozen=True, kw_only=True)
class PoseOptions:
    """Options of poses."""

    layout: Annotated[
        Literal["sapiens308", "coco17", "coco133", "openpose"],
        Option(help="Which keypoints to write and draw.", rich_help_panel=OWN),
    ] = "sapiens308"
    threshold: Annotated[
        float, Option(help="Draw keypoints that reach this score.", min=0, max=1, rich_help_panel=OWN)
    ] = 0.3
    draw_boxes: Annotated[bool, Option("--draw-boxes", help="Draw the boxes too.", rich_help_panel=OWN)] = False
    flip: Annotated[
        bool, Option("--flip", help="Look at people mirrored too: steadier, at twice the work.", rich_help_panel=OWN)
    ] = False


def pose(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    batch: Batch,
    people: People,
    own: PoseOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Find 308 keypoints of each person: body, hands, feet and face. With Sapiens2.

    --save takes json, npz, png, jpg, webp, plot, plot.jpg; of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import read_batch_size

    def change(found: Any) -> Any:
        return found if own.layout == "sapiens308" else found.to_layout(own.layout)

    run_job(
        Job(
            command="pose",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            people=people,
            options={"batch_size": read_batch_size(batch.batch_size), "flip": own.flip},
            plot={"threshold": own.threshold, "boxes": own.draw_boxes},
            change=change,
            own={"layout": own.layout},
            coco=gather.coco,
        )
    )
