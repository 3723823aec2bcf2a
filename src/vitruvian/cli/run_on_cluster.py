"""`--ray`: a task's command on a Ray cluster.

Up to 10,000 sources give the files of one machine: every worker is a `TaskRun` of its own on some of the sources,
with the same journal and locks. More give shards, see `vitruvian.scale`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

import typer

from vitruvian.cli.commands.track import TrackCommand
from vitruvian.cli.console_report import ConsoleReport
from vitruvian.cli.named_sources import NamedSource
from vitruvian.cli.option_groups import STDIO, CocoGroup, PeopleGroup, VerbosityGroup
from vitruvian.cli.run_on_video import prepare_ranges, run_range, run_video_file
from vitruvian.cli.run_task import TaskRun
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError
from vitruvian.limits import Limits, get_limits, set_limits
from vitruvian.pipelines.save_option import ResultWriter
from vitruvian.pipelines.sources import Source
from vitruvian.scale.chunk_runner import ChunkActor, ChunkRunner, Stages
from vitruvian.scale.cluster import connect_to_ray, import_ray
from vitruvian.scale.filesystems import is_remote
from vitruvian.scale.job import JobSummary, run_on_ray
from vitruvian.scale.placement import choose_placement
from vitruvian.scale.sources import list_sources, needs_shards
from vitruvian.scale.worker import FileEncoder, Runner, with_json

SHARDS_ABOVE = 10_000  # sources
_MAX_CHUNK = 64  # number of images that a worker gets at a time; of videos it gets one
_CHUNKS_PER_WORKER = 4  # minimum, so that all workers end at about the same time
_ADDRESS = "ray://"


def run_on_cluster(command: TaskCommand) -> None:
    """Run a task's command on a cluster, report, and end the command with its exit code."""
    addresses = [text for text in command.sources if text.startswith(_ADDRESS)]
    sources = [text for text in command.sources if not text.startswith(_ADDRESS)]
    _check(command, sources, addresses)
    address = addresses[0] if addresses else None
    command = dataclasses.replace(command, sources=sources)
    report = ConsoleReport(command)
    interrupted = False
    try:
        if _wants_shards(command):
            _run_shards(command, report, address)
        else:
            _run_files(command, report, address)
    except KeyboardInterrupt:
        interrupted = True
    raise typer.Exit(report.finish(interrupted=interrupted))


def _check(command: TaskCommand, sources: Sequence[str], addresses: Sequence[str]) -> None:
    """Raise `InputError` for what a cluster cannot do."""
    if len(addresses) > 1:
        raise InputError(f"--ray: expected one address, got {', '.join(addresses)}.")
    if command.watch or command.to_stdout or command.preview is not None:
        raise InputError("--ray: expected files as results, got --watch, --preview or standard output. Drop one.")
    if isinstance(command, CocoGroup) and command.coco is not None:
        raise InputError("--ray and --coco: expected one of them, got both. Collect the JSON files afterwards.")
    if isinstance(command, TrackCommand) and command.then:
        raise InputError("--ray and --then: expected one of them, got both. Run the other commands afterwards.")
    if command.split_seconds is not None and (isinstance(command, PeopleGroup) or not command.task.takes_images):
        raise InputError(
            f"--split-seconds: expected a task without tracking, such as semantic, got {command.name}: what it tracks "
            "through a video would start again in each range. Leave it out."
        )
    for text in sources:
        if text == STDIO or text.startswith("camera:"):
            raise InputError(f"--ray: expected files that all machines can read, got {text}.")


def _wants_shards(command: TaskCommand) -> bool:
    """Return whether results go into shards: as the option says, or where there are many sources."""
    if command.shards is not None:
        return command.shards != "none"
    if not command.task.takes_images:
        return False
    if any(needs_shards(text) for text in (*command.sources, command.out or "")):
        return True
    try:
        items = list_sources(command.sources, recursive=command.recursive)
        found = sum(1 for _ in itertools.islice(items, SHARDS_ABOVE + 1))
    except InputError:  # such as a video, or one source that is missing
        return False
    return found > SHARDS_ABOVE


@contextlib.contextmanager
def _cluster(address: str | None, report: ConsoleReport) -> Iterator[Any]:
    """Connect to a cluster, and print the address of its dashboard."""
    ray = import_ray()
    with connect_to_ray(ray, address) as dashboard:
        if dashboard:
            report.say(f"Ray's dashboard: http://{dashboard}")
        yield ray


# ------------------------------------------------------------------------------------------------ shards


@dataclass(frozen=True)
class _CommandSpec:
    """Opens the pipeline of a command in a worker."""

    command: TaskCommand
    limits: Limits

    def open_runner(self) -> Runner:
        """Load the model, and return the function that runs the pipeline."""
        set_limits(**dataclasses.asdict(self.limits))
        run = TaskRun(self.command, ConsoleReport(VerbosityGroup(quiet=True)))
        pipe, options = run.pipe, run.call_options

        def call(source: Source, save: ResultWriter) -> Any:
            return pipe.run(source, save=save, **options)

        return call


def _run_shards(command: TaskCommand, report: ConsoleReport, address: str | None) -> None:
    worker = dataclasses.replace(command, workers=None)
    run = TaskRun(worker, report)
    formats = with_json(run.plan.image_formats) if command.save is None else run.plan.image_formats
    folder = command.out or str(run.plan.folder)
    with _cluster(address, report), report.bar("images", None) as bar:
        total = _count_in_background(command)

        def progress(summary: JobSummary) -> None:
            for message in summary.failures[len(report.failures) :]:
                report.failed(message.partition(": ")[0], message)
            report.more_failures = summary.failed + summary.crashed - len(summary.failures)
            finished = summary.done + summary.failed + summary.crashed + summary.skipped
            bar.update(finished, total.result() if total.done() else None)

        summary = run_on_ray(
            _CommandSpec(worker, get_limits()),
            list_sources(command.sources, recursive=command.recursive),
            folder,
            workers=command.workers,
            gpus_per_worker=command.gpus_per_worker,
            formats=formats,
            shard_format="tar" if command.shards == "tar" else "parquet",
            overwrite=command.overwrite,
            retry_failed=command.retry_failed,
            encode=FileEncoder(formats, worker.output),
            settings=f"{run.image_digest}-{','.join(formats)}",
            progress=progress,
        )
    report.add_counts(done=summary.done, skipped=summary.skipped, folder=folder)


def _count_in_background(command: TaskCommand) -> Future[int | None]:
    """Count local sources for the time that is left; None for remote ones, whose listing may cost money."""
    total: Future[int | None] = Future()

    def count() -> None:
        known: int | None = None
        with contextlib.suppress(InputError):  # the job reports it
            if not any(is_remote(text) for text in command.sources):
                known = sum(1 for _ in list_sources(command.sources, recursive=command.recursive))
        total.set_result(known)

    threading.Thread(target=count, daemon=True).start()
    return total


# ------------------------------------------------------------------------------------------------ files


class _RecordingReport(ConsoleReport):
    """Keeps what a worker reports, for the report of the driver."""

    def __init__(self) -> None:
        super().__init__(VerbosityGroup(quiet=True))
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def done(self, *args: Any, **kwargs: Any) -> None:
        """Record a result."""
        self.calls.append(("done", args, kwargs))

    def skipped(self, *args: Any, **kwargs: Any) -> None:
        """Record a source that was done before."""
        self.calls.append(("skipped", args, kwargs))

    def failed(self, name: str, error: BaseException | str) -> None:
        """Record an error as text: not every exception can be pickled."""
        self.calls.append(("failed", (name, str(error)), {}))

    def lost(self, name: str, message: str) -> None:
        """Record that the result of a source is gone."""
        self.calls.append(("lost", (name, message), {}))


@dataclass(frozen=True)
class _VideoStep:
    """A step of a video that several workers process: it is split, its ranges are processed, and they are joined."""

    source: NamedSource
    step: Literal["split", "range", "join"]
    frame_range: tuple[int, int | None] = (0, None)

    @property
    def name(self) -> str:
        """Name of the video."""
        return self.source.name


class _CommandActor(ChunkActor):
    """An actor that runs the command on some of its sources."""

    def __init__(self, command: TaskCommand, limits: Limits) -> None:
        self._command, self._limits = command, limits

    def load(self) -> None:
        """Load the model."""
        set_limits(**dataclasses.asdict(self._limits))
        writer = import_ray().get_runtime_context().get_actor_id()
        self._report = _RecordingReport()
        self._run = TaskRun(self._command, self._report, writer=writer)
        _ = self._run.pipe

    def process(self, items: Sequence[NamedSource | _VideoStep], contents: None) -> tuple[bool, list[Any]]:
        """Process sources, and return what was reported."""
        self._report.calls = []
        self._run.process([item for item in items if isinstance(item, NamedSource)])
        for item in items:
            if isinstance(item, _VideoStep):
                self._take_step(item)
        return True, self._report.calls

    def _take_step(self, step: _VideoStep) -> None:
        run, item = self._run, step.source
        remaining, changed = run.plan_sources([item])
        if remaining:
            with run.report_error_and_unlock(item):
                if step.step == "split":
                    ranges = prepare_ranges(run, item, seconds=self._command.split_seconds or 0)
                    self._report.calls.append(("split", (item, ranges), {}))
                elif step.step == "range":
                    run_range(run, run.pipe, item, step.frame_range)
                    self._report.calls.append(("range", (item,), {}))
                else:
                    run_video_file(run, run.pipe, item, changed=item.identity in changed, join=True)


def _crashed(item: NamedSource | _VideoStep, message: str) -> list[Any]:
    return [("failed", (item.name, message), {})]


class _Splits:
    """Adds the next steps of videos that are split."""

    def __init__(self, runner: ChunkRunner) -> None:
        self._runner = runner
        self._missing: dict[str, int] = {}  # ranges that are not done, by the name of the video
        self._failed: set[str] = set()

    def handle_report(self, method: str, args: tuple[Any, ...]) -> bool:
        """Handle the report of a worker. Return True if it concerns a step of a video, False if it ends a source."""
        if method == "split":
            item, ranges = args
            self._missing[item.name] = len(ranges)
            for frame_range in ranges:
                self._runner.add([_VideoStep(item, "range", frame_range)])
        elif method == "range":
            (item,) = args
            self._missing[item.name] -= 1
            if not self._missing[item.name]:
                self._runner.add([_VideoStep(item, "join")])
        elif method == "failed" and args[0] in self._missing:
            already_failed = args[0] in self._failed  # in another range of the video
            self._failed.add(args[0])
            return already_failed
        else:
            return False
        return True


def _run_files(command: TaskCommand, report: ConsoleReport, address: str | None) -> None:
    worker = dataclasses.replace(command, workers=None)
    with TaskRun(worker, report) as run:
        remaining, _ = run.plan_sources(run.find_sources())
        if not remaining:
            return
        with _cluster(address, report) as ray, report.bar("sources", len(remaining)) as bar:
            placement = choose_placement(ray.nodes(), command.workers, None, command.gpus_per_worker)
            stages = Stages(
                actor=_CommandActor, arguments=(worker, get_limits()), read=None, write=None, crashed=_crashed
            )
            runner = ChunkRunner(stages, first_shard=0, placement=placement, rows_per_shard=_MAX_CHUNK)
            splits = _Splits(runner)
            finished = 0
            chunks = _chunks(remaining, placement.workers, split=command.split_seconds is not None)
            for counts in runner.run(chunks):
                for method, args, kwargs in counts.details:
                    if not splits.handle_report(method, args):
                        getattr(report, method)(*args, **kwargs)
                        finished += method != "lost"  # it was done before
                bar.update(finished)


def _chunks(
    sources: Sequence[NamedSource], workers: int, *, split: bool
) -> Iterator[Sequence[NamedSource | _VideoStep]]:
    """Divide sources: images in chunks of up to 64, videos one by one."""
    images = [item for item in sources if item.kind == "image"]
    size = min(_MAX_CHUNK, math.ceil(len(images) / (_CHUNKS_PER_WORKER * workers)))
    for item in sources:  # videos first: they take longest
        if item.kind != "image":
            yield [_VideoStep(item, "split") if split else item]
    yield from (images[start : start + size] for start in range(0, len(images), size or 1))
