"""The journal of an output folder, OUT/.vitruvian.jsonl: which results are done, from what and with which settings.

On a cluster each worker appends to a file of its own, OUT/.vitruvian.workers/WORKER.jsonl; all of them are read.

It is a write-ahead log. A "begin" record names a source, the settings and the planned files before any file is written;
a "done" record with the sizes of the files follows when all are written. A file is trusted only if its last record is
"done" for the same source and settings and its size is the recorded one. A file without a record is unknown: it is
neither trusted nor replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitruvian.cli.named_sources import NamedSource
from vitruvian.errors import InputError

JOURNAL = ".vitruvian.jsonl"
_WORKERS_FOLDER = ".vitruvian.workers"  # folder of the journals of workers
_VERSION = 2
_DIGEST_BYTES = 1 << 18  # sources up to this size are compared by content, larger ones by modification time
_MAY_BE_EMPTY = ".txt"  # YOLO labels of an image without objects
SourceStatus = Literal["new", "done", "changed"]


@dataclass(frozen=True)
class SourceFingerprint:
    """Which source, content and settings a file was made from.

    Attributes:
        source: Path or address of the source.
        size: Size of the source's files in bytes.
        mtime_ns: Modification time of the latest of them.
        digest: SHA-256 of a small source.
        settings: Digest of everything else that the file depends on.
    """

    source: str
    size: int | None
    mtime_ns: int | None
    digest: str | None
    settings: str

    @classmethod
    def of(cls, item: NamedSource, settings: str) -> SourceFingerprint:
        """Examine a source."""
        size = mtime_ns = digest = None
        try:
            if item.files:
                stats = [file.stat() for file in item.files]
                size, mtime_ns = sum(stat.st_size for stat in stats), max(stat.st_mtime_ns for stat in stats)
                if size <= _DIGEST_BYTES:
                    digest = hashlib.sha256(b"".join(file.read_bytes() for file in item.files)).hexdigest()
        except OSError:
            pass
        return cls(item.identity, size, mtime_ns, digest, settings)

    def same_content(self, other: SourceFingerprint) -> bool:
        """Return whether the source held the same bytes, as far as size, digest or time tell."""
        if self.digest is not None and other.digest is not None:
            return self.digest == other.digest
        return (self.size, self.mtime_ns) == (other.size, other.mtime_ns)

    def same_source(self, other: SourceFingerprint) -> bool:
        """Return whether it is the same source; a file that was moved is recognized by name and content."""
        moved = os.path.basename(self.source) == os.path.basename(other.source) and self.size is not None
        return self.source == other.source or (moved and self.same_content(other))


@dataclass(frozen=True)
class _Entry:
    """The last record of a file: its fingerprint, and its size once it is done."""

    fingerprint: SourceFingerprint
    size: int | None = None
    time_ns: int = 0
    file: str = ""


def has_journal(folder: Path) -> bool:
    """Return whether results were written into a folder."""
    return (folder / JOURNAL).is_file() or (folder / _WORKERS_FOLDER).is_dir()


class Journal:
    """The journal of one output folder, which need not exist.

    Thread-safe; other processes may append to the file at the same time.

    Args:
        folder: The output folder.
        writer: Name of this worker on a cluster, whose machines cannot append to one file.
    """

    def __init__(self, folder: Path, *, writer: str | None = None) -> None:
        self.folder = folder
        self._file = folder / JOURNAL if writer is None else folder / _WORKERS_FOLDER / f"{writer}.jsonl"
        self._entries: dict[str, _Entry] = {}
        self._positions: dict[str, int] = {}
        self._lock = threading.RLock()
        self.refresh()

    def refresh(self) -> None:
        """Read what was appended since, also by other processes. Damaged lines are skipped."""
        with self._lock:
            paths = [self.folder / JOURNAL, *sorted((self.folder / _WORKERS_FOLDER).glob("*.jsonl"))]
            if any(size_on_disk(path) < self._positions.get(path.name, 0) for path in paths):
                self._positions.clear()  # another file took the place of one
                self._entries.clear()
            for path in paths:
                self._read(path)

    def _read(self, path: Path) -> None:
        """Read the new lines of one file."""
        position = self._positions.get(path.name, 0)
        try:
            with path.open("rb") as file:
                file.seek(position)
                content = file.read()
        except OSError:
            return
        end = content.rfind(b"\n") + 1
        self._positions[path.name] = position + end
        for line in content[:end].splitlines():
            try:
                self._apply(json.loads(line), path.name)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                continue

    def _apply(self, record: dict[str, object], file: str) -> None:
        if record.get("version") != _VERSION:
            return
        known = {name: record[name] for name in SourceFingerprint.__dataclass_fields__}
        fingerprint = SourceFingerprint(**known)  # type: ignore[arg-type]
        if not isinstance(fingerprint.source, str):
            raise TypeError("source")
        files, written = record["files"], int(str(record.get("time_ns", 0)))
        entries: dict[str, _Entry] = {}
        if record["event"] == "begin" and isinstance(files, list):
            entries = {str(name): _Entry(fingerprint, time_ns=written, file=file) for name in files}
        elif record["event"] == "done" and isinstance(files, dict):
            entries = {str(name): _Entry(fingerprint, int(size), written, file) for name, size in files.items()}
        for name, entry in entries.items():  # the last line of a file counts, and of several files the latest one
            before = self._entries.get(name)
            if before is None or before.file == file or entry.time_ns >= before.time_ns:
                self._entries[name] = entry

    # ------------------------------------------------------------------------------------------------ what is done

    def status(self, item: NamedSource, files: Iterable[Path], settings: str) -> SourceStatus:
        """Return whether the files of a source are "done"; else "changed" where source or settings are, or "new".

        Raises:
            InputError: A file holds the result of another source, or the journal does not explain it.
        """
        paths = list(files)
        present = [path for path in paths if _has_content(path) or self._is_empty_result(path)]
        if not present:
            return "new"
        fingerprint = SourceFingerprint.of(item, settings)
        proven, stale = 0, False
        for path in present:
            with self._lock:
                entry = self._entries.get(self.name_of(path))
            if entry is None or (entry.size is not None and entry.size != size_on_disk(path)):
                reason = "was not written by this command" if entry is None else "was changed since it was written"
                raise InputError(f"{path}: exists and {reason}. Choose another --out, or add --overwrite.")
            if not entry.fingerprint.same_source(fingerprint):
                raise InputError(
                    f"{path}: holds the result of {entry.fingerprint.source}. Choose another --out, or add --overwrite."
                )
            same = entry.fingerprint.settings == settings and entry.fingerprint.same_content(fingerprint)
            proven += same and entry.size is not None
            stale |= not same
        if proven == len(paths):
            return "done"
        return "changed" if stale else "new"

    def _is_empty_result(self, path: Path) -> bool:
        """Return whether a folder is recorded as done without files, such as the crops of a video without objects."""
        with self._lock:
            entry = self._entries.get(self.name_of(path))
        return path.is_dir() and entry is not None and entry.size == 0

    def wrote(self, path: Path) -> bool:
        """Return whether a file, or the folder that it is in, is a result that this journal names."""
        return not {self.name_of(path), self.name_of(path.parent)}.isdisjoint(self._entries)

    def name_of(self, path: Path) -> str:
        """Return the name of a file in the journal: relative to its folder if it is inside."""
        try:
            return path.absolute().relative_to(self.folder.absolute()).as_posix()
        except ValueError:
            return str(path.absolute())

    # ------------------------------------------------------------------------------------------------ records

    def begin(self, item: NamedSource, files: Iterable[Path], settings: str) -> SourceFingerprint:
        """Record what is about to be written, on the disk before any of it is."""
        fingerprint = SourceFingerprint.of(item, settings)
        self._append({"event": "begin", "files": [self.name_of(path) for path in files]}, fingerprint, sync=True)
        return fingerprint

    def done(self, fingerprint: SourceFingerprint, files: Iterable[Path]) -> dict[Path, int]:
        """Record that files are complete and on the disk (`sync_to_disk`), and return their sizes.

        The record itself need not be on the disk: without it the files are written again.

        Raises:
            InputError: A file is missing or empty.
        """
        sizes = {path: size_on_disk(path) for path in files}
        for path, size in sizes.items():
            if not size and not (path.is_dir() or (path.suffix == _MAY_BE_EMPTY and path.exists())):
                raise InputError(f"{path}: expected a result, got no file or an empty one. Is the disk full?")
        names = {self.name_of(path): size for path, size in sizes.items()}
        self._append({"event": "done", "files": names}, fingerprint)
        return sizes

    def _append(self, record: dict[str, object], fingerprint: SourceFingerprint, *, sync: bool = False) -> None:
        """Append a line in one write, after the rest of a line that a killed process left."""
        details = {"version": _VERSION, "time_ns": time.time_ns()}
        line = (json.dumps(details | record | fingerprint.__dict__) + "\n").encode()
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._lock, self._file.open("a+b", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                if end:
                    file.seek(end - 1)
                    line = line if file.read(1) == b"\n" else b"\n" + line
                file.write(line)
                if sync:
                    os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self.folder}: expected a folder to write in, got {error.strerror}.") from error
        self.refresh()


def size_on_disk(path: Path) -> int:
    """Return the size of a file, or of all files in a folder; 0 where there is none."""
    try:
        if path.is_dir():
            return sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
        return path.stat().st_size
    except OSError:
        return 0


def _has_content(path: Path) -> bool:
    """Return whether there is a file, or a folder that is not empty."""
    return any(path.iterdir()) if path.is_dir() else path.exists()
