"""`vitruvian albedo`: colours without light and shadow."""

from __future__ import annotations

from vitruvian.cli.options import Batch, Messages, Model, People, Results, Sources, Tiles, Video

EXAMPLE = "vitruvian albedo photo.jpg --model my-albedo-model --save png"


def albedo(
    sources: Sources,
    results: Results,
    model: Model,
    batch: Batch,
    tiles: Tiles,
    people: People,
    video: Video,
    messages: Messages,
) -> None:
    """Tell the colour of each surface without light and shadow. With Sapiens2.

    --save takes png, npz, exr (linear), plot, plot.jpg; of videos also mp4, webm, mov, json.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import dense_options

    run_job(
        Job(
            command="albedo",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            people=people,
            options=dense_options(batch, tiles),
        )
    )
