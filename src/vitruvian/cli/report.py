"""What people see while a command works: progress and a summary on standard error, JSON on standard output."""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from vitruvian.cli.options import Messages
from vitruvian.cli.shown import shown_seconds
from vitruvian.cli.wording import as_typed

DONE, SOME_FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130
LOG_SECONDS = 15.0  # between lines of progress where there is no terminal
MOST_LISTED = 4  # files that the summary names one by one


def console() -> Console:
    """Standard error as it is now, without guesses at colours for paths and numbers."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


class Report:
    """Counts what was done, skipped and failed, and tells.

    Args:
        messages: How much to say.
        each: Whether to say a line for each source at once, as is fit for --watch.
    """

    def __init__(self, messages: Messages, *, each: bool = False) -> None:
        self.json, self.quiet, self.debug, self.each = messages.json, messages.quiet, messages.debug, each
        self.console = console()
        self.done_count = self.skipped_count = self.anew_count = 0
        self.failures: list[tuple[str, str]] = []
        self.files: list[Path] = []
        self.places: set[Path] = set()
        self.notes: dict[str, int] = {}
        self.started = time.monotonic()
        self.progress: Progress | None = None
        self.logged = 0.0

    # ------------------------------------------------------------------------------------------------ while it works

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    @contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[Bar]:
        """Show a bar while the block runs; lines now and then where there is no terminal."""
        if self.quiet:
            yield Bar(self, None, title, total)
            return
        if not self.console.is_terminal:
            self.logged = time.monotonic()
            yield Bar(self, None, title, total)
            return
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        with progress:
            self.progress = progress
            try:
                yield Bar(self, progress.add_task(title, total=total, speed=""), title, total)
            finally:
                self.progress = None

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Say what takes a while."""
        if self.quiet or not self.console.is_terminal:
            yield
            return
        with self.console.status(text):
            yield

    def done(
        self, name: str, files: Sequence[Path], *, anew: bool = False, note: str | None = None, **facts: Any
    ) -> None:
        """Count a source that gave results; a note, such as that nobody was found, is told in the summary."""
        self.done_count += 1
        self.anew_count += anew
        self.places |= {file.parent for file in files}
        if len(self.files) <= MOST_LISTED:
            self.files += files
        if note is not None:
            self.notes[note] = self.notes.get(note, 0) + 1
        self.line(source=name, status="done", files=[str(file) for file in files], **facts)
        if self.each:
            self.say(f"{name} → {', '.join(str(file) for file in files)}")

    def skipped(self, name: str, files: Sequence[Path]) -> None:
        """Count a source that was done before."""
        self.skipped_count += 1
        self.line(source=name, status="skipped", files=[str(file) for file in files])

    def failed(self, name: str, error: BaseException | str) -> None:
        """Count a source that gave no result."""
        message = as_typed(error)
        message = message if message.startswith(name) else f"{name}: {message}"
        self.failures.append((name, message))
        self.line(source=name, status="failed", error=message)
        if self.each:
            self.warn(message)
        if self.debug and isinstance(error, BaseException):
            self.console.print("".join(traceback.format_exception(error)), markup=False, style="dim")

    # ------------------------------------------------------------------------------------------------ at the end

    def finish(self, *, interrupted: bool = False) -> int:
        """Tell how it went and return the exit code."""
        seconds = time.monotonic() - self.started
        code = INTERRUPTED if interrupted else SOME_FAILED if self.failures else DONE
        self.line(
            summary={
                "done": self.done_count,
                "skipped": self.skipped_count,
                "failed": len(self.failures),
                "interrupted": interrupted,
                "seconds": round(seconds, 2),
                "failures": [message for _, message in self.failures],
            }
        )
        if not self.quiet:
            self.say(self.headline(seconds, interrupted=interrupted))
            for note, count in self.notes.items():
                self.say(f"  note: {note}" + (f" ({count} times)" if count > 1 else ""))
        if not self.each:  # else they were told at once
            for _, message in self.failures:
                self.warn(message)
        if interrupted and not self.quiet:
            self.say("Interrupted. What is done is whole; run the same command again to go on.")
        return code

    def headline(self, seconds: float, *, interrupted: bool) -> str:
        """Say the counts, the time and where results are."""
        counts = [f"{self.done_count} done"]
        if self.anew_count:
            counts[0] += f" ({self.anew_count} anew: the source or the settings changed)"
        if self.skipped_count:
            counts.append(f"{self.skipped_count} skipped, done before (--overwrite does them again)")
        if self.failures:
            counts.append(f"{len(self.failures)} failed")
        text = f"{', '.join(counts)} in {shown_seconds(seconds)}"
        if self.done_count > 1:
            text += f", {self.done_count / max(seconds, 1e-6):.1f} a second"
        if 0 < len(self.files) <= MOST_LISTED:
            return f"{text}: {', '.join(str(file) for file in self.files)}"
        if len(self.places) == 1:
            return f"{text}: {next(iter(self.places))}"
        return f"{text}."

    # ------------------------------------------------------------------------------------------------ ways to say

    def say(self, text: str) -> None:
        """Print a line on standard error, unless quiet."""
        if not self.quiet:
            self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print a line on standard error even when quiet."""
        self.console.print(text, markup=False, style="red")

    def line(self, **values: Any) -> None:
        """Print a line of JSON on standard output, if that was asked for."""
        if self.json:
            sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
            sys.stdout.flush()


class Bar:
    """Progress of one piece of work."""

    def __init__(self, report: Report, task: TaskID | None, title: str, total: int | None) -> None:
        self.report, self.task, self.title, self.total = report, task, title, total
        self.started = time.monotonic()
        self.base: int | None = None  # where it began: a video may go on in the middle

    def at(self, count: int, total: int | None = None) -> None:
        """Show that `count` of `total` are done."""
        total = total or self.total
        self.base = count - 1 if self.base is None else self.base
        spent, own = time.monotonic() - self.started, max(1, count - self.base)
        speed = f"{own / spent:.1f}/s" if spent > 1 else ""
        if self.task is not None and self.report.progress is not None:
            failed = len(self.report.failures)
            words = f"{speed} [{failed} failed]" if failed else speed
            self.report.progress.update(self.task, completed=count, total=total, speed=words)
        elif not self.report.quiet and time.monotonic() - self.report.logged > LOG_SECONDS:
            self.report.logged = time.monotonic()
            left = f", {shown_seconds(spent / own * (total - count))} left" if total else ""
            self.report.say(f"{self.title}: {count} of {total or '?'}{left}")
