"""Options about people, and texts of options → what pipelines take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitruvian.cli.checkpoints import own_finder
from vitruvian.cli.options import Batch, People, Tiles
from vitruvian.errors import InputError
from vitruvian.pipelines.limits import MIN_TILE_SIDE
from vitruvian.pipelines.people import open_finder

if TYPE_CHECKING:
    from vitruvian.cli.jobs import Job

TRACKED_THRESHOLD = 0.1  # of finders in videos: the tracker knows what to do with unsure people


def people_options(job: Job, pipe: Any, *, video: bool = False) -> dict[str, Any]:
    """Return the options of a pipeline's call about people; opening the finder may load a model.

    In a video the finder is left out: `open_video_finder` gives it.
    """
    people = job.people
    if people is None:
        return {}
    found: dict[str, Any] = {"box_form": people.box_form, "nobody": people.nobody, "max_people": people.max_people}
    found["people"] = people.people
    if people.boxes and boxes_file(people) is None:
        found["boxes"] = [read_numbers("--boxes", text, 4) for text in people.boxes]
    if not video and (spec := finder_spec(job)) is not None:
        found["finder"] = open_finder(spec, device=pipe.device, threshold=people.finder_threshold)
    return found


def open_video_finder(job: Job, pipe: Any) -> Any:
    """Return who finds people in the frames of a video, or None."""
    people = job.people
    spec = finder_spec(job)
    if people is None or spec is None:
        return None
    listed = boxes_file(people) is not None
    threshold = people.finder_threshold if people.finder_threshold is not None or listed else TRACKED_THRESHOLD
    return open_finder(spec, device=pipe.device, threshold=threshold)


def finder_spec(job: Job) -> str | Path | None:
    """Return who finds people: a finder, a file of boxes, or the model itself where it can; None where nobody does."""
    people = job.people
    if people is None or people.people == "whole":
        return None
    if people.finder or people.boxes:
        return people.finder or boxes_file(people)
    return None if job.options.get("tile") else own_finder(job.model.model)


def boxes_file(people: People) -> Path | None:
    """Return the file that --boxes names, if it does."""
    files = [Path(text).expanduser() for text in people.boxes or () if text.lower().endswith((".json", ".csv"))]
    if not files:
        return None
    if len(people.boxes or ()) > 1:
        raise InputError("--boxes: expected one file, or boxes x1,y1,x2,y2, got several. Put them into one file.")
    return files[0]


def read_numbers(option: str, text: str, *counts: int) -> list[float]:
    """Read numbers with commas between, as many as one of `counts`."""
    try:
        found = [float(word) for word in text.replace(" ", "").split(",")]
    except ValueError:
        found = []
    if len(found) not in counts:
        number = " or ".join(str(count) for count in counts)
        raise InputError(f"{option}: expected {number} numbers with commas between, got {text!r}.")
    return found


def read_batch_size(text: str) -> int | str:
    """Read --batch-size."""
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"--batch-size: expected a number of at least 1, or auto, got {text!r}.")
    return int(text)


def read_tile(text: str | None) -> int | tuple[int, int] | bool | None:
    """Read --tile."""
    if text is None or text == "auto":
        return None if text is None else True
    size = re.fullmatch(r"(\d+)(?:[x×](\d+))?", text)
    if not size or min(int(side) for side in size.groups() if side) < MIN_TILE_SIDE:
        raise InputError(
            f"--tile: expected pixels such as 1024 or 1024x768 (height x width), at least {MIN_TILE_SIDE}, or auto, "
            f"got {text!r}."
        )
    return (int(size[1]), int(size[2])) if size[2] else int(size[1])


def dense_options(batch: Batch, tiles: Tiles) -> dict[str, Any]:
    """Return the options that all maps of Sapiens2 share."""
    tile = read_tile(tiles.tile)
    return {"batch_size": read_batch_size(batch.batch_size), "tile": tile, "overlap": tiles.overlap}
