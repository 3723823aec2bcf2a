"""`vitruvian matte`: people without their background."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from typer import Option

from vitruvian.cli.options import BatchGroup, PeopleGroup, TileGroup
from vitruvian.cli.task_command import TaskCommand

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from vitruvian.results import Result


@dataclass(frozen=True, kw_only=True)
class Command(PeopleGroup, TileGroup, BatchGroup, TaskCommand):
    """Cut people out, hair and all: the opacity and the colour of each pixel. With Sapiens2.

    --save takes png and webp (straight alpha), exr (premultiplied, linear), npz, plot, plot.jpg; of videos webm and mov
    with alpha, mp4 over a ground, json.
    """

    name = "matte"
    example = "vitruvian matte photo.jpg --model facebook/sapiens2-matting-1b --save png"
    panel = "Matte"

    over: Annotated[
        str | None,
        Option(
            help="In drawings, put people over this: a colour (white, #00ff00) or an image, rather than a "
            "checkerboard. Videos then come as mp4."
        ),
    ] = None

    def side_files(self) -> list[str]:
        """Return the image to put people over."""
        return [] if self.over is None else [self.over]

    def with_defaults(self) -> Self:
        """With --over, save the drawing too."""
        from vitruvian.cli.outputs import OUT, file_kind

        if self.over is None or self.save is not None or self.to_stdout:
            return self
        if file_kind(self.task, Path(self.out or OUT).expanduser(), None) is not None:
            return self
        return dataclasses.replace(self, save="png,plot,mp4")

    def draw(self, result: Result, **options: object) -> NDArray[np.uint8] | Image.Image:
        """Draw people over a colour or an image, or over the checkerboard."""
        from vitruvian.results import Matte

        if self.over is None or not isinstance(result, Matte):
            return super().draw(result, **options)
        return result.over(self.over)
