"""Pictures through a pipeline, all together, into a sink."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vitruvian.cli.items import Item
from vitruvian.cli.kinds import PLOTS, ending_of
from vitruvian.errors import InputError
from vitruvian.files import json_text, write_image
from vitruvian.pipelines import Failure
from vitruvian.pipelines.sources import Frame, FrameLoader, Source, open_source
from vitruvian.results import Result

if TYPE_CHECKING:
    from vitruvian.cli.jobs import Job, Worker


class Sink(Protocol):
    """Where results go."""

    def keep(self, item: Item, result: Any) -> None:
        """Write a result; called in background threads."""
        ...

    def taken(self, item: Item) -> list[Path]:
        """Hand over what was written, in the order of items; returns the files."""
        ...


class FileSink:
    """Files in a folder."""

    def __init__(self, job: Job, files_of: Callable[[Item], dict[str, Path]]) -> None:
        self.job, self.files_of = job, files_of

    def keep(self, item: Item, result: Any) -> None:
        """Write all files of a result."""
        for kind, path in self.files_of(item).items():
            write_kind(self.job, result, kind, path)

    def taken(self, item: Item) -> list[Path]:
        """Return the files."""
        return list(self.files_of(item).values())


class StdoutSink:
    """Standard output: one file, or a line of JSON a picture."""

    def __init__(self, job: Job, kind: str) -> None:
        self.job, self.kind = job, kind
        if kind != "json" and sys.stdout.isatty():
            raise InputError(f"standard output: expected a file or a pipe for {kind}, got a terminal. Add --out FILE.")
        self.ready: dict[str, bytes] = {}

    def keep(self, item: Item, result: Any) -> None:
        """Keep the bytes until it is their turn."""
        if self.kind == "json":
            self.ready[item.name] = (json_text(result.to_dict()) + "\n").encode()
            return
        with tempfile.TemporaryDirectory(prefix="vitruvian-") as folder:
            path = Path(folder) / f"result{ending_of(self.kind)}"
            write_kind(self.job, result, self.kind, path)
            self.ready[item.name] = path.read_bytes()

    def taken(self, item: Item) -> list[Path]:
        """Write the bytes."""
        sys.stdout.buffer.write(self.ready.pop(item.name))
        sys.stdout.buffer.flush()
        return []


def write_kind(job: Job, result: Any, kind: str, path: Path) -> None:
    """Write a result as one kind of file."""
    if kind in PLOTS:
        write_image(path, np.asarray(job.drawing(result)))
    else:
        result.save(path)


def run_pictures(worker: Worker, items: Sequence[Item], sink: Sink, *, anew: Collection[str] = ()) -> None:
    """Run pictures; one that fails does not stop the rest."""
    report, job, pipe = worker.report, worker.job, worker.pipe
    by_name = {item.name: item for item in items}

    def keep(result: Result) -> None:
        sink.keep(by_name[str(result.source)], job.changed(result))

    source = Source(lambda: (ticket_of(item) for item in items), count=len(items))
    with report.bar("pictures", len(items)) as bar, pipe.run(source, save=keep, **worker.options) as results:
        for index, found in enumerate(results):
            item = items[min(index, len(items) - 1)]
            if isinstance(found, Failure):
                report.failed(found.name, found.error)
            else:
                finish(worker, item, found, sink, anew=item.name in anew)
            bar.at(index + 1)


def finish(worker: Worker, item: Item, result: Any, sink: Sink, *, anew: bool) -> None:
    """Take note of a result whose files are written."""
    files = sink.taken(item)
    if worker.dataset is not None:
        worker.dataset.add(worker.job.changed(result), item.name)
    if files and item.kind != "stdin":
        worker.journal.add(item, files, worker.settings)
    note = None if result.people is None else result.people.note
    facts = {} if result.people is None else {"people": len(result.people)}
    worker.report.done(item.name, files, anew=anew, note=note, size_hw=list(result.size_hw), **facts)


def ticket_of(item: Item) -> FrameLoader:
    """Make a ticket whose picture has the item's name, also where the source turns out to be no picture."""
    if item.kind == "stdin":
        return FrameLoader(name=item.name, load=lambda: read_stdin(item))

    def read() -> Frame:
        ticket = item.source if isinstance(item.source, FrameLoader) else next(tickets_of(item))
        return dataclasses.replace(ticket.load(), name=item.name)

    return FrameLoader(name=item.name, load=read, path=item.path)


def tickets_of(item: Item) -> Iterator[FrameLoader]:
    """Open the source of an item."""
    return open_source(item.path if item.path is not None else item.source).loaders()


def read_stdin(item: Item) -> Frame:
    """Read the picture on standard input."""
    with tempfile.SpooledTemporaryFile(max_size=1 << 28) as held:
        shutil.copyfileobj(sys.stdin.buffer, held)
        held.seek(0)
        content = held.read()
    if not content:
        raise InputError(f"{item.name}: expected a picture, got nothing. Pipe one in, such as < photo.jpg.")
    return dataclasses.replace(next(open_source(content).loaders()).load(), name=item.name)
