"""`vitruvian semantic`: the class of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import Batch, Gather, Messages, Model, Results, Sources, Video

OWN = "Classes"
EXAMPLE = "vitruvian semantic photo.jpg --model facebook/mask2former-swin-small-ade-semantic --save png,plot"


@dataclass(frozen=True, kw_only=True)
class SemanticOptions:
    """Options of class maps."""

    opacity: Annotated[float, Option(help="Of the colours in the drawing.", min=0, max=1, rich_help_panel=OWN)] = 0.55


def semantic(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    batch: Batch,
    own: SemanticOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Tell the class of each pixel. With Mask2Former or MaskFormer.

    --save takes png (the numbers), npz, json (areas and masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import read_batch_size

    run_job(
        Job(
            command="semantic",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            options={"batch_size": read_batch_size(batch.batch_size)},
            plot={"opacity": own.opacity},
            coco=gather.coco,
        )
    )
