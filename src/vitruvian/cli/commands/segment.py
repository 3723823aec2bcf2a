"""`vitruvian segment`: masks from points and boxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from typer import Option

from vitruvian.cli.options import BatchGroup, CocoGroup, HoleArea, IslandArea, read_numbers
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Command(BatchGroup, CocoGroup, TaskCommand):
    """Segment objects from points and boxes. With SAM 2.

    Points and boxes are pixels of the upright image, and hold for every image and frame.

    --save takes json (COCO RLE), npz, png (numbers of the masks), plot, plot.jpg; of videos also mp4, webm, mov.
    """

    name = "segment"
    example = 'vitruvian segment photo.jpg --model facebook/sam2.1-hiera-large --points "120,80 90,60,0"'
    panel = "Prompts and masks"
    call_names = ("mask_threshold", "max_hole_area", "max_sprinkle_area")

    points: Annotated[
        list[str] | None, Option(help='Points on one object: "x,y x,y"; "x,y,0" lies off it. Repeat for more objects.')
    ] = None
    boxes: Annotated[list[str] | None, Option(help="Box around an object: x1,y1,x2,y2. Repeat for more objects.")] = (
        None
    )
    all_masks: Annotated[
        bool, Option("--all-masks", help="Write all three proposals for each object, not the best.")
    ] = False
    mask_threshold: Annotated[float, Option(help="Logit of the outline: higher is tighter.")] = 0.0
    max_hole_area: HoleArea = 0.0
    max_sprinkle_area: IslandArea = 0.0

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call."""
        if not self.points and not self.boxes:
            raise InputError('prompts: expected --points or --boxes, got none. Add --points "x,y", say.')
        options = super().call_options()
        if self.points:
            objects = [_read_points(text) for text in self.points]
            options["points"] = [[row[:2] for row in rows] for rows in objects]
            options["labels"] = [[int(row[2]) if len(row) == 3 else 1 for row in rows] for rows in objects]
        if self.boxes:
            options["boxes"] = [read_numbers("--boxes", text, 4) for text in self.boxes]
        return options | ({"best": False, "multimask": True} if self.all_masks else {})


def _read_points(text: str) -> list[list[float]]:
    """Read the points on one object: x, y, and whether they lie on it."""
    rows = [read_numbers("--points", word, 2, 3) for word in text.split()]
    if not rows or any(len(row) == 3 and row[2] not in (0, 1) for row in rows):
        raise InputError(f'--points: expected "x,y" or "x,y,1" on the object and "x,y,0" off it, got {text!r}.')
    return rows
