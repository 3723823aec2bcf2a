"""`vitruvian segment`: masks of what is pointed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from vitruvian.cli.options import Batch, Gather, Messages, Model, Results, Sources, Video
from vitruvian.errors import InputError

OWN = "What is pointed at"
EXAMPLE = 'vitruvian segment photo.jpg --model facebook/sam2.1-hiera-large --points "120,80 90,60,0"'


@dataclass(frozen=True, kw_only=True)
class SegmentOptions:
    """Prompts, and what becomes of the masks."""

    points: Annotated[
        list[str] | None,
        Option(
            help='Points on one object: "x,y x,y"; "x,y,0" lies off it. Repeat for more objects.',
            show_default=False,
            rich_help_panel=OWN,
        ),
    ] = None
    boxes: Annotated[
        list[str] | None,
        Option(
            help="Box around an object: x1,y1,x2,y2. Repeat for more objects.", show_default=False, rich_help_panel=OWN
        ),
    ] = None
    all_masks: Annotated[
        bool,
        Option("--all-masks", help="Write all three proposals for each object, not the best.", rich_help_panel=OWN),
    ] = False
    mask_threshold: Annotated[float, Option(help="Logit of the outline: higher is tighter.", rich_help_panel=OWN)] = 0.0
    max_hole_area: Annotated[float, Option(help="Fill holes of up to so many pixels.", min=0, rich_help_panel=OWN)] = (
        0.0
    )
    max_sprinkle_area: Annotated[
        float, Option(help="Remove islands of up to so many pixels.", min=0, rich_help_panel=OWN)
    ] = 0.0


def segment(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    batch: Batch,
    own: SegmentOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Cut out what is pointed at or boxed in. With SAM 2.

    Points and boxes are pixels of the upright picture, and hold for every picture and frame.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import read_batch_size, read_numbers

    if not own.points and not own.boxes:
        raise InputError('prompts: expected --points or --boxes, got none. Add --points "x,y", say.')
    options: dict[str, Any] = read_points(own.points or [])
    if own.boxes:
        options["boxes"] = [read_numbers("--boxes", text, 4) for text in own.boxes]
    if own.all_masks:
        options |= {"best": False, "multimask": True}
    run_job(
        Job(
            command="segment",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            options=options
            | {
                "batch_size": read_batch_size(batch.batch_size),
                "mask_threshold": own.mask_threshold,
                "max_hole_area": own.max_hole_area,
                "max_sprinkle_area": own.max_sprinkle_area,
            },
            coco=gather.coco,
        )
    )


def read_points(objects: list[str]) -> dict[str, Any]:
    """Read --points: for each object its points and whether they lie on it."""
    from vitruvian.cli.reading import read_numbers

    if not objects:
        return {}
    points, labels = [], []
    for text in objects:
        rows = [read_numbers("--points", word, 2, 3) for word in text.split()]
        if not rows or any(len(row) == 3 and row[2] not in (0, 1) for row in rows):
            raise InputError(f'--points: expected "x,y" or "x,y,1" on the object and "x,y,0" off it, got {text!r}.')
        points.append([row[:2] for row in rows])
        labels.append([int(row[2]) if len(row) == 3 else 1 for row in rows])
    return {"points": points, "labels": labels}
