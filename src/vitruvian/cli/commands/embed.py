"""`vitruvian embed`: feature vectors of images."""

from __future__ import annotations

from dataclasses import dataclass

from vitruvian.cli.options import BatchGroup
from vitruvian.cli.task_command import TaskCommand


@dataclass(frozen=True, kw_only=True)
class Command(BatchGroup, TaskCommand):
    """Turn images into features: a vector for the whole, and one for each patch. With the encoder of Sapiens2.

    The checkpoint of any Sapiens2 task will do. --save takes npz (all), json (the vector of the whole), plot, plot.jpg;
    of videos also mp4, webm, mov.
    """

    name = "embed"
    example = "vitruvian embed photo.jpg --model facebook/sapiens2-pretrain-0.4b --save npz,plot"
