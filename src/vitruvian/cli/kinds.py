"""What `--save` can name for each task, and which files that gives.

A kind is an ending that the task's result can be saved as (json, npz, 16.png, …), or plot and plot.jpg for the drawing.
Of a picture, OUT/photo_pose.json, OUT/photo_pose_plot.png. Of a video, plot, mp4, webm and mov give a video, json gives
a line of JSON a frame, and the others a folder of numbered files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitruvian.errors import InputError, near_matches

PLOTS = {"plot": "_plot.png", "plot.jpg": "_plot.jpg"}
MOVIES = ("mp4", "webm", "mov")


@dataclass(frozen=True)
class Task:
    """A command that looks at pictures.

    Attributes:
        command: Its name, also in the names of files.
        pipeline: The pipeline's.
        result: Class of its results, in `vitruvian.results`.
        save: What is written of a picture by default.
        video: What is written of a video by default.
    """

    command: str
    pipeline: str
    result: str
    save: tuple[str, ...]
    video: tuple[str, ...] = ("mp4", "json")

    def result_class(self) -> Any:
        """The class of its results."""
        return getattr(importlib.import_module("vitruvian.results"), self.result)

    def kinds(self) -> tuple[str, ...]:
        """Everything that `--save` takes for it."""
        own = self.picture_kinds()
        return (*own, *MOVIES, *(() if "json" in own else ("json",)))

    def picture_kinds(self) -> tuple[str, ...]:
        """What can be written of a picture; for videos there is json whatever the task."""
        return (*(ending.lstrip(".") for ending in self.result_class().endings), *PLOTS)


TASKS: dict[str, Task] = {
    task.command: task
    for task in (
        Task("pose", "pose", "Pose", ("json", "plot")),
        Task("parts", "parts", "Parts", ("png", "plot")),
        Task("normals", "normals", "Normals", ("png",)),
        Task("pointmap", "pointmap", "Pointmap", ("ply", "png")),
        Task("matte", "matte", "Matte", ("png",), video=("webm", "json")),
        Task("albedo", "albedo", "Albedo", ("png",)),
        Task("segment", "segment", "Masks", ("json", "plot")),
        Task("masks", "mask-generation", "Masks", ("json", "plot")),
        Task("semantic", "semantic", "Semantic", ("png", "plot")),
        Task("instances", "instance", "Masks", ("json", "plot")),
        Task("panoptic", "panoptic", "Panoptic", ("png", "json", "plot")),
        Task("embed", "embed", "Embedding", ("npz",)),
    )
}


@dataclass(frozen=True)
class Saved:
    """What to write: of pictures, and of videos."""

    picture: tuple[str, ...]
    video: tuple[str, ...]


def read_kinds(task: Task, save: str | None) -> Saved:
    """Read `--save`."""
    if save is None:
        return Saved(task.save, task.video)
    known = task.kinds()
    asked = tuple(dict.fromkeys(word.strip().lower().lstrip(".") for word in save.split(",") if word.strip()))
    if not asked:
        raise InputError(f"--save: expected one or more of {', '.join(known)}, got nothing.")
    for word in asked:
        if word not in known:
            result = task.result_class()
            why = result.why_not(result, f".{word}")  # JPEG of mattes, say; no result is needed to tell
            raise InputError(
                f"--save: expected one or more of {', '.join(known)} for {task.command}, got {word!r}."
                f"{near_matches(word, known)}{why}"
            )
    movies = [word for word in asked if word in MOVIES]
    if len(movies) > 1:
        raise InputError(f"--save: expected one kind of video, got {' and '.join(movies)}. Run twice for two.")
    moving = [word for word in asked if word not in PLOTS or not movies]  # a drawing of a video is a video
    return Saved(
        picture=tuple(word for word in asked if word in task.picture_kinds()),
        video=tuple(dict.fromkeys("mp4" if word in PLOTS else word for word in moving)),
    )


def ending_of(kind: str, *, video: bool = False) -> str:
    """Return what follows NAME_TASK in the name of a file of this kind."""
    if video and kind == "json":
        return ".jsonl"
    return PLOTS.get(kind, f".{kind}")


def file_kind(task: Task, out: Path, save: str | None) -> str | None:
    """Return the kind of file that `--out` names, or None where it names a folder."""
    name = out.name.lower()
    if out.is_dir():
        return None
    asked = None if save is None else read_kinds(task, save)
    if asked is not None and len(asked.picture) == 1 and asked.picture[0] in PLOTS and out.suffix.lower() in PICTURES:
        return asked.picture[0]
    fitting = [kind for kind in (*task.kinds(), "jsonl") if kind not in PLOTS and name.endswith(f".{kind}")]
    if not fitting:
        return None
    kind = max(fitting, key=len)
    kind = "json" if kind == "jsonl" else kind
    if asked is not None and {kind} != {*asked.picture, *asked.video}:
        raise InputError(f"--save {save} and --out {out.name}: expected one or the other, or both alike. Drop --save.")
    return kind


PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def picture_files(folder: Path, stem: str, task: Task, kinds: Iterable[str]) -> dict[str, Path]:
    """Return the file of each kind for the results of a picture."""
    return {kind: folder / f"{stem}_{task.command}{ending_of(kind)}" for kind in kinds}


def video_files(folder: Path, stem: str, task: Task, kinds: Iterable[str]) -> dict[str, Path]:
    """Return the file of each kind for the results of a video; of those that come a file a frame, their pattern."""
    found: dict[str, Path] = {}
    for kind in kinds:
        name = f"{stem}_{task.command}"
        if kind in MOVIES or kind == "json":
            found[kind] = folder / f"{name}{ending_of(kind, video=True)}"
        else:
            found[kind] = folder / name / f"{Path(name).name}_%05d{ending_of(kind)}"
    return found


def shown_files(files: Mapping[str, Path]) -> list[Path]:
    """Return the paths to tell people: files, and the folder of those that come a file a frame."""
    return list(dict.fromkeys(path.parent if "%05d" in path.name else path for path in files.values()))
