"""What `--save` and `--out` mean: the file formats of a task, and the paths that results go to.

The formats that are written by default are in `tasks.py`.

A file format is an extension that results of the task can be saved as (json, npz, 16.png, …), or plot and plot.jpg for
the drawing: OUT/photo_pose.json, OUT/photo_pose_plot.png. Of a video, plot, mp4, webm and mov give a video, json a
line of JSON per frame, and the others a folder of numbered files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vitruvian.cli.named_sources import NamedSource
from vitruvian.cli.option_groups import STDIO
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError
from vitruvian.files.video import FRAME_FORMAT
from vitruvian.filesystem.media_files import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from vitruvian.filesystem.output_paths import output_path
from vitruvian.tasks import CROPS, PLOTS, VIDEO_DATASET, VIDEO_FORMATS, Task, file_extension

OUT = "out"  # the default of --out
PLOT_EXTENSIONS = (".png", ".jpg", ".jpeg", ".webp")
_FILE_SUFFIXES = {".csv", ".exr", ".glb", ".json", ".jsonl", ".npy", ".npz", ".obj", ".ply", ".txt"}


@dataclass(frozen=True)
class _Formats:
    """The file formats to write for an image and for a video, and whether `--save` names one that only videos have."""

    image: tuple[str, ...]
    video: tuple[str, ...]
    names_video: bool = False


def _read_save(task: Task, save: str | None) -> _Formats:
    """Read `--save`."""
    if save is None:
        return _Formats(task.default_image_formats, task.default_video_formats)
    words = task.read_formats(save)
    has_video = not set(words).isdisjoint(VIDEO_FORMATS)
    video = [word for word in words if word not in PLOTS or not has_video]  # the drawing of a video is a video
    return _Formats(
        image=tuple(word for word in words if word in task.image_formats()),
        video=tuple(dict.fromkeys("mp4" if word in PLOTS else word for word in video)),
        names_video=has_video or VIDEO_DATASET in words,
    )


def named_format(task: Task, out: Path, save: str | None) -> str | None:
    """Return the file format that `--out` names, or None if it names a folder."""
    if out.is_dir():
        return None
    formats = None if save is None else _read_save(task, save)
    if formats is not None and len(formats.image) == 1 and out.suffix.lower() in PLOT_EXTENSIONS:
        (only,) = formats.image
        if only in PLOTS:
            return only
    name = out.name.lower()
    others = [other for other in (*task.save_formats(), "jsonl") if other not in PLOTS]
    matching = [other for other in others if name.endswith(f".{other}")]
    if not matching:
        return _plot_format(task, out)
    file_format = max(matching, key=len).replace("jsonl", "json")
    if formats is not None and {file_format} != {*formats.image, *formats.video}:
        raise InputError(f"--save {save}: differs from the format of --out {out.name}. Drop --save.")
    return file_format


def _plot_format(task: Task, out: Path) -> str | None:
    """Return the format of the drawing for a file name that results are not saved as; None for a folder's name.

    Raises:
        InputError: It is the name of a file that cannot be written.
    """
    suffix = out.suffix.lower()
    advice = task.result_class().refused_extensions.get(suffix, "")
    if suffix in PLOT_EXTENSIONS and task.takes_images and not advice:
        return "plot" if suffix == ".png" else "plot.jpg"
    if suffix in IMAGE_SUFFIXES | VIDEO_SUFFIXES | _FILE_SUFFIXES:
        known = ", ".join(f".{other}" for other in task.save_formats() if other not in PLOTS)
        raise InputError(f"--out {out.name}: expected a folder or a name that ends in {known}, got {suffix!r}.{advice}")
    return None


class OutputPlan:
    """Where the results of a command go: standard output, one file, or files in a folder.

    Attributes:
        folder: The output folder; that of the file if `--out` names one.
        stdout_format: The file format for standard output, or None.
        file: The one file that `--out` names, or None.
    """

    def __init__(self, command: TaskCommand) -> None:
        self.task, self.save = command.task, command.save
        self.file: Path | None = None
        self.stdout_format: str | None = None
        self._formats = _Formats((), ())
        self._file_format: str | None = None
        self.folder = out = Path(OUT if command.to_stdout else command.out or OUT).expanduser()
        if command.to_stdout:
            self.stdout_format = self._one_format()
            return
        self._file_format = named_format(self.task, out, self.save)
        if self._file_format is not None:
            self.file, self.folder = out, out.parent
        else:
            self._formats = _read_save(self.task, self.save)
            if out.exists() and not out.is_dir():
                raise InputError(f"--out {out}: expected a folder for results, got a file. Choose another.")

    @property
    def sequences_are_videos(self) -> bool:
        """Whether numbered images give one result: where a video is to be written, or the task is for videos."""
        return not self.task.takes_images or self._formats.names_video or self._file_format in VIDEO_FORMATS

    @property
    def image_formats(self) -> tuple[str, ...]:
        """File formats that are written for an image."""
        return self._formats.image

    def _one_format(self) -> str:
        default = self.task.default_image_formats[:1]
        formats = default if self.save is None else _read_save(self.task, self.save).image
        if len(formats) != 1:
            raise InputError(f"--out {STDIO}: expected one format in --save, got {self.save!r}. Choose one.")
        return formats[0]

    def check(self, sources: list[NamedSource]) -> None:
        """Raise `InputError` where the sources cannot go to standard output or into one file."""
        if self.file is not None and len(sources) > 1:
            raise InputError(
                f"--out {self.file}: expected a folder for {len(sources)} sources, got a file's name. Name a folder."
            )
        if self.stdout_format is None:
            return
        if len(sources) > 1 and self.stdout_format != "json":
            raise InputError(
                f"--out {STDIO}: expected one image for {self.stdout_format}, got {len(sources)}. "
                "Use --save json, or a folder."
            )
        if any(item.is_video for item in sources):
            raise InputError(f"--out {STDIO}: expected images, got a video or a camera. Name a folder.")

    def files(self, item: NamedSource) -> dict[str, Path]:
        """Return the file of each format for a source; of formats with a file per frame, their pattern."""
        if self.file is not None and self._file_format in (VIDEO_DATASET, CROPS):
            raise InputError(f"--out {self.file}: expected a folder for {self._file_format}, got a file.")
        if self.file is not None and FRAME_FORMAT in self.file.name and not item.is_video:
            raise InputError(
                f"--out {self.file}: {FRAME_FORMAT} numbers the frames of a video, got an image. Leave it out."
            )
        if self.file is not None and self._file_format is not None:
            fits = item.is_video or self._file_format in self.task.image_formats()
            return {self._file_format: self.file} if fits else {}
        if not item.is_video:
            stem = item.stem.replace(FRAME_FORMAT, FRAME_FORMAT.replace("%", "_"))
            return {name: self._path(stem, file_extension(name)) for name in self._formats.image}
        stem = item.stem.replace("%", "_")  # %05d stands for the number of a frame
        stem = f"{stem}_{time.strftime('%Y%m%d-%H%M%S')}" if item.kind == "camera" else stem
        formats = self._formats.video
        if "json" not in formats and (VIDEO_DATASET in formats or not set(formats) & set(VIDEO_FORMATS)):
            formats = (*formats, "json")  # tells which frames are done, and datasets are made of it
        return {name: self._video_path(stem, name) for name in formats}

    def _path(self, stem: str, extension: str) -> Path:
        return output_path(self.folder, stem, f"_{self.task.name}{extension}")

    def _video_path(self, stem: str, file_format: str) -> Path:
        if file_format in (*VIDEO_FORMATS, "json", VIDEO_DATASET):
            return self._path(stem, ".jsonl" if file_format == "json" else f".{file_format}")
        if file_format == CROPS:
            return output_path(self._path(stem, f"_{CROPS}"), FRAME_FORMAT, ".png")
        folder = self._path(stem, "")
        if not self.task.takes_images:  # the names that datasets of tracked objects have
            return output_path(folder, FRAME_FORMAT, file_extension(file_format))
        return output_path(folder, folder.name, f"_{FRAME_FORMAT}{file_extension(file_format)}")


def result_paths(files: Mapping[str, Path]) -> list[Path]:
    """Return the files of a result, and the folder of those with a file per frame."""
    paths: Iterable[Path] = files.values()
    return list(dict.fromkeys(path.parent if FRAME_FORMAT in path.name else path for path in paths))
