"""Videos and cameras, one after another: drawn and recorded frame by frame, in constant memory."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.cli.inputs import Input
from vitruvian.cli.outputs import FRAME_NUMBER, IMAGE_ENDINGS, VIDEO_KINDS, result_paths
from vitruvian.cli.task_command import TaskJob
from vitruvian.errors import InputError
from vitruvian.files import create_video, json_text, replacing, write_picture
from vitruvian.pipelines.finders.tracked import TrackedFinder
from vitruvian.pipelines.runner import Failure
from vitruvian.pipelines.video import ResultSmoother, pipeline_task, run_video
from vitruvian.results import Result

if TYPE_CHECKING:
    from vitruvian.cli.run_task import TaskRun

LEGENDS = ("parts", "semantic")  # their drawings have a legend beside them, which would change the size of frames
CAMERA_FPS = 30
PREVIEW_SECONDS = 1.0


def run_video_file(run: TaskRun, pipe: Any, one: Input, *, changed: bool) -> None:
    """Process a video, or go on with one that was interrupted."""
    job, report = run.job, run.report
    if run.dataset is not None:
        raise InputError(f"{one.name}: --coco collects images, not videos. Leave it out, or use the .jsonl file.")
    files = run.claim(one)
    frames = FrameWriter(job, files)
    parts = [path.with_name(path.name + ".parts") for path in result_paths(files)]
    restart = job.results.overwrite or not any(path.is_dir() for path in parts)  # nothing to go on with
    if restart:
        frames.remove()
    with report.bar(one.name, None) as bar:
        made = run_video(
            one.path or str(one.source),
            pipeline_task(pipe, **run.pipeline_options()),
            out=frames.movie,
            records=files.get("json"),
            finder=run.open_detector(video=True),
            detect_every=job.video.detect_every,
            smooth=job.video.smooth,
            draw=frames.draw,
            record=frames.record,
            alpha=frames.alpha,
            sound=job.video.sound,
            preview=frames.preview,
            progress=bar.at,
            settings={"settings": run.settings},
            overwrite=restart,
        )
    if made.failures:
        raise InputError(f"{one.name}: {made.failures} of {made.frames} frames gave no result. Its .jsonl says which.")
    frames.check(made.frames)
    report.done(one.name, run.complete(one), changed=changed, frames=made.frames, resumed_at=made.resumed_at)


def run_camera(run: TaskRun, pipe: Any, one: Input, *, changed: bool) -> None:
    """Process a camera until Ctrl-C, or for the number of frames asked for; the video is complete either way."""
    job, report = run.job, run.report
    files = run.claim(one)
    frames = FrameWriter(job, files)
    options = run.pipeline_options()
    detector = run.open_detector(video=True)
    if detector is not None:
        options["finder"] = TrackedFinder(detector, every=job.video.detect_every)
    smoother = ResultSmoother() if job.video.smooth else None
    report.say(f"{one.name}: " + (f"{job.video.frames} frames" if job.video.frames else "Ctrl-C ends"))
    count = failures = 0
    writer = None
    interrupted = False
    with report.bar(one.name, job.video.frames) as bar, _lines(files.get("json")) as write_line:
        try:
            with pipe.run(one.source, **options) as results:
                for found in results:
                    if isinstance(found, Failure):
                        failures += 1
                        write_line({"frame": found.frame, "error": found.message})
                        if found.frame is None:  # the camera itself
                            raise found.error
                        continue
                    result = found if smoother is None else smoother(found)
                    image = frames.draw(result)
                    if frames.movie is not None:
                        if writer is None:
                            writer = create_video(frames.movie, CAMERA_FPS, result.size_hw, alpha=frames.alpha)
                        writer.write(image, result.time)
                    write_line(frames.record(result))
                    if frames.preview is not None:
                        frames.preview(count, image, result)
                    count += 1
                    bar.at(count)
                    if count == job.video.frames:
                        break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if writer is not None:
                writer.close()
    if count:
        report.done(one.name, run.complete(one), changed=changed, frames=count, failed_frames=failures)
    if interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _lines(path: Path | None) -> Iterator[Callable[[Mapping[str, object]], object]]:
    """Open a file with a line of JSON a frame, which appears when it is complete; yields the function that adds one."""
    if path is None:
        yield lambda values: None
        return
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield lambda values: file.write(json_text(dict(values)) + "\n")


class FrameWriter:
    """How the frames of a video are drawn and recorded.

    Attributes:
        movie: The video to write, or None.
        alpha: Whether it has an alpha channel.
        preview: Shows the latest frame in a file, if asked to.
    """

    def __init__(self, job: TaskJob, files: Mapping[str, Path]) -> None:
        self._own, self._records = job.own, files.get("json")
        self.movie = next((path for kind, path in files.items() if kind in VIDEO_KINDS), None)
        self._patterns = [path for path in files.values() if FRAME_NUMBER in path.name]
        # A matte is drawn as its alpha if the file can hold it and nothing is put behind.
        self.alpha = (
            job.own.task == "matte"
            and not getattr(job.own, "over", None)
            and self.movie is not None
            and self.movie.suffix.lower() in (".webm", ".mov")
        )
        self._plot_options = {"legend": False} if job.own.task in LEGENDS else {}
        self.preview = None if job.video.preview is None else Preview(job.video.preview)

    def draw(self, result: Result) -> NDArray[np.uint8]:
        """Draw a frame: RGB, or RGBA if the video has alpha."""
        changed: Any = self._own.change(result)
        return np.asarray(changed.rgba() if self.alpha else self._own.draw(changed, **self._plot_options))

    def record(self, result: Result) -> dict[str, Any]:
        """Return the record of a frame, and write the files that come one a frame."""
        changed = self._own.change(result)
        for path in self._patterns:
            changed.save(path.with_name(path.name.replace(FRAME_NUMBER, f"{result.frame or 0:05d}")))
        return changed.to_dict()

    def remove(self) -> None:
        """Remove the files of frames that an earlier run wrote."""
        for pattern in self._patterns:
            for file in self._frames(pattern):
                file.unlink()

    def check(self, count: int) -> None:
        """Raise `InputError` unless there is a record and a file of each kind for every frame."""
        found = {pattern.parent: len(self._frames(pattern)) for pattern in self._patterns}
        if self._records is not None:
            with self._records.open("rb") as file:
                found[self._records] = sum(1 for _ in file)
        for path, frames in found.items():
            if frames != count:
                raise InputError(f"{path}: expected {count} frames, got {frames}. Run it again with --overwrite.")

    def _frames(self, pattern: Path) -> list[Path]:
        before, after = (re.escape(part) for part in pattern.name.split(FRAME_NUMBER))
        form = re.compile(rf"{before}\d{{5,}}{after}")
        return [file for file in pattern.parent.glob("*") if form.fullmatch(file.name)]


class Preview:
    """Keeps the latest frame in an image file, written at most once a second."""

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in IMAGE_ENDINGS:
            raise InputError(f"--preview: expected a name that ends in .jpg, .png or .webp, got {path.name!r}.")
        self._path, self._last = path, -math.inf

    def __call__(self, number: int, image: NDArray[np.uint8], result: Result) -> None:
        """Show a frame, unless the last one was shown just now."""
        if time.monotonic() - self._last >= PREVIEW_SECONDS:
            write_picture(self._path, np.ascontiguousarray(image[..., :3]))
            self._last = time.monotonic()
