"""`vitruvian panoptic`: objects and regions in one map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import Batch, Gather, Messages, Model, Results, Sources, Video
from vitruvian.cli.thresholds import OWN, Thresholds

EXAMPLE = "vitruvian panoptic photo.jpg --model facebook/mask2former-swin-small-cityscapes-panoptic --save png,json"


@dataclass(frozen=True, kw_only=True)
class PanopticOptions:
    """Options of panoptic maps."""

    fuse: Annotated[
        list[int] | None,
        Option(
            help="Number of a class of which there is one segment at most, such as sky. Repeat for more.",
            show_default=False,
            rich_help_panel=OWN,
        ),
    ] = None


def panoptic(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    batch: Batch,
    thresholds: Thresholds,
    own: PanopticOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Divide pictures into objects, one by one, and regions such as sky. With Mask2Former or MaskFormer.

    --save takes png (COCO's numbers as colours), json (the segments), npz, plot, plot.jpg; of videos also mp4, webm,
    mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import read_batch_size

    run_job(
        Job(
            command="panoptic",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            options={"batch_size": read_batch_size(batch.batch_size), "label_ids_to_fuse": own.fuse or None}
            | thresholds.options(),
            coco=gather.coco,
        )
    )
