"""What a command prints: progress and a summary on standard error, JSON on standard output, errors in one line."""

from __future__ import annotations

import json
import math
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from vitruvian.cli.option_groups import VerbosityGroup
from vitruvian.errors import VitruvianError, escape_surrogates, replace_control_characters

DONE, SOME_FAILED, INVALID_COMMAND, INTERRUPTED = 0, 1, 2, 130  # exit codes
_CONSOLE = Console(stderr=True, highlight=False, soft_wrap=True)  # one for all, so that bars and lines do not mix
_LOG_SECONDS = 15.0  # between lines of progress where there is no terminal
_PROGRESS_SECONDS = 1.0  # between lines of --progress
_MAX_LISTED = 4  # files that the summary names one by one
_MIN_TIMED = 3  # results after the first that it takes to estimate the remaining time

_ITEM = re.compile(r"(\w+)\[(\d+)\]")  # boxes[0]


# ------------------------------------------------------------------------------------------------ texts


def printable(text: str) -> str:
    """Return a text that any terminal takes, on one line: bytes that are not UTF-8 are escaped, controls replaced."""
    return escape_surrogates(replace_control_characters(re.sub(r"[\t\n\r]+", " ", text)))


def error_text(error: BaseException | str, names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the message of an error on one line, about an option if it is about the argument in `names`."""
    text = str(error)
    if isinstance(error, VitruvianError) and error.subject is not None:
        text = error.about("".join(_option(part, names) for part in re.split(r"( and |, )", error.subject)))
    return printable(" ".join(text.split())) or type(error).__name__


def traceback_text(error: BaseException) -> str:
    """Return the traceback of an error, for --debug."""
    return "\n".join(printable(line) for line in "".join(traceback.format_exception(error)).splitlines())


def _option(argument: str, names: Mapping[str, str]) -> str:
    item = _ITEM.fullmatch(argument)
    if item and item[1] in names:
        return f"{names[item[1]]} number {int(item[2]) + 1}"
    return names.get(argument, argument)


def json_line(values: object, *, indent: int | None = None) -> str:
    """Return JSON that any output takes; bytes that are not UTF-8 are escaped, and what terminals interpret."""
    text = json.dumps(values, ensure_ascii=False, indent=indent, default=str)
    text = re.sub("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]", lambda found: f"\\u{ord(found[0]):04x}", text)
    return escape_surrogates(text)


def print_json(values: object) -> None:
    """Print JSON on standard output."""
    sys.stdout.write(json_line(values, indent=2) + "\n")


def format_millions(millions: float) -> str:
    """Return a number of parameters, in millions, with its unit."""
    return f"{millions / 1000:.2f} B" if millions >= 1000 else f"{millions:g} M"


def format_seconds(seconds: float) -> str:
    """Return a duration in seconds, or as hours:minutes:seconds from a minute on."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


# ------------------------------------------------------------------------------------------------ the report


def print_warning(text: str) -> None:
    """Print a warning on standard error, above a progress bar if there is one."""
    _CONSOLE.print(f"Warning: {printable(text)}", markup=False)


class ConsoleReport:
    """Counts what was done, skipped and failed, and prints it.

    Args:
        verbosity: How much to print.
        each: Whether to print a line for each source as it is done, as --watch needs it.
    """

    def __init__(self, verbosity: VerbosityGroup, *, each: bool = False) -> None:
        self.json, self.quiet, self.debug, self.each = verbosity.json, verbosity.quiet, verbosity.debug, each
        self.progress = verbosity.progress
        self._names = verbosity.names_in_messages()
        self.done_count = self.skipped_count = self.changed_count = 0
        self.failures: list[str] = []
        self.more_failures = 0  # without a message
        self.started = time.monotonic()
        self._files: list[Path] = []
        self._folders: set[Path] = set()
        self._shards: str | None = None  # folder or URI of shards, where results go there
        self._notes: dict[str, int] = {}

    @property
    def failed_count(self) -> int:
        """Number of sources without a result."""
        return len(self.failures) + self.more_failures

    @contextmanager
    def bar(self, title: str, total: int | None) -> Iterator[_Bar]:
        """Show a progress bar while the block runs; lines from time to time where there is no terminal."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        hidden = self.quiet or not _CONSOLE.is_terminal
        with Progress(*columns, console=_CONSOLE, transient=True, disable=hidden) as progress:
            yield _Bar(self, printable(title), total, progress)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Show what takes a while, on a terminal."""
        return nullcontext() if self.quiet else _CONSOLE.status(escape(printable(text)))

    def done(
        self, name: str, files: Sequence[Path], *, changed: bool = False, note: str | None = None, **details: object
    ) -> None:
        """Count a source that gave results; the summary has the notes, such as that no person was found."""
        self.done_count += 1
        self.changed_count += changed
        self._folders |= {file.parent for file in files}
        if len(self._files) <= _MAX_LISTED:
            self._files += files
        if note is not None:
            self._notes[note] = self._notes.get(note, 0) + 1
        self.print_json_line(source=name, status="done", files=[str(file) for file in files], **details)
        if self.each:
            self.say(f"{name} → {', '.join(str(file) for file in files)}")

    def add_counts(self, *, done: int, skipped: int, folder: str) -> None:
        """Count sources whose results are in shards."""
        self.done_count += done
        self.skipped_count += skipped
        self._shards = folder
        self.print_json_line(status="done", done=done, skipped=skipped, folder=folder)

    def skipped(self, name: str, files: Sequence[Path]) -> None:
        """Count a source that was done before."""
        self.skipped_count += 1
        self.print_json_line(source=name, status="skipped", files=[str(file) for file in files])

    def failed(self, name: str, error: BaseException | str) -> None:
        """Count a source that gave no result."""
        message = error_text(error, self._names)
        message = message if message.startswith(printable(name)) else f"{printable(name)}: {message}"
        self.failures.append(message)
        self.print_json_line(source=name, status="failed", error=message)
        if self.each:
            self.warn(message)
        if self.debug and isinstance(error, BaseException):
            _CONSOLE.print(traceback_text(error), markup=False, style="dim")

    def lost(self, name: str, message: str) -> None:
        """Count a source as failed that was reported as done."""
        self.done_count -= 1
        self.failed(name, message)

    def finish(self, *, interrupted: bool = False) -> int:
        """Print the summary and return the exit code."""
        seconds = time.monotonic() - self.started
        self.print_json_line(
            summary={
                "done": self.done_count,
                "skipped": self.skipped_count,
                "failed": self.failed_count,
                "interrupted": interrupted,
                "seconds": round(seconds, 2),
                "failures": self.failures,
            }
        )
        self.say(self._headline(seconds))
        for note, count in self._notes.items():
            self.say(f"  note: {note}" + (f" ({count} times)" if count > 1 else ""))
        if not self.each:
            for message in self.failures:
                self.warn(message)
            if self.more_failures:
                self.warn(f"{self.more_failures} more failures: see the column error of the shards.")
        if interrupted:
            self.say("Interrupted. Finished results are complete. Run the same command to resume.")
        return INTERRUPTED if interrupted else SOME_FAILED if self.failed_count else DONE

    def _headline(self, seconds: float) -> str:
        counts = [f"{self.done_count} done"]
        if self.changed_count:
            counts[0] += f" ({self.changed_count} redone: input or settings changed)"
        if self.skipped_count:
            counts.append(f"{self.skipped_count} skipped (already done; --overwrite processes them again)")
        if self.failed_count:
            counts.append(f"{self.failed_count} failed")
        text = f"{', '.join(counts)} in {format_seconds(seconds)}"
        if self.done_count > 1:
            text += f", {self.done_count / max(seconds, 1e-6):.1f} per second"
        if self._shards is not None:
            return f"{text}: {self._shards}"
        if 0 < len(self._files) <= _MAX_LISTED:
            return f"{text}: {', '.join(str(file) for file in self._files)}"
        return f"{text}: {next(iter(self._folders))}" if len(self._folders) == 1 else f"{text}."

    def say(self, text: str) -> None:
        """Print a line on standard error, unless quiet."""
        if not self.quiet:
            _CONSOLE.print(printable(text), markup=False)

    def warn(self, text: str) -> None:
        """Print a line on standard error even when quiet."""
        _CONSOLE.print(printable(text), markup=False, style="red")

    def print_json_line(self, **values: object) -> None:
        """Print a line of JSON on standard output with --json."""
        if self.json:
            sys.stdout.write(json_line(values) + "\n")
            sys.stdout.flush()


class _Bar:
    """Progress of one piece of work."""

    def __init__(self, report: ConsoleReport, title: str, total: int | None, progress: Progress) -> None:
        self._report, self._title, self._total, self._progress = report, title, total, progress
        self._task = progress.add_task(escape(title), total=total, speed="")
        self._logged = time.monotonic()
        self._first: tuple[int, float] | None = None  # count and time of the first update; a video may resume
        self._reported = -math.inf

    def update(self, count: int, total: int | None = None) -> None:
        """Show that `count` of `total` are done."""
        total, now = total or self._total, time.monotonic()
        if self._first is None:
            self._first = count, now
        rate = self._rate(count, now)
        speed = "" if rate is None else f"{rate:.1f}/s"
        left = "" if rate is None or total is None else f", {format_seconds((total - count) / rate)} left"
        failed = f" ({self._report.failed_count} failed)" if self._report.failed_count else ""
        self._progress.update(self._task, completed=count, total=total, speed=speed + left + failed)
        if self._report.progress and (now - self._reported > _PROGRESS_SECONDS or count == total):
            self._reported = now
            self._report.print_json_line(progress={"source": self._title, "done": count, "total": total})
        if self._progress.disable and now - self._logged > _LOG_SECONDS:
            self._logged = now
            self._report.say(f"{self._title}: {count} of {total or '?'}{left}")

    def _rate(self, count: int, now: float) -> float | None:
        """Return results per second since the first, which takes longer than others; None while that is unknown."""
        assert self._first is not None
        finished, seconds = count - self._first[0], now - self._first[1]
        return finished / seconds if finished >= _MIN_TIMED and seconds > 0 else None
