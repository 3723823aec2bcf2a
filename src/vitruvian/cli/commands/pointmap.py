"""`vitruvian pointmap`: a 3D point for each pixel."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from vitruvian.cli.options import Batch, People, Tiles, read_numbers
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Command(TaskCommand):
    """Estimate where each pixel is in space: point clouds, depth and the focal length. With Sapiens2.

    Points are in metres where the camera is known or the model tells the scale.

    --save takes ply, glb, npz, exr, png (depth in colours), 16.png (depth in millimetres), json (the camera), plot,
    plot.jpg; of videos also mp4, webm, mov.
    """

    task = "pointmap"
    example = "vitruvian pointmap photo.jpg --model facebook/sapiens2-pointmap-0.4b --save ply,png"
    groups = (Batch, Tiles, People)
    panel = "Camera"
    call_names = ("fov", "exif", "convention")

    intrinsics: Annotated[
        str | None,
        Option(
            "--intrinsics",
            "-K",
            help="The camera in pixels: fx,fy,cx,cy, or a .json or .npy file with the matrix [3, 3].",
        ),
    ] = None
    fov: Annotated[float | None, Option(help="Horizontal field of view in degrees.")] = None
    exif: Annotated[bool, Option(help="Use the focal length in the file's EXIF.")] = True
    convention: Annotated[
        Literal["opencv", "opengl"],
        Option(help="opencv: x right, y down, z away; opengl: x right, y up, z towards you."),
    ] = "opencv"

    def call_options(self) -> dict[str, object]:
        """Return the options of the pipeline's call."""
        matrix = None if self.intrinsics is None else read_intrinsics(self.intrinsics)
        return super().call_options() | {"K": matrix}


def read_intrinsics(text: str) -> list[list[float]]:
    """Read a camera matrix: four numbers, or a file."""
    import numpy as np

    path = Path(text).expanduser()
    if path.suffix.lower() not in (".json", ".npy"):
        fx, fy, cx, cy = read_numbers("--intrinsics", text, 4)
        return [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]
    try:
        values = np.load(path) if path.suffix.lower() == ".npy" else json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):  # as `--save json` of this command writes it
            values = values.get("intrinsics", values.get("K"))
        table = np.asarray([] if values is None else values, dtype=np.float64)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: expected a file with a camera matrix, got {type(error).__name__}.") from error
    if table.shape != (3, 3):
        raise InputError(f"{path}: expected a camera matrix [3, 3], got the shape {list(table.shape)}.")
    rows: list[list[float]] = table.tolist()
    return rows
