"""`vitruvian embed`: features of pictures."""

from __future__ import annotations

from vitruvian.cli.options import Batch, Messages, Model, Results, Sources, Video

EXAMPLE = "vitruvian embed photo.jpg --model facebook/sapiens2-pretrain-0.4b --save npz,plot"


def embed(
    sources: Sources,
    results: Results,
    model: Model,
    batch: Batch,
    video: Video,
    messages: Messages,
) -> None:
    """Turn pictures into features: a vector for the whole, and one for each patch. With the encoder of Sapiens2.

    The checkpoint of any Sapiens2 task will do. --save takes npz (all), json (the vector of the whole), plot, plot.jpg;
    of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import read_batch_size

    run_job(
        Job(
            command="embed",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            options={"batch_size": read_batch_size(batch.batch_size)},
        )
    )
