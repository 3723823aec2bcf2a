"""`vitruvian pointmap`: where each pixel is in space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from vitruvian.cli.options import Batch, Messages, Model, People, Results, Sources, Tiles, Video
from vitruvian.errors import InputError

OWN = "Camera"
EXAMPLE = "vitruvian pointmap photo.jpg --model facebook/sapiens2-pointmap-0.4b --save ply,png"


@dataclass(frozen=True, kw_only=True)
class PointmapOptions:
    """What is known of the camera, and how points are told."""

    intrinsics: Annotated[
        str | None,
        Option(
            "--intrinsics",
            "-K",
            help="The camera in pixels: fx,fy,cx,cy, or a .json or .npy file with the matrix [3, 3].",
            show_default=False,
            rich_help_panel=OWN,
        ),
    ] = None
    fov: Annotated[
        float | None, Option(help="Horizontal field of view in degrees.", show_default=False, rich_help_panel=OWN)
    ] = None
    exif: Annotated[bool, Option(help="Believe the focal length that the file tells.", rich_help_panel=OWN)] = True
    convention: Annotated[
        Literal["opencv", "opengl"],
        Option(help="opencv: x right, y down, z away; opengl: x right, y up, z towards you.", rich_help_panel=OWN),
    ] = "opencv"


def pointmap(
    sources: Sources,
    results: Results,
    model: Model,
    batch: Batch,
    tiles: Tiles,
    people: People,
    own: PointmapOptions,
    video: Video,
    messages: Messages,
) -> None:
    """Tell where each pixel is in space: point clouds, depth and the focal length. With Sapiens2.

    Points are in metres where the camera is known or the model tells the scale.

    --save takes ply, glb, npz, exr, png (depth in colours), 16.png (depth in millimetres), json (the camera), plot,
    plot.jpg; of videos also mp4, webm, mov.
    """
    from vitruvian.cli.jobs import Job, run_job
    from vitruvian.cli.reading import dense_options

    known = {"K": read_intrinsics(own.intrinsics), "fov": own.fov, "exif": own.exif, "convention": own.convention}
    run_job(
        Job(
            command="pointmap",
            sources=sources,
            results=results,
            model=model,
            messages=messages,
            video=video,
            people=people,
            options=dense_options(batch, tiles) | known,
        )
    )


def read_intrinsics(text: str | None) -> Any:
    """Read a camera matrix: four numbers, or a file."""
    import json

    import numpy as np

    from vitruvian.cli.reading import read_numbers

    if text is None:
        return None
    path = Path(text).expanduser()
    if path.suffix.lower() not in (".json", ".npy"):
        fx, fy, cx, cy = read_numbers("--intrinsics", text, 4)
        return [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]
    try:
        found = np.load(path) if path.suffix.lower() == ".npy" else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: expected a file with a camera matrix, got {type(error).__name__}.") from error
    if isinstance(found, dict):  # as `--save json` of this command writes it
        found = found.get("intrinsics", found.get("K"))
    table = np.asarray(found, dtype=np.float64) if found is not None else np.zeros(0)
    if table.shape != (3, 3):
        raise InputError(f"{path}: expected a camera matrix [3, 3], got the shape {list(table.shape)}.")
    return table.tolist()
