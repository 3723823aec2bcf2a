"""The demo: people found in a few pictures, every task on them, files in a folder and one sheet of it all."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitruvian import hub
from vitruvian.draw import draw_boxes, sheet
from vitruvian.errors import InputError
from vitruvian.files import write_png
from vitruvian.pipelines import pipeline
from vitruvian.pipelines.people import find_people, open_finder
from vitruvian.pipelines.sources import BadFrame, Frame, open_source
from vitruvian.results.base import People, Picture

# task -> the ending of the file that its result is saved in; mattes first, since they say where others hold
TASKS = {"matte": ".png", "pose": ".json", "parts": ".png", "normals": ".png", "pointmap": ".ply", "albedo": ".png"}
COLUMNS = {
    "people": "people",
    "pose": "pose",
    "parts": "parts",
    "normals": "normals",
    "pointmap": "3D points",
    "matte": "matte",
    "albedo": "albedo",
}
SHEET_HEIGHT = 360  # of a picture on the sheet


@dataclass(frozen=True)
class DemoReport:
    """What the demo wrote.

    Attributes:
        sheet: The picture of all results.
        files: Every file, the sheet among them.
        people: How many people were found.
        seconds: How long it took.
    """

    sheet: Path
    files: list[Path]
    people: int
    seconds: float


def run_demo(
    pictures: Any = None,
    out: str | Path = "out/demo",
    *,
    model: str | Path = hub.BUILTIN,
    device: Any = None,
    progress: Callable[[str], None] | None = None,
) -> DemoReport:
    """Find people in pictures, run all six tasks on them, and write the results and a sheet into a folder.

    Args:
        pictures: Any source that pipelines take; by default the pictures that ship with the package.
        out: The folder, made if needed.
        model: The model inside the package, or a folder that is packed like it.
        device: Where models run; by default the best device here.
        progress: Is told what was done, line by line.
    """
    start, folder = time.perf_counter(), Path(out).expanduser()
    tell = progress or (lambda _: None)
    finder = open_finder(model, device=device)  # says so where there is no such model
    frames = read_frames(demo_pictures() if pictures is None else pictures)
    folder.mkdir(parents=True, exist_ok=True)
    names = stems(frames)
    files: list[Path] = []
    drawings: list[dict[str, Picture]] = []
    everyone: list[People] = []
    for frame, name in zip(frames, names, strict=True):
        people = find_people(finder, frame.picture, source=frame.name, nobody="none")
        drawn = draw_boxes(frame.picture, people.boxes_xyxy, scores=people.scores.tolist())
        files.append(folder / f"{name}_people.png")
        write_png(files[-1], drawn)
        drawings.append({"people": drawn})
        everyone.append(people)
    tell(f"people: {sum(map(len, everyone))} found in {len(frames)} pictures")
    inside: list[NDArray[np.bool_]] = []  # where people are [H, W], for each picture
    for task, ending in TASKS.items():
        pipe = pipeline(task, model, device=device)
        for number, (frame, people) in enumerate(zip(frames, everyone, strict=True)):
            result = pipe(frame, **({"boxes": people.boxes_xyxy} if len(people) else {"people": "whole"}))
            if task == "matte":
                inside.append(result.alpha > 0.5)
            elif task in ("normals", "pointmap", "albedo"):
                result = of_people(result, inside[number])
            files.append(result.save(folder / f"{names[number]}_{task}{ending}"))
            plain = {"legend": False} if task == "parts" else {}  # pictures on the sheet are too small to read one
            drawings[number][task] = np.asarray(result.plot(**plain).convert("RGB"))
        tell(f"{task}: {files[-1]}")
    whole = folder / "sheet.png"
    rows = [[drawing[task] for task in COLUMNS] for drawing in drawings]
    write_png(whole, sheet(rows, titles=list(COLUMNS.values()), height=SHEET_HEIGHT))
    return DemoReport(whole, [*files, whole], sum(map(len, everyone)), time.perf_counter() - start)


def of_people(result: Any, inside: NDArray[np.bool_]) -> Any:
    """Return normals, points or albedo without what lies outside people, which the small model never learned."""
    return replace(result, mask=inside if result.mask is None else result.mask & inside)


def demo_pictures() -> list[Path]:
    """Return the pictures that ship with the package."""
    return sorted(hub.BUILTIN_FOLDER.glob("*.jpg"))


def read_frames(pictures: Any) -> list[Frame]:
    """Read all pictures of a source."""
    frames = []
    for frame in open_source(pictures):
        if isinstance(frame, BadFrame):
            raise frame.error
        frames.append(frame)
    if not frames:
        raise InputError("pictures: expected at least one, got none.")
    return frames


def stems(frames: list[Frame]) -> list[str]:
    """Return a name for the files of each picture, no two alike."""
    names = [Path(frame.name.partition("?")[0]).stem or "picture" for frame in frames]
    return [f"{name}_{number}" if names.count(name) > 1 else name for number, name in enumerate(names)]
