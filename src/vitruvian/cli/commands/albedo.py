"""`vitruvian albedo`: surface colours without light and shadow."""

from __future__ import annotations

from dataclasses import dataclass

from vitruvian.cli.options import Batch, People, Tiles
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(TaskCommand):
    """Estimate the colour of each surface without light and shadow. With Sapiens2.

    --save takes png, npz, exr (linear), plot, plot.jpg; of videos also mp4, webm, mov, json.
    """

    task = "albedo"
    example = "vitruvian albedo photo.jpg --model my-albedo-model --save png"
    groups = (Batch, Tiles, People)
