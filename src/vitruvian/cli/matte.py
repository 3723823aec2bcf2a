"""`vitruvian matte`: people without their background."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from vitruvian.cli.options import STDIO, Batch, Messages, Model, People, Results, Sources, Tiles, Video

OWN = "Matte"
EXAMPLE = "vitruvian matte photo.jpg --model facebook/sapiens2-matting-1b --save png"


@dataclass(frozen=True, kw_only=True)
class MatteOptions:
    """Options of mattes."""

    over: Annotated[
        str | None,
        Option(
            help="In drawings, put people over this: a colour (white, #00ff00) or a picture, rather than a "
            "checkerboard. Videos then come as mp4.",
            show_default=False,
            rich_help_panel=OWN,
        ),
    ] = None


def matte(
    sources: Sources,
    results: Results,
    model: Model,
    batch: Batch,
    tiles: Tiles,
    people: People,
    own: MatteOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Cut people out, hair and all: how much of each pixel is the person, and in what colour. With Sapiens2.

    --save takes png and webp (straight alpha), exr (premultiplied, linear), npz, plot, plot.jpg; of videos webm and mov
    with alpha, mp4 over a ground, json.
    """
    import dataclasses
    from pathlib import Path

    from vitruvian.cli.jobs import OUT, Job, run_job
    from vitruvian.cli.kinds import TASKS, file_kind
    from vitruvian.cli.reading import dense_options

    def over(found: Any) -> Any:
        return found.over(own.over)

    if own.over is not None and results.save is None and results.out != STDIO:
        place = Path(results.out or OUT).expanduser()
        if file_kind(TASKS["matte"], place, None) is None:  # a folder: what is drawn goes there too
            results = dataclasses.replace(results, save="png,plot,mp4")
    run_job(
        Job(
            command="matte",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            people=people,
            options=dense_options(batch, tiles),
            draw=None if own.over is None else over,
            own={"over": own.over},
        )
    )
