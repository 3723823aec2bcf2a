"""`vitruvian normals`: surface normals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from typer import Option

from vitruvian.cli.options import Batch, People, Tiles
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(TaskCommand):
    """Estimate the surface normal of each pixel. With Sapiens2.

    --save takes png (the usual colours), 16.png, npz, exr, plot, plot.jpg; of videos also mp4, webm, mov, json.
    """

    task = "normals"
    example = "vitruvian normals photo.jpg --model facebook/sapiens2-normal-0.4b --save png,npz"
    groups = (Batch, Tiles, People)
    panel = "Normals"
    call_names = ("convention",)

    convention: Annotated[
        Literal["opencv", "opengl"],
        Option(help="opencv: x right, y down, z away; opengl: x right, y up, z towards you."),
    ] = "opencv"
