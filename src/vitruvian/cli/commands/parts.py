"""`vitruvian parts`: the body part of each pixel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import BatchGroup, CocoGroup, Opacity, PeopleGroup, TileGroup
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(PeopleGroup, TileGroup, BatchGroup, CocoGroup, TaskCommand):
    """Segment 29 parts of the body and clothing. With Sapiens2.

    --save takes png (the numbers, with colours as palette), npz, json (areas and masks), plot, plot.jpg; of videos also
    mp4, webm, mov.
    """

    name = "parts"
    example = "vitruvian parts photo.jpg --model facebook/sapiens2-seg-0.4b --save png,plot"
    panel = "Parts"
    call_names = ("with_score",)
    plot_names = ("opacity",)

    with_score: Annotated[bool, Option("--with-score", help="Write the score of each pixel too, in .npz.")] = False
    opacity: Opacity = 0.55
