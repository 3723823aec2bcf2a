"""`vitruvian parts`: which part of the body each pixel is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import Batch, Gather, Messages, Model, People, Results, Sources, Tiles, Video

OWN = "Parts"
EXAMPLE = "vitruvian parts photo.jpg --model facebook/sapiens2-seg-0.4b --save png,plot"


@dataclass(frozen=True, kw_only=True)
class PartsOptions:
    """Options of parts."""

    with_score: Annotated[
        bool, Option("--with-score", help="Keep how sure the model is of each pixel, in .npz.", rich_help_panel=OWN)
    ] = False
    opacity: Annotated[float, Option(help="Of the colours in the drawing.", min=0, max=1, rich_help_panel=OWN)] = 0.55


def parts(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    batch: Batch,
    tiles: Tiles,
    people: People,
    own: PartsOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Tell which of 29 parts of the body and clothing each pixel is. With Sapiens2.

    --save takes png (the numbers, with colours as palette), npz, json (areas and masks), plot, plot.jpg; of videos also
    mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import dense_options

    asked = {"with_score": own.with_score}
    run_job(
        Job(
            command="parts",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            people=people,
            options=dense_options(batch, tiles) | asked,
            plot={"opacity": own.opacity},
            coco=gather.coco,
        )
    )
