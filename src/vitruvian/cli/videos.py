"""Videos and cameras, one after another: drawn and recorded frame by frame, in constant memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.atomic import atomic_write
from vitruvian.cli.items import Item
from vitruvian.cli.kinds import MOVIES, shown_files
from vitruvian.cli.reading import open_video_finder, people_options
from vitruvian.errors import InputError
from vitruvian.files import create_video, json_text, write_image
from vitruvian.pipelines.finders.tracked import TrackedFinder
from vitruvian.pipelines.runner import Failure
from vitruvian.pipelines.video import ResultSmoother, pipeline_task, run_video

if TYPE_CHECKING:
    from vitruvian.cli.jobs import Job, Worker

LEGENDS = ("parts", "semantic")  # whose drawings have a legend beside them, which would change the size of frames
CAMERA_RATE = 30
PREVIEW_SECONDS = 1.0


def run_one_video(worker: Worker, pipe: Any, item: Item, *, anew: bool) -> None:
    """Run a video, or go on with one."""
    job, report = worker.job, worker.report
    files = worker.files_of(item)
    if job.coco is not None:
        raise InputError(f"{item.name}: --coco gathers pictures, not videos. Leave it out, or use the .jsonl file.")
    scene = Scene(job, files)
    with report.bar(item.name, None) as bar:
        made = run_video(
            item.path or str(item.source),
            pipeline_task(pipe, **job.options, **people_options(job, pipe, video=True)),
            out=scene.movie,
            records=files.get("json"),
            finder=open_video_finder(job, pipe),
            detect_every=job.video.detect_every,
            smooth=job.video.smooth,
            draw=scene.draw,
            record=scene.record,
            alpha=scene.alpha,
            sound=job.video.sound,
            preview=scene.preview,
            progress=bar.at,
            settings={"settings": worker.settings},
            overwrite=anew,
        )
    if made.failures:
        report.failed(item.name, f"{made.failures} of {made.frames} frames gave no result. Its .jsonl says which.")
        return
    shown = shown_files(files)
    worker.journal.add(item, shown, worker.settings)
    report.done(item.name, shown, anew=anew, frames=made.frames, resumed_at=made.resumed_at)


def run_camera(worker: Worker, pipe: Any, item: Item, *, anew: bool) -> None:
    """Run a camera until Ctrl-C, or for as many frames as asked for; the video is whole either way."""
    job, report = worker.job, worker.report
    files = worker.files_of(item)
    scene = Scene(job, files)
    finder = open_video_finder(job, pipe)
    options = dict(job.options) | people_options(job, pipe, video=True)
    if finder is not None:
        options["finder"] = TrackedFinder(finder, every=job.video.detect_every)
    smoother = ResultSmoother() if job.video.smooth else None
    report.say(f"{item.name}: " + (f"{job.video.frames} frames" if job.video.frames else "Ctrl-C ends"))
    count = failures = 0
    writer = None
    stopped = False
    with report.bar(item.name, job.video.frames) as bar, Lines(files.get("json")) as records:
        try:
            with pipe.run(item.source, **options) as results:
                for found in results:
                    if isinstance(found, Failure):
                        failures += 1
                        records.add({"frame": found.frame, "error": found.message})
                        if found.frame is None:  # the camera itself
                            raise found.error
                        continue
                    result = found if smoother is None else smoother(found)
                    picture = scene.draw(result)
                    if scene.movie is not None:
                        if writer is None:
                            writer = create_video(scene.movie, CAMERA_RATE, result.size_hw, alpha=scene.alpha)
                        writer.write(picture, result.time)
                    records.add(scene.record(result))
                    if scene.preview is not None:
                        scene.preview(count, picture, result)
                    count += 1
                    bar.at(count)
                    if count == job.video.frames:
                        break
        except KeyboardInterrupt:
            stopped = True
        finally:
            if writer is not None:
                writer.close()
    if count:
        report.done(item.name, shown_files(files), frames=count, failed_frames=failures)
    if stopped:
        raise KeyboardInterrupt


class Lines:
    """A file with a line of JSON a frame, which appears when it is whole."""

    def __init__(self, path: Path | None) -> None:
        self.place = None if path is None else atomic_write(path)
        self.file: Any = None

    def __enter__(self) -> Lines:
        if self.place is not None:
            self.file = self.place.__enter__().open("w", encoding="utf-8")
        return self

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a line."""
        if self.file is not None:
            self.file.write(json_text(dict(values)) + "\n")

    def __exit__(self, *error: Any) -> None:
        if self.place is not None:
            self.file.close()
            self.place.__exit__(*error)


class Scene:
    """How the frames of a video are drawn and recorded."""

    def __init__(self, job: Job, files: Mapping[str, Path]) -> None:
        self.job = job
        self.movie = next((path for kind, path in files.items() if kind in MOVIES), None)
        self.frames = {kind: path for kind, path in files.items() if kind not in MOVIES and kind != "json"}
        # A matte is its alpha, as long as the file can hold it and nothing is to be put behind.
        self.alpha = (
            job.command == "matte"
            and job.draw is None
            and self.movie is not None
            and self.movie.suffix.lower() in (".webm", ".mov")
        )
        self.more = {"legend": False} if job.command in LEGENDS else {}
        self.preview = None if job.video.preview is None else Preview(job.video.preview)

    def draw(self, result: Any) -> NDArray[np.uint8]:
        """Draw a frame: RGB, or RGBA where the video has alpha."""
        changed = self.job.changed(result)
        if self.alpha:
            rgba: NDArray[np.uint8] = changed.rgba()
            return rgba
        return np.asarray(self.job.drawing(changed, **self.more))

    def record(self, result: Any) -> dict[str, Any]:
        """Tell of a frame, and write the files that come one a frame."""
        changed = self.job.changed(result)
        for path in self.frames.values():
            changed.save(path.with_name(path.name.replace("%05d", f"{result.frame or 0:05d}")))
        told: dict[str, Any] = changed.to_dict()
        return told


class Preview:
    """Keeps a picture of the latest frame in a file, at most one a second."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        if path.suffix.lower() not in (".jpg", ".jpeg", ".png", ".webp"):
            raise InputError(f"--preview: expected a name that ends in .jpg, .png or .webp, got {path.name!r}.")
        self.path, self.clock, self.last = path, clock, -math.inf

    def __call__(self, number: int, picture: NDArray[np.uint8], result: Any) -> None:
        """Show a frame, unless the last one is too fresh."""
        if self.clock() - self.last >= PREVIEW_SECONDS:
            write_image(self.path, np.ascontiguousarray(picture[..., :3]))
            self.last = self.clock()
