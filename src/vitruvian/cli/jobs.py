"""A command that looks at pictures: sources → items → those not done yet → pipeline → files, and what happened.

SOURCE… ─▶ items ─┬▶ done before: skipped
                  ├▶ pictures ─▶ pipeline, all together ─▶ a sink: files in a folder, or standard output
                  └▶ videos, cameras ─▶ one after another
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import typer

from vitruvian.cli.checkpoints import check_model
from vitruvian.cli.gather import Dataset
from vitruvian.cli.items import Item, find_items
from vitruvian.cli.journal import JOURNAL, Journal
from vitruvian.cli.kinds import (
    MOVIES,
    TASKS,
    Saved,
    Task,
    file_kind,
    picture_files,
    read_kinds,
    shown_files,
    video_files,
)
from vitruvian.cli.options import STDIO, Messages, Model, People, Results, Sources, Video
from vitruvian.cli.pictures import FileSink, StdoutSink, run_pictures
from vitruvian.cli.reading import people_options
from vitruvian.cli.report import Report
from vitruvian.cli.start import settle
from vitruvian.cli.videos import Preview, run_camera, run_one_video
from vitruvian.errors import InputError
from vitruvian.pipelines import pipeline, pipeline_class
from vitruvian.results import Result

OUT = "out"
PACE = ("batch_size", "points_per_batch")  # options that results do not depend on
POLL, SETTLE = 0.5, 1.0  # seconds between looks at a folder, and that a file must stay as it is to count as whole


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a command was told.

    Attributes:
        command: Its name.
        options: Options of the pipeline's call.
        plot: Options of `plot`.
        change: Changes each result before it is written.
        draw: Draws a result instead of `plot`.
        own: What results depend on beside `options` and `plot`.
        coco: Where to gather a dataset.
    """

    command: str
    sources: Sources
    results: Results
    model: Model
    messages: Messages
    video: Video
    people: People | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    plot: Mapping[str, Any] = field(default_factory=dict)
    change: Callable[[Any], Any] | None = None
    draw: Callable[[Any], Any] | None = None
    own: Mapping[str, Any] = field(default_factory=dict)
    coco: Path | None = None

    @property
    def task(self) -> Task:
        """What the command does."""
        return TASKS[self.command]

    def changed(self, result: Result) -> Any:
        """Return a result as it is to be written."""
        return result if self.change is None else self.change(result)

    def drawing(self, result: Any, **more: Any) -> Any:
        """Draw a result: uint8 [H, W, 3], or a picture of PIL."""
        return result.plot(**self.plot, **more) if self.draw is None else self.draw(result)

    def settings(self) -> str:
        """A short text that differs where results would."""
        facts = {
            "command": self.command,
            "model": [self.model.model, self.model.revision, self.model.dtype],
            "options": {name: value for name, value in self.options.items() if name not in PACE},
            "people": None if self.people is None else self.people.__dict__,
            "drawing": [self.plot, self.own],
            "video": [self.video.smooth, self.video.detect_every],
        }
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_job(job: Job) -> None:
    """Do a job, tell about it, and end the command with its exit code."""
    settle()
    with Report(job.messages, each=job.sources.watch) as report:
        worker = Worker(job, report)
        try:
            if job.sources.watch:
                worker.watch()
            else:
                worker.work(find_items(job.sources.sources, recursive=job.sources.recursive))
        except KeyboardInterrupt:
            worker.close()
            raise typer.Exit(report.finish(interrupted=True)) from None
        worker.close()
        raise typer.Exit(report.finish())


class Worker:
    """Does a job. The model is opened when the first item needs it."""

    def __init__(self, job: Job, report: Report) -> None:
        self.job, self.report = job, report
        self.task = job.task
        self.to_stdout = goes_to_stdout(job)
        self.file: Path | None = None
        self.file_kind: str | None = None
        self.kinds = Saved((), ())
        self.folder = Path(OUT)
        if self.to_stdout:
            self.stdout_kind = one_kind(job)
        else:
            self.find_place()
        self.settings = job.settings()
        self.journal = Journal.read(self.folder)
        self.others: dict[Path, Journal] = {}  # of other runs, in folders of sources
        self.dataset = None if job.coco is None else Dataset.open(job.coco, overwrite=job.results.overwrite)
        if job.video.preview is not None:
            Preview(job.video.preview)
        if job.model.model is not None:
            pipeline_class(self.task.pipeline).check_options(dict(job.options))  # wrong options show before any work

    def find_place(self) -> None:
        """Read --out and --save."""
        out = Path(self.job.results.out or OUT).expanduser()
        self.file_kind = file_kind(self.task, out, self.job.results.save)
        if self.file_kind is None:
            self.kinds, self.folder = read_kinds(self.task, self.job.results.save), out
            if out.exists() and not out.is_dir():
                raise InputError(f"--out {out}: expected a folder for results, got a file. Choose another.")
        else:
            self.file, self.folder = out, out.parent

    def close(self) -> None:
        """Finish what gathers all results."""
        if self.dataset is not None:
            self.dataset.close()

    @cached_property
    def pipe(self) -> Any:
        """The pipeline."""
        model = self.job.model
        if model.model is not None:
            check_model(model.model, self.task, revision=model.revision)
        hub = {} if model.revision is None else {"revision": model.revision}
        with self.report.busy(f"opening {model.model or self.task.pipeline}"):
            return pipeline(
                self.task.pipeline, model.model, device=model.device, dtype=model.dtype, workers=model.workers, **hub
            )

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options of the pipeline's call, the finder of people among them."""
        return dict(self.job.options) | people_options(self.job, self.pipe)

    # ------------------------------------------------------------------------------------------------ one pass

    def work(self, items: Sequence[Item]) -> None:
        """Look at all items that are not done yet."""
        items = [item for item in items if not self.is_result(item)]
        self.check(items)
        pictures: list[Item] = []
        videos: list[Item] = []
        anew: set[str] = set()
        for item in items:
            state = self.state(item)
            if state is None:
                continue
            if state == "changed":
                anew.add(item.name)
            (pictures if item.kind in ("picture", "stdin") else videos).append(item)
        if pictures:
            sink = self.stdout_sink() if self.to_stdout else FileSink(self.job, self.files_of)
            run_pictures(self, pictures, sink, anew=anew)
        for item in videos:
            self.run_moving(item, anew=item.name in anew)

    def is_result(self, item: Item) -> bool:
        """Whether a file in a folder is a result itself, of this run or of others: it, or a folder above, tells."""
        if not item.listed or item.path is None:
            return False
        path = item.path.absolute()
        above = [Path(text).expanduser().absolute() for text in self.job.sources.sources]
        for folder in (folder for folder in path.parents if any(one in (folder, *folder.parents) for one in above)):
            if folder == self.folder.absolute():
                if folder not in above or self.journal.wrote(path):
                    return True
            elif (folder / JOURNAL).is_file():
                if folder not in self.others:
                    self.others[folder] = Journal.read(folder)
                if self.others[folder].wrote(path):
                    return True
        return False

    def check(self, items: Sequence[Item]) -> None:
        """Refuse what cannot be meant."""
        if self.file is not None and len(items) > 1:
            raise InputError(
                f"--out {self.file}: expected a folder for {len(items)} sources, got a file's name. Name a folder."
            )
        if self.to_stdout:
            if len(items) > 1 and self.stdout_kind != "json":
                raise InputError(
                    f"--out -: expected one picture for {self.stdout_kind}, got {len(items)}. Use --save json, or a "
                    "folder."
                )
            if any(item.kind in ("video", "camera") for item in items):
                raise InputError("--out -: expected pictures, got a video or a camera. Name a folder.")
        if self.job.people is not None and self.job.people.finder and self.job.people.boxes:
            raise InputError("--finder and --boxes: expected one of them, got both. Drop one.")

    def state(self, item: Item) -> str | None:
        """Tell whether an item is to be done, "new" or "changed"; others are reported and give None."""
        if item.error is not None:
            self.report.failed(item.name, item.error)
            return None
        if self.to_stdout or item.kind in ("stdin", "camera"):
            return "new"
        files = self.files_of(item)
        if not files:
            given = self.job.results.save or (self.file and self.file.name)
            self.report.failed(
                item.name, f"{given} is for videos. Add a kind for pictures, such as {self.task.save[0]}."
            )
            return None
        if self.job.results.overwrite:
            return "new" if not any(path.exists() for path in files.values()) else "changed"
        try:
            state = self.journal.state(item, shown_files(files), self.settings)
        except InputError as error:
            self.report.failed(item.name, error)
            return None
        if state == "done" and (self.dataset is None or self.dataset.has(item.name)):
            self.report.skipped(item.name, shown_files(files))
            return None
        return "new" if state == "done" else state

    def files_of(self, item: Item) -> dict[str, Path]:
        """Return the files that an item's results go to, by kind; none where nothing of --save fits it."""
        moving = item.kind in ("video", "camera")
        if self.file is not None and self.file_kind is not None:
            fits = moving or self.file_kind in self.task.picture_kinds()
            return {self.file_kind: self.file} if fits else {}
        if not moving:
            return picture_files(self.folder, item.stem, self.task, self.kinds.picture)
        kinds = self.kinds.video
        if not any(kind in MOVIES for kind in kinds) and "json" not in kinds:
            kinds = (*kinds, "json")  # tells which frames are done
        stem = f"{item.stem}_{time.strftime('%Y%m%d-%H%M%S')}" if item.kind == "camera" else item.stem
        return video_files(self.folder, stem, self.task, kinds)

    def stdout_sink(self) -> StdoutSink:
        """The sink for `--out -`."""
        return StdoutSink(self.job, self.stdout_kind)

    def run_moving(self, item: Item, *, anew: bool) -> None:
        """Run a video or a camera; what goes wrong with it does not stop the rest."""
        run = run_camera if item.kind == "camera" else run_one_video
        pipe = self.pipe  # what is wrong with the model is no fault of the video
        try:
            run(self, pipe, item, anew=anew)
        except Exception as error:  # noqa: BLE001 - belongs to this video
            self.report.failed(item.name, error)

    # ------------------------------------------------------------------------------------------------ a folder

    def watch(self) -> None:
        """Look at what is in the folders, then at what comes, until Ctrl-C."""
        folders = [Path(text).expanduser() for text in self.job.sources.sources]
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"--watch: expected folders, got {folder}. Make it first, or leave --watch out.")
        if self.to_stdout or self.file is not None:
            raise InputError("--watch: expected --out to be a folder.")
        handled: dict[str, tuple[int, int]] = {}
        seen: dict[str, tuple[tuple[int, int], float]] = {}
        self.report.say(f"Watching {', '.join(str(folder) for folder in folders)}; Ctrl-C ends.")
        while True:
            now = time.monotonic()
            whole: list[Item] = []
            for item in find_items(self.job.sources.sources, recursive=self.job.sources.recursive):
                if item.path is None or self.is_result(item):
                    continue
                stamp = stamp_of(item.path)
                key = str(item.path)
                if stamp is None or not stamp[0] or handled.get(key) == stamp:
                    continue
                before = seen.get(key)
                seen[key] = (stamp, now) if before is None or before[0] != stamp else before
                if now - seen[key][1] >= SETTLE:
                    whole.append(item)
                    handled[key] = stamp
                    del seen[key]
            if whole:
                self.work(whole)
            time.sleep(POLL)


def stamp_of(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None where it is gone."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns


def goes_to_stdout(job: Job) -> bool:
    """Whether results go to standard output."""
    if job.messages.json and job.results.out == STDIO:
        raise InputError("--json and --out -: expected one of them, got both. Standard output holds only one.")
    unsaid = job.results.out is None and list(job.sources.sources) == [STDIO] and not job.messages.json
    return job.results.out == STDIO or unsaid


def one_kind(job: Job) -> str:
    """Return the kind of result for standard output."""
    if job.results.save is None:
        return job.task.save[0]
    kinds = read_kinds(job.task, job.results.save).picture
    if len(kinds) != 1:
        raise InputError(f"--out -: expected one kind of result in --save, got {job.results.save!r}. Choose one.")
    return kinds[0]
