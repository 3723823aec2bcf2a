"""Videos and cameras, one after another: drawn and recorded frame by frame, in constant memory."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitruvian.cli.items import Item
from vitruvian.cli.kinds import MOVIES, shown_files
from vitruvian.cli.reading import open_video_finder, people_options
from vitruvian.errors import InputError
from vitruvian.files import write_image
from vitruvian.pipelines.video import VideoReport, pipeline_task, run_video

if TYPE_CHECKING:
    from vitruvian.cli.jobs import Job, Worker

LEGENDS = ("parts", "semantic")  # whose drawings have a legend beside them, which would change the size of frames
PREVIEW_SECONDS = 1.0


def run_one_video(worker: Worker, pipe: Any, item: Item, *, anew: bool) -> None:
    """Run a video file, or resume it."""
    files = worker.files_of(item)
    made = run_loop(worker, pipe, item, files, anew=anew)
    if made.failures:
        worker.report.failed(
            item.name, f"{made.failures} of {made.frames} frames gave no result. Its .jsonl says which."
        )
        return
    shown = shown_files(files)
    worker.journal.add(item, shown, worker.settings)
    worker.report.done(item.name, shown, anew=anew, frames=made.frames, resumed_at=made.resumed_at)


def run_camera(worker: Worker, pipe: Any, item: Item, *, anew: bool) -> None:
    """Run a camera until Ctrl-C, or for as many frames as requested; the video is complete either way."""
    frames = worker.job.video.frames
    worker.report.say(f"{item.name}: " + (f"{frames} frames" if frames else "Ctrl-C ends"))
    files = worker.files_of(item)
    made = run_loop(worker, pipe, item, files, anew=anew)
    if made.frames:
        worker.report.done(
            item.name, shown_files(files), frames=made.frames - made.failures, failed_frames=made.failures
        )
    if made.interrupted:
        raise KeyboardInterrupt


def run_loop(worker: Worker, pipe: Any, item: Item, files: Mapping[str, Path], *, anew: bool) -> VideoReport:
    """Run the video loop over a file or a camera."""
    job = worker.job
    if job.coco is not None:
        raise InputError(f"{item.name}: --coco gathers pictures, not videos. Leave it out, or use the .jsonl file.")
    scene = Scene(job, files)
    with worker.report.bar(item.name, job.video.frames) as bar:
        return run_video(
            item.path or item.source,
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
            max_frames=job.video.frames if item.path is None else None,
        )


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
