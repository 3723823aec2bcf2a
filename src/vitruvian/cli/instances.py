"""`vitruvian instances`: objects and their masks."""

from __future__ import annotations

from vitruvian.cli.options import Batch, Gather, Messages, Model, Results, Sources, Video
from vitruvian.cli.thresholds import Thresholds

EXAMPLE = "vitruvian instances photo.jpg --model facebook/mask2former-swin-small-coco-instance --save json,plot"


def instances(
    sources: Sources,
    results: Results,
    gather: Gather,
    model: Model,
    batch: Batch,
    own: Thresholds,
    video: Video,
    messages: Messages,
) -> None:
    """Find objects: a mask, a class and a score each. With Mask2Former or MaskFormer.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import read_batch_size

    run_job(
        Job(
            command="instances",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            options={"batch_size": read_batch_size(batch.batch_size)} | own.options(),
            coco=gather.coco,
        )
    )
