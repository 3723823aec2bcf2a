"""`--ray`: a task's command on a Ray cluster.

Up to 10,000 sources give the files of one machine: every worker is a `TaskRun` of its own on a part of the inputs, with
the same journal and locks. More give shards, see `vitruvian.scale`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from vitruvian.cli.inputs import Input
from vitruvian.cli.options import STDIO, CocoGroup, MessageGroup
from vitruvian.cli.report import Report
from vitruvian.cli.run_task import TaskRun
from vitruvian.cli.task_command import TaskCommand
from vitruvian.errors import InputError
from vitruvian.limits import Limits, get_limits, set_limits
from vitruvian.pipelines.saving import ResultWriter, encode_as
from vitruvian.pipelines.sources import Source
from vitruvian.scale.chunk_runner import ChunkActor, ChunkCounts, ChunkRunner, Stages, import_ray
from vitruvian.scale.job import JobSummary, connected, run_on_ray
from vitruvian.scale.placement import choose_placement
from vitruvian.scale.sources import list_sources
from vitruvian.scale.worker import Runner

if TYPE_CHECKING:
    from vitruvian.results import Result

SHARDS_ABOVE = 10_000  # sources
_CHUNK = 16  # images that a worker gets at a time; of videos one
_ADDRESS = "ray://"


def run_on_cluster(command: TaskCommand) -> None:
    """Run a task's command on a cluster, report, and end the command with its exit code."""
    addresses = [text for text in command.sources if text.startswith(_ADDRESS)]
    sources = [text for text in command.sources if not text.startswith(_ADDRESS)]
    _check(command, sources, addresses)
    address = addresses[0] if addresses else None
    command = dataclasses.replace(command, sources=sources)
    report = Report(command)
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
    if getattr(command, "then", None):
        raise InputError("--ray and --then: expected one of them, got both. Run the other commands afterwards.")
    for text in sources:
        if text == STDIO or text.startswith("camera:"):
            raise InputError(f"--ray: expected files that all machines can read, got {text}.")


def _wants_shards(command: TaskCommand) -> bool:
    """Whether results go into shards: as the option says, or where there are many sources."""
    if command.shards is not None:
        return command.shards != "none"
    if not command.task.image_files:
        return False
    try:
        items = list_sources(command.sources, recursive=command.recursive)
        found = sum(1 for _ in itertools.islice(items, SHARDS_ABOVE + 1))
    except InputError:  # such as a video, or one source that is missing
        return False
    return found > SHARDS_ABOVE


# ------------------------------------------------------------------------------------------------ shards


@dataclass(frozen=True)
class _CommandSpec:
    """Opens the pipeline of a command in a worker."""

    command: TaskCommand
    limits: Limits

    def open_runner(self) -> Runner:
        """Load the model, and return the function that runs the pipeline."""
        set_limits(**dataclasses.asdict(self.limits))
        run = TaskRun(self.command, Report(MessageGroup(quiet=True)))
        pipe, options = run.pipe, run.call_options

        def call(source: Source, save: ResultWriter) -> Any:
            return pipe.run(source, save=save, **options)

        return call


@dataclass(frozen=True)
class _CommandEncoder:
    """Encodes results as the files of a command."""

    command: TaskCommand
    kinds: tuple[str, ...]

    def __call__(self, result: Result) -> dict[str, bytes]:
        converted = self.command.convert(result)
        return {kind: encode_as(kind, converted, draw=self.command.draw) for kind in self.kinds}


def _run_shards(command: TaskCommand, report: Report, address: str | None) -> None:
    worker = dataclasses.replace(command, workers=None)
    run = TaskRun(worker, report)
    kinds = tuple(dict.fromkeys(("json", *(kind for kind in run.plan.image_kinds if not kind.startswith("plot")))))
    if command.save is not None:
        kinds = run.plan.image_kinds
    with report.bar("images", None) as bar:

        def progress(summary: JobSummary) -> None:
            bar.update(summary.done + summary.failed + summary.crashed)

        summary = run_on_ray(
            _CommandSpec(worker, get_limits()),
            list_sources(command.sources, recursive=command.recursive),
            command.out or str(run.plan.folder),
            address=address,
            workers=command.workers,
            gpus_per_worker=command.gpus_per_worker,
            save=kinds,
            form="tar" if command.shards == "tar" else "parquet",
            overwrite=command.overwrite,
            retry_failed=command.retry_failed,
            encode=_CommandEncoder(worker, kinds),
            settings=f"{run.settings}-{','.join(kinds)}",
            progress=progress,
        )
    report.add_counts(done=summary.done, skipped=summary.skipped, folder=command.out or str(run.plan.folder))
    for message in summary.failures:
        report.failed(message.partition(": ")[0], message)
    more = summary.failed + summary.crashed - len(summary.failures)
    if more > 0:
        report.failed("shards", f"{more} more failures are in the column error of the shards.")


# ------------------------------------------------------------------------------------------------ files


class _RecordingReport(Report):
    """Keeps what a worker reports, for the report of the driver."""

    def __init__(self) -> None:
        super().__init__(MessageGroup(quiet=True))
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def done(self, *args: Any, **kwargs: Any) -> None:
        """Record a result."""
        self.done_count += 1
        self.calls.append(("done", args, kwargs))

    def skipped(self, *args: Any, **kwargs: Any) -> None:
        """Record a source that was done before."""
        self.calls.append(("skipped", args, kwargs))

    def failed(self, name: str, error: BaseException | str) -> None:
        """Record an error as text: not every exception can be pickled."""
        self.calls.append(("failed", (name, str(error)), {}))


class _CommandActor(ChunkActor):
    """An actor that runs the command on a part of its inputs."""

    def __init__(self, command: TaskCommand, limits: Limits) -> None:
        self._command, self._limits = command, limits

    def load(self) -> None:
        """Load the model."""
        set_limits(**dataclasses.asdict(self._limits))
        writer = import_ray().get_runtime_context().get_actor_id()
        self._report = _RecordingReport()
        self._run = TaskRun(self._command, self._report, writer=writer)
        _ = self._run.pipe

    def process(self, items: Sequence[Input], _contents: None) -> tuple[bool, list[Any]]:
        """Process inputs, and return what was reported."""
        self._report.calls = []
        self._run.process(items)
        return True, self._report.calls


def _collect(name: str, *reports: list[Any]) -> ChunkCounts:
    calls = [call for report in reports for call in report]
    return ChunkCounts(name, 0, 0, 0, (), details=tuple(calls))


def _crashed(item: Input, message: str) -> list[Any]:
    return [("failed", (item.name, message), {})]


def _run_files(command: TaskCommand, report: Report, address: str | None) -> None:
    worker = dataclasses.replace(command, workers=None)
    ray = import_ray()
    with TaskRun(worker, report) as run:
        remaining, _ = run.plan_inputs(run.find_inputs())
        if not remaining:
            return
        with connected(ray, address), report.bar("sources", len(remaining)) as bar:
            placement = choose_placement(ray.nodes(), command.workers, None, command.gpus_per_worker)
            runner = ChunkRunner(
                Stages(
                    actor=_CommandActor, arguments=(worker, get_limits()), read=None, write=_collect, crashed=_crashed
                ),
                first_shard=0,
                placement=placement,
                rows_per_shard=_CHUNK,
            )
            finished = 0
            for counts in runner.run(_chunks(remaining)):
                for method, args, kwargs in counts.details:
                    getattr(report, method)(*args, **kwargs)
                    finished += 1
                bar.update(finished)


def _chunks(inputs: Sequence[Input]) -> Iterator[Sequence[Input]]:
    """Divide inputs: images by the dozen, videos one by one."""
    images = [item for item in inputs if item.kind == "image"]
    yield from ([item] for item in inputs if item.kind != "image")  # first: they take longest
    yield from (images[start : start + _CHUNK] for start in range(0, len(images), _CHUNK))
