"""`vitruvian normals`: which way each surface faces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from vitruvian.cli.options import Batch, Messages, Model, People, Results, Sources, Tiles, Video

OWN = "Normals"
EXAMPLE = "vitruvian normals photo.jpg --model facebook/sapiens2-normal-0.4b --save png,npz"


@dataclass(frozen=True, kw_only=True)
class NormalsOptions:
    """Options of normals."""

    convention: Annotated[
        Literal["opencv", "opengl"],
        Option(help="opencv: x right, y down, z away; opengl: x right, y up, z towards you.", rich_help_panel=OWN),
    ] = "opencv"


def normals(
    sources: Sources,
    results: Results,
    model: Model,
    batch: Batch,
    tiles: Tiles,
    people: People,
    own: NormalsOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Tell which way the surface faces at each pixel. With Sapiens2.

    --save takes png (the usual colours), 16.png, npz, exr, plot, plot.jpg; of videos also mp4, webm, mov, json.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import dense_options

    run_job(
        Job(
            command="normals",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            people=people,
            options=dense_options(batch, tiles) | {"convention": own.convention},
        )
    )
