"""Videos and cameras, one after another: drawn and recorded frame by frame, in constant memory."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.cli.named_sources import NamedSource
from vitruvian.cli.output_plan import PLOT_EXTENSIONS, result_paths
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError
from vitruvian.files import write_image
from vitruvian.files.coco import write_youtube_vis
from vitruvian.files.video import FRAME_FORMAT
from vitruvian.filesystem.locks import OutputLock
from vitruvian.pipelines.video import (
    VideoOptions,
    VideoReport,
    frame_processor,
    run_video,
    run_video_range,
    split_video,
)
from vitruvian.pipelines.video.resume_folder import resume_path
from vitruvian.results import Result, Track
from vitruvian.tasks import ALPHA_VIDEO_FORMATS, CROPS, VIDEO_DATASET, VIDEO_FORMATS

if TYPE_CHECKING:
    from vitruvian.cli.run_task import TaskRun

_PREVIEW_SECONDS = 1.0


def run_video_file(run: TaskRun, pipe: Any, item: NamedSource, *, changed: bool, join: bool = False) -> None:
    """Process a video, or resume one that was interrupted.

    With `join`, `run_range` has processed all of its frames, and their segments are joined.
    """
    if run.dataset is not None:
        raise InputError(f"{item.name}: --coco collects images, not videos. Leave it out, or use the .jsonl file.")
    files = run.claim(item)
    frames = _FrameWriter(run.command, files, item.name)
    restart = not join and _restarts(run.command, files)
    try:
        report = _run_loop(run, pipe, item, frames, restart=restart, **run.command.state_options(files))
    except InputError:  # the results of the frames before are complete
        frames.write_dataset()
        raise
    frames.write_dataset()
    if report.failures:
        raise InputError(f"{item.name}: {report.failures} of {report.frames} frames failed. Its .jsonl says which.")
    frames.check(report.frames)
    note, paths = frames.finish_crops(), run.complete(item)
    details = {"frames": report.frames, "resumed_at": report.resumed_at}
    run.report.done(item.name, paths, changed=changed, note=note, **details)


def _restarts(command: TaskCommand, files: Mapping[str, Path]) -> bool:
    """Return whether a video is processed from its first frame on, rather than resumed."""
    return command.overwrite or not any(resume_path(path).is_dir() for path in result_paths(files))


def prepare_ranges(run: TaskRun, item: NamedSource, *, seconds: float) -> list[tuple[int, int | None]]:
    """Divide a video into ranges of frames for `run_range`."""
    files = run.claim(item)
    frames = _FrameWriter(run.command, files, item.name)
    restart = _restarts(run.command, files)
    return split_video(str(item.source), _video_options(run, frames, restart=restart), seconds=seconds)


def run_range(run: TaskRun, pipe: Any, item: NamedSource, frame_range: tuple[int, int | None]) -> None:
    """Process a range of frames of a video. Other workers process others, so only the range is locked."""
    files = run.planned_files(item)
    path = result_paths(files)[0]
    lock = OutputLock(run.plan.folder, {f"{run.journal.name_of(path)}@{frame_range[0]}": path})
    try:
        options = _video_options(run, _FrameWriter(run.command, files, item.name), restart=False)
        run_video_range(str(item.source), frame_processor(pipe, **run.call_options), options, frame_range)
    finally:
        lock.release()


def run_camera(run: TaskRun, pipe: Any, item: NamedSource, *, changed: bool) -> None:
    """Process a camera until Ctrl-C, or for a number of frames; the video is complete either way."""
    count = run.command.frames
    run.report.say(f"{item.name}: " + (f"{count} frames" if count else "Ctrl-C ends"))
    report = _run_loop(run, pipe, item, _FrameWriter(run.command, run.claim(item), item.name), restart=True)
    if report.frames:
        done, failed = report.frames - report.failures, report.failures
        run.report.done(item.name, run.complete(item), changed=changed, frames=done, failed_frames=failed)
    if report.interrupted:
        raise KeyboardInterrupt


def _run_loop(
    run: TaskRun,
    pipe: Any,
    item: NamedSource,
    frames: _FrameWriter,
    *,
    restart: bool,
    **state_options: Any,
) -> VideoReport:
    """Run the video loop over a file or a camera."""
    command = run.command
    max_frames = command.frames if item.kind == "camera" else None
    with run.report.bar(item.name, max_frames) as bar:
        options = replace(
            _video_options(run, frames, restart=restart),
            detector=run.video_detector(),
            preview=frames.preview,
            progress=bar.update,
            max_frames=max_frames,
            **state_options,
        )
        source = item.path or (item.source if isinstance(item.source, int) else str(item.source))
        return run_video(source, frame_processor(pipe, **run.call_options), options)


def _video_options(run: TaskRun, frames: _FrameWriter, *, restart: bool) -> VideoOptions:
    """Return what is written about a video, and with which settings."""
    command = run.command
    return VideoOptions(
        out=frames.video_path,
        records=frames.records,
        draw=frames.draw,
        record=frames.record,
        alpha=frames.alpha,
        settings={"digest": run.video_digest, **command.resume_settings()},
        frame_files=frames.file_names,
        on_start=frames.remove_frames_from,
        overwrite=restart,
        **command.video_options(),
    )


class _FrameWriter:
    """How the frames of a video are drawn and recorded.

    Attributes:
        video_path: The video to write, or None.
        records: The file with a line of JSON a frame, or None.
        alpha: Whether the video has an alpha channel.
        preview: Shows the latest frame in a file, or None.
    """

    def __init__(self, command: TaskCommand, files: Mapping[str, Path], source: str) -> None:
        self._command, self.records, self._source = command, files.get("json"), source
        self.video_path = next((path for name, path in files.items() if name in VIDEO_FORMATS), None)
        self._crops, self._dataset = files.get(CROPS), files.get(VIDEO_DATASET)
        self._patterns = [path for name, path in files.items() if FRAME_FORMAT in path.name and name != CROPS]
        holds_alpha = self.video_path is not None and self.video_path.suffix.lower().lstrip(".") in ALPHA_VIDEO_FORMATS
        self.alpha = command.transparent and holds_alpha
        self.preview = None if command.preview is None else Preview(command.preview)

    def draw(self, result: Result) -> NDArray[np.uint8]:
        """Draw a frame: RGB, or RGBA if the video has alpha."""
        converted: Any = self._command.output.convert(result)
        return np.asarray(converted.rgba() if self.alpha else self._command.output.draw_frame(converted))

    def record(self, result: Result) -> dict[str, Any]:
        """Return the record of a frame, and write the files that come one a frame."""
        converted = self._command.output.convert(result)
        for path in self._patterns:
            converted.save(path.with_name(path.name.replace(FRAME_FORMAT, FRAME_FORMAT % (result.frame or 0))))
        if self._crops is not None and isinstance(converted, Track):
            for object_id in converted.object_ids.tolist():
                crop = converted.crop(object_id)
                if crop is not None:
                    name = self._crops.name.replace(FRAME_FORMAT, f"{FRAME_FORMAT % (result.frame or 0)}_{object_id}")
                    write_image(self._crops.with_name(name), crop)
        return converted.to_dict() | {"source": self._source}

    @property
    def file_names(self) -> list[str]:
        """Names of the files that are written for each frame, as patterns."""
        patterns = [*self._patterns, *([] if self._crops is None else [self._crops])]
        return [f"{path.parent.name}/{path.name}" for path in patterns]

    def remove_frames_from(self, first: int) -> None:
        """Remove the files that an earlier run wrote for a frame and those after it."""
        numbered = [found for pattern in self._patterns for found in self._frames(pattern)]
        numbered += [] if self._crops is None else _crop_files(self._crops.parent)
        for number, file in numbered:
            if number >= first:
                file.unlink()

    def write_dataset(self) -> None:
        """Write the records as a dataset, if one was asked for."""
        if self._dataset is not None and self.records is not None and self.records.is_file():
            write_youtube_vis(self._dataset, self.records, name=Path(self._source).name)

    def check(self, count: int) -> None:
        """Raise `InputError` unless there is a record and a file of each format for every frame."""
        counts = {pattern.parent: len(self._frames(pattern)) for pattern in self._patterns}
        if self.records is not None:
            with self.records.open("rb") as file:
                counts[self.records] = sum(1 for _ in file)
        for path, frames in counts.items():
            if frames != count:
                raise InputError(f"{path}: expected {count} frames, got {frames}. Run it again with --overwrite.")

    def finish_crops(self) -> str | None:
        """Make the folder of crops, which were asked for, and return a note if there are none."""
        if self._crops is None or _crop_files(self._crops.parent):
            return None
        self._crops.parent.mkdir(parents=True, exist_ok=True)
        return "no object is visible in any frame, so there are no crops"

    def _frames(self, pattern: Path) -> list[tuple[int, Path]]:
        """List the files of a pattern, with the numbers of their frames."""
        before, after = (re.escape(part) for part in pattern.name.split(FRAME_FORMAT))
        return _numbered(pattern.parent, rf"{before}(\d{{5,}}){after}")


def _crop_files(folder: Path) -> list[tuple[int, Path]]:
    """List the crops in a folder, FRAME_OBJECT.png, with the numbers of their frames."""
    return _numbered(folder, r"(\d{5,})_\d+\.png")


def _numbered(folder: Path, frame_name: str) -> list[tuple[int, Path]]:
    matches = ((re.fullmatch(frame_name, file.name), file) for file in folder.glob("*"))
    return [(int(match[1]), file) for match, file in matches if match is not None]


class Preview:
    """Keeps the latest frame in an image file, written at most once a second."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in PLOT_EXTENSIONS:
            raise InputError(f"--preview: expected a name that ends in .jpg, .png or .webp, got {path.name!r}.")
        self._path, self._last = path, -math.inf

    def __call__(self, number: int, image: NDArray[np.uint8], result: Result) -> None:
        """Show a frame, unless the last one was shown just now."""
        if time.monotonic() - self._last >= _PREVIEW_SECONDS:
            write_image(self._path, np.ascontiguousarray(image[..., :3]))
            self._last = time.monotonic()
