"""How every task's command works: SOURCE… → sources → those that are not done → pipeline → files and journal.

SOURCE… ─▶ sources ─┬▶ done before: skipped
                   ├▶ images ─▶ pipeline, in batches ─▶ files in a folder, or standard output
                   └▶ videos, cameras ─▶ one after another (`run_on_video.py`)

For each source: lock its outputs, record "begin" in the journal, process, write, record "done", unlock. At the end the
files on disk are compared with what was recorded.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vitruvian.cli.checkpoints import check_model, is_exported, open_exported
from vitruvian.cli.coco_dataset import CocoDataset
from vitruvian.cli.console_report import ConsoleReport
from vitruvian.cli.named_sources import NamedSource, find_sources
from vitruvian.cli.option_groups import STDIO, CocoGroup, PeopleGroup
from vitruvian.cli.output_plan import OutputPlan, result_paths
from vitruvian.cli.resume_journal import Journal, SourceFingerprint, SourceStatus, has_journal, size_on_disk
from vitruvian.cli.run_on_video import Preview, run_camera, run_video_file
from vitruvian.cli.task_command import TaskCommand
from vitruvian.cli.watch import complete_sources
from vitruvian.errors import InputError
from vitruvian.files.video import FRAME_FORMAT
from vitruvian.filesystem.atomic import check_writable, find_temporary_files, remove_temporary_files, sync_to_disk
from vitruvian.filesystem.locks import OutputLock, remove_unused_locks
from vitruvian.filesystem.output_paths import name_key
from vitruvian.limits import read_bounded
from vitruvian.pipelines import Failure, pipeline
from vitruvian.pipelines.options import replace_options
from vitruvian.pipelines.save_option import ResultWriter, encode_as, save_as
from vitruvian.pipelines.sources import Frame, FrameLoader, Source, open_source
from vitruvian.results import Result

if TYPE_CHECKING:
    from vitruvian.pipelines.people.detectors import PeopleDetector

_VIDEO_THRESHOLD = 0.1  # detection threshold in videos: the tracker can use uncertain detections


def run_task(command: TaskCommand) -> None:
    """Run a task's command and those that follow it, report, and end the command with its exit code."""
    if command.ray:
        from vitruvian.cli.run_on_cluster import run_on_cluster

        run_on_cluster(command)
    if command.split_seconds is not None:
        raise InputError("--split-seconds: expected --ray too. Add it, or drop the option.")
    code, following = _run_command(command)
    for other in following:
        code = max(code, _run_command(other)[0])
    raise typer.Exit(code)


def _run_command(command: TaskCommand) -> tuple[int, list[TaskCommand]]:
    """Run a task's command and report; return its exit code, and the commands that follow it."""
    with TaskRun(command, ConsoleReport(command, each=command.watch)) as run:
        interrupted = False
        try:
            if command.watch:
                run.watch()
            else:
                run.process(run.find_sources())
        except KeyboardInterrupt:
            interrupted = True
        if run.dataset is not None:
            run.dataset.close()
        code = run.report.finish(interrupted=interrupted)
        return code, [] if interrupted else run.following


class _AlreadyDoneError(Exception):
    """All results of the source are done: before this run, or by another process during it."""


class TaskRun:
    """One run of a task's command. The model is opened when the first source needs it.

    Args:
        command: The command.
        report: Gets what was done and what failed.
        writer: Name of this worker on a cluster, for the journal.
    """

    def __init__(self, command: TaskCommand, report: ConsoleReport, *, writer: str | None = None) -> None:
        if command.json and command.out == STDIO:
            raise InputError(
                "--json and --out -: cannot be combined, since both write to standard output. Drop one of them."
            )
        self.command = command = command.with_defaults()
        self.report, self._writer = report, writer
        self.plan = OutputPlan(command)
        self.call_options = command.call_options()
        self._locks: dict[str, tuple[OutputLock, SourceFingerprint]] = {}
        self._files: dict[str, dict[str, Path]] = {}  # planned for the sources of this pass, by identity
        # Files that this pass has written, and their sizes, by the identity of their source.
        self._written: dict[str, tuple[NamedSource, dict[Path, int]]] = {}
        self.following: list[TaskCommand] = []  # commands to run next, on videos that are done
        self._read_journal = functools.cache(Journal)
        self._temporary_files = functools.cache(find_temporary_files)
        if command.preview is not None:
            Preview(command.preview)
        if command.model is not None:  # wrong options show before any work
            command.task.pipeline_class().check_options(self.call_options)
        command.check_following()
        coco = command.coco if isinstance(command, CocoGroup) else None
        self.dataset = None if coco is None else CocoDataset(coco, overwrite=command.overwrite)

    def __enter__(self) -> TaskRun:
        return self

    def __exit__(self, *_: object) -> None:
        while self._locks:  # after Ctrl-C, worker threads may still be at work
            self._locks.popitem()[1][0].release()
        if self.dataset is not None:
            self.dataset.release()
        remove_unused_locks(self.plan.folder)

    @cached_property
    def image_digest(self) -> str:
        """The digest of everything that affects the results of images."""
        return self.command.digest(video=False)

    @cached_property
    def video_digest(self) -> str:
        """The digest of everything that affects the results of videos."""
        return self.command.digest(video=True)

    def _digest(self, item: NamedSource) -> str:
        return self.video_digest if item.is_video else self.image_digest

    @cached_property
    def journal(self) -> Journal:
        """The journal of the output folder."""
        return Journal(self.plan.folder, writer=self._writer)

    @cached_property
    def pipe(self) -> Any:
        """The pipeline."""
        command = self.command
        if command.model is not None:
            check_model(command.model, command.task, revision=command.revision)
        options: dict[str, Any] = {"device": command.device, "dtype": command.dtype, "workers": command.workers}
        if command.revision is not None:
            options["revision"] = command.revision
        with self.report.busy(f"opening {command.model or command.name}"):
            if command.model is not None and is_exported(command.model):
                return open_exported(command.name, command.model, **options)
            return pipeline(command.name, command.model, **options)

    def video_detector(self) -> PeopleDetector | None:
        """Open what detects people in videos, with a low threshold; None if no one is to be detected.

        `vitruvian track` has an option for its own detector, since objects have identities already.
        """
        options = self.call_options
        if not isinstance(self.command, PeopleGroup):
            return None
        if self.command.boxes_file() is None:
            threshold = options["detect_threshold"]
            options = options | {"detect_threshold": _VIDEO_THRESHOLD if threshold is None else threshold}
        detector: PeopleDetector | None = self.pipe.choose_detector(replace_options(self.pipe.options, options))
        return detector

    def find_sources(self) -> list[NamedSource]:
        """List the sources that the command names."""
        command = self.command
        return find_sources(
            command.sources,
            recursive=command.recursive,
            sequences_are_videos=self.plan.sequences_are_videos,
            folders_are_videos=not command.task.takes_images and not command.watch,  # which waits for videos
        )

    def watch(self) -> None:
        """Process what is in the folders, then what is added, until Ctrl-C."""
        folders = [Path(text).expanduser() for text in self.command.sources]
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"--watch: expected folders, got {folder}. Make it first, or leave --watch out.")
        if self.plan.stdout_format is not None or self.plan.file is not None:
            raise InputError("--watch: expected a folder as --out, got a file or standard output. Name a folder.")
        self.report.say(f"Watching {', '.join(str(folder) for folder in folders)}; press Ctrl-C to stop.")
        for complete in complete_sources(self.find_sources, ignores=self.is_result):
            self.process(complete)

    # ------------------------------------------------------------------------------------------------ one pass

    def process(self, sources: Sequence[NamedSource]) -> None:
        """Process all sources that are not done yet, and compare what lies on disk with what was planned."""
        remaining, changed = self.plan_sources(sources)
        if self.dataset is not None:
            self.dataset.remove({item.file_name for item in remaining})
        images = [item for item in remaining if not item.is_video]
        videos = [item for item in remaining if item.is_video]
        if images:
            self._run_images(images, changed)
        for item in videos:
            run = run_camera if item.kind == "camera" else run_video_file
            pipe = self.pipe  # an error of the model is not one of the video
            with self.report_error_and_unlock(item):
                run(self, pipe, item, changed=item.identity in changed)
        self._add_following(sources)
        self._compare_with_disk()

    def plan_sources(self, sources: Sequence[NamedSource]) -> tuple[list[NamedSource], set[str]]:
        """Plan the files of sources; return those that are not done yet, and the identities of those that changed."""
        sources = [item for item in sources if not self.is_result(item)]
        self.plan.check(sources)
        remaining: list[NamedSource] = []
        changed: set[str] = set()
        self._files.clear()
        planned: dict[str, NamedSource] = {}
        for item in sources:
            with self.report_error_and_unlock(item):
                if self._status(item, planned) == "changed":
                    changed.add(item.identity)
                remaining.append(item)
        if remaining and self.plan.stdout_format is None:
            check_writable(self.plan.folder)  # before the model is opened
        return remaining, changed

    def _add_following(self, sources: Sequence[NamedSource]) -> None:
        """Add the commands of `track --then` for videos that are done, now or before."""
        for item in sources:
            records = self._files.get(item.identity, {}).get("json")
            if item.kind != "video" or records is None or not records.is_file():
                continue
            commands = self.command.following_commands(str(item.source), records)
            if commands and self.journal.status(item, [records], self.video_digest) == "done":
                self.following += commands

    @contextmanager
    def report_error_and_unlock(self, item: NamedSource) -> Iterator[None]:
        """Report an error in the block as that of one source, and unlock its outputs."""
        try:
            yield
        except _AlreadyDoneError:
            self.report.skipped(item.name, result_paths(self._files[item.identity]))
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - belongs to this source
            self.report.failed(item.name, error)
        finally:
            self.release(item)

    def is_result(self, item: NamedSource) -> bool:
        """Return whether a listed file is a result itself, of this run or of others."""
        if not item.listed or item.path is None:
            return False
        path = item.path.absolute()
        roots = [Path(text).expanduser().absolute() for text in self.command.sources]
        for folder in (folder for folder in path.parents if any(root in (folder, *folder.parents) for root in roots)):
            if folder == self.plan.folder.absolute():
                if folder not in roots or self.journal.wrote(path):
                    return True
            elif has_journal(folder) and self._read_journal(folder).wrote(path):
                return True
        return False

    def _status(self, item: NamedSource, planned: dict[str, NamedSource]) -> SourceStatus:
        """Plan the files of a source, and return "new" or "changed"; raise `InputError` if it cannot be processed."""
        if item.error is not None:
            raise item.error
        if not item.is_video and not self.command.task.takes_images:
            raise InputError(
                f"{item.name}: expected a video or a camera for {self.command.name}, got an image. Pass its folder, or "
                f"all frames as {FRAME_FORMAT}.png."
            )
        if self.plan.stdout_format is not None:
            return "new"
        self._files[item.identity] = files = self.plan.files(item)
        if not files:
            named = self.command.save or (self.plan.file and self.plan.file.name)
            example = self.command.task.default_image_formats[0]
            raise InputError(f"{item.name}: {named} is for videos. Add a format for images, such as {example}.")
        for path in result_paths(files):
            if (other := planned.setdefault(name_key(str(path)), item)) is not item:
                raise InputError(f"{path}: is also the result of {other.name}. Rename one of the two sources.")
        status = self._journal_status(item, result_paths(files))
        if item.kind == "video":
            self.command.check_video(item.path or str(item.source))
        return status

    def _journal_status(self, item: NamedSource, paths: Sequence[Path]) -> SourceStatus:
        """Return "new" or "changed"; raise `_AlreadyDoneError` where all files are done."""
        if self.command.overwrite:
            return "changed" if any(path.exists() for path in paths) else "new"
        status = self.journal.status(item, paths, self._digest(item))
        if status != "done":
            return status
        if item.kind == "stdin" or (
            self.dataset is not None and not self.dataset.has(item.file_name, self.image_digest)
        ):
            return "new"
        if item.is_video and self.command.lacks_state(self._files[item.identity], self.video_digest):
            return "new"
        raise _AlreadyDoneError

    # ------------------------------------------------------------------------------------------------ one source

    def claim(self, item: NamedSource) -> dict[str, Path]:
        """Lock the outputs of a source, record what is planned, and return the file of each format.

        Raises:
            InputError: Another process has the lock, or a file must not be replaced.
            _AlreadyDoneError: Another process has done it by now.
        """
        files = self._files[item.identity]
        paths = result_paths(files)
        lock = OutputLock(self.plan.folder, {self.journal.name_of(path): path for path in paths})
        try:
            self.journal.refresh()
            self._journal_status(item, paths)
            fingerprint = self.journal.begin(item, paths, self._digest(item))
            self._remove_temporary_files(paths)
        except BaseException:
            lock.release()
            raise
        self._locks[item.identity] = lock, fingerprint
        return files

    def _remove_temporary_files(self, paths: Sequence[Path]) -> None:
        """Remove what a killed process left of results that this one has locked. A folder is listed once in a run."""
        for path in paths:
            if path.is_dir():
                remove_temporary_files(path)
            for entry in self._temporary_files(path.parent).pop(path.name, []):
                entry.unlink(missing_ok=True)

    def planned_files(self, item: NamedSource) -> dict[str, Path]:
        """Return the file of each format for a source."""
        return self._files[item.identity]

    def complete(self, item: NamedSource) -> list[Path]:
        """Record that the outputs of a source are written, unlock them, and return them. Thread-safe."""
        paths = result_paths(self._files[item.identity])
        if item.is_video:  # worker threads sync the files of images
            sync_to_disk(paths)
        self._written[item.identity] = item, self.journal.done(self._locks[item.identity][1], paths)
        self.release(item)
        return paths

    def release(self, item: NamedSource) -> None:
        """Unlock the outputs of a source."""
        held = self._locks.pop(item.identity, None)
        if held is not None:
            held[0].release()

    def _compare_with_disk(self) -> None:
        """Report results that this pass has written and that are missing or changed since."""
        for item, sizes in self._written.values():
            wrong = [str(path) for path, size in sizes.items() if size_on_disk(path) != size]
            if wrong:
                message = f"{', '.join(wrong)}: written, but missing or changed since. Run it again."
                self.report.lost(item.name, message)
        self._written.clear()

    # ------------------------------------------------------------------------------------------------ images

    def _run_images(self, images: Sequence[NamedSource], changed: set[str]) -> None:
        """Run images through the pipeline; one that fails does not stop the rest."""
        pipe = self.pipe
        to_stdout = self.plan.stdout_format is not None
        if not to_stdout:  # results are in order, and no local file waits for a slow server
            images = sorted(images, key=lambda item: item.remote)
        writer: _ImageWriter = _StdoutWriter(self) if to_stdout else _FileWriter(self, images)
        source = Source(lambda: (self._loader(item) for item in images), count=len(images))
        reported: set[int] = set()

        def report_done(index: int) -> None:
            item, details = images[index], writer.details[index]
            paths = [] if to_stdout else result_paths(self._files[item.identity])
            reported.add(index)  # first: Ctrl-C may come in the middle of the report
            self.report.done(item.name, paths, changed=item.identity in changed, **details)

        try:
            with (
                self.report.bar("images", len(images)) as bar,
                pipe.run(source, save=writer, **self.call_options) as results,
            ):
                for index, result in enumerate(results):
                    if index >= len(images):  # the source itself failed
                        self.report.failed(result.name, result.error)
                        continue
                    with self.report_error_and_unlock(images[index]):
                        if isinstance(result, Failure):
                            raise result.error
                        writer.flush(index)
                        if self.dataset is not None:
                            converted = self.command.output.convert(result)
                            self.dataset.add(converted, images[index].file_name, self.image_digest)
                        report_done(index)
                    bar.update(index + 1)
        finally:
            for index in sorted(writer.details.keys() - reported) if not to_stdout else ():
                report_done(index)  # written ahead of an interruption

    def _loader(self, item: NamedSource) -> FrameLoader:
        """Return a loader that locks the outputs before it reads the image, which gets the source's name."""

        def load() -> Frame:
            if self.plan.stdout_format is None:
                self.claim(item)
            if item.kind == "stdin":
                frame = _read_stdin(item.name)
            else:
                source = item.source
                loader = source if isinstance(source, FrameLoader) else next(open_source(source).loaders())
                frame = loader.load()
            return dataclasses.replace(frame, name=item.name)

        return FrameLoader(name=item.name, load=load, path=item.path, remote=item.remote)


class _ImageWriter(ResultWriter):
    """Base of the writers of images.

    Attributes:
        details: What to report about each image that is written, by its index.
    """

    def __init__(self) -> None:
        self.details: dict[int, dict[str, Any]] = {}

    def flush(self, index: int) -> None:
        """Finish the output of an image. Called in the order of images, after `write`."""


class _FileWriter(_ImageWriter):
    """Writes the files of each result, and completes its source."""

    def __init__(self, run: TaskRun, images: Sequence[NamedSource]) -> None:
        super().__init__()
        self._run, self._images = run, images

    def write(self, result: Result, index: int) -> None:
        """Write all files of a result."""
        command, item = self._run.command, self._images[index]
        files = self._run.planned_files(item)
        converted = command.output.convert(result)
        for file_format, path in files.items():
            save_as(file_format, converted, path, draw=command.output.draw)
        sync_to_disk(files.values())
        self._run.complete(item)
        self.details[index] = _details(result)


class _StdoutWriter(_ImageWriter):
    """Writes to standard output in the order of images: one file, or a line of JSON for each image."""

    def __init__(self, run: TaskRun) -> None:
        super().__init__()
        self._command, self._format = run.command, str(run.plan.stdout_format)
        if self._format != "json" and sys.stdout.isatty():
            raise InputError(
                f"standard output: expected a file or a pipe for {self._format}, got a terminal. Add --out FILE."
            )
        self._content: dict[int, bytes] = {}

    def write(self, result: Result, index: int) -> None:
        """Encode a result; `flush` writes it."""
        self.details[index] = _details(result)
        converted = self._command.output.convert(result)
        content = encode_as(self._format, converted, draw=self._command.output.draw)
        self._content[index] = content + (b"\n" if self._format == "json" else b"")

    def flush(self, index: int) -> None:
        """Write an encoded result."""
        sys.stdout.buffer.write(self._content.pop(index))
        sys.stdout.buffer.flush()


def _details(result: Result) -> dict[str, Any]:
    """Return what is reported about a result."""
    details: dict[str, Any] = {"size_hw": list(result.size_hw)}
    return details if result.people is None else details | {"note": result.people.note, "people": len(result.people)}


def _read_stdin(name: str) -> Frame:
    """Read the image on standard input."""
    image = read_bounded(sys.stdin.buffer, "file_bytes", subject=name)
    if not image:
        raise InputError(f"{name}: expected an image, got no data. Pipe one in, such as < photo.jpg.")
    return next(open_source(image).loaders()).load()
