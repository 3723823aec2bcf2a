"""`vitruvian albedo`: surface colours without light and shadow."""

from __future__ import annotations

from dataclasses import dataclass

from vitruvian.cli.options import BatchGroup, PeopleGroup, TileGroup
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Estimate the colour of each surface without light and shadow. With Sapiens2.

    --save takes png, npz, exr (linear), plot, plot.jpg; of videos also mp4, webm, mov, json.
    """

    name = "albedo"
    example = "vitruvian albedo photo.jpg --model my-albedo-model --save png"
