"""`vitruvian normals`: surface normals."""

from __future__ import annotations

from dataclasses import dataclass

from vitruvian.cli.options import BatchGroup, Convention, PeopleGroup, TileGroup
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the surface normal of each pixel. With Sapiens2.

    --save takes png (the usual colours), 16.png, npz, exr, plot, plot.jpg; of videos also mp4, webm, mov, json.
    """

    name = "normals"
    example = "vitruvian normals photo.jpg --model facebook/sapiens2-normal-0.4b --save png,npz"
    panel = "Normals"
    call_names = ("convention",)

    convention: Convention = "opencv"
