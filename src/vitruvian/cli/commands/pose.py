"""`vitruvian pose`: 308 keypoints of each person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from vitruvian.cli.options import BatchGroup, CocoGroup, PeopleGroup
from vitruvian.cli.task_command import TaskCommand

if TYPE_CHECKING:
    from vitruvian.results import Result


@dataclass(frozen=True, kw_only=True)
class Command(PeopleGroup, BatchGroup, CocoGroup, TaskCommand):
    """Find 308 keypoints of each person: body, hands, feet and face. With Sapiens2.

    --save takes json, npz, png, jpg, webp, plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "pose"
    example = "vitruvian pose photo.jpg --model facebook/sapiens2-pose-0.4b --save json,plot"
    panel = "Poses"
    call_names = ("flip",)

    layout: Annotated[
        Literal["sapiens308", "coco17", "coco133", "openpose"], Option(help="Which keypoints to write and draw.")
    ] = "sapiens308"
    threshold: Annotated[float, Option(help="Draw keypoints that reach this score.", min=0, max=1)] = 0.3
    draw_boxes: Annotated[bool, Option("--draw-boxes", help="Draw the boxes too.")] = False
    flip: Annotated[bool, Option("--flip", help="Average with mirrored crops: more stable, at twice the work.")] = False

    def plot_options(self) -> dict[str, object]:
        """Return the options of the result's `plot`."""
        return {"threshold": self.threshold, "boxes": self.draw_boxes}

    def change(self, result: Result) -> Result:
        """Convert the keypoints to the layout."""
        from vitruvian.results import Pose

        if self.layout == "sapiens308" or not isinstance(result, Pose):
            return result
        return result.to_layout(self.layout)
