"""Atomic file writes: a temporary file beside the target replaces it when it is complete.

A process that is killed leaves its temporary file behind; `remove_temporary_files` removes those of a folder.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from vitruvian.errors import InputError, VitruvianError

# Error numbers of the operating system for a path that cannot be written.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = _FULL | {errno.EACCES, errno.EPERM, errno.EROFS}
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")
_PROBE_BYTES = 1 << 17
_MAX_SYNCED_FILES = 64  # more files are synced by one call


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which replaces `path` at the end; after an error it is removed."""
    target, temporary = temporary_path(path)
    try:
        with write_errors(target):
            temporary.touch()
            mode = temporary.stat().st_mode  # set by the umask; safetensors would make the file private
            yield temporary
            temporary.chmod(mode)
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def write_errors(path: str | Path) -> Iterator[None]:
    """Raise `InputError` where the operating system refuses to write: a full or read-only disk, or no permission."""
    try:
        yield
    except OSError as error:
        if isinstance(error, VitruvianError) or error.errno not in _REFUSED:
            raise
        hint = "Free some space, and run it again." if error.errno in _FULL else "Choose another."
        raise InputError(
            subject=str(path), expected="a writable path", got=os.strerror(error.errno or 0), hint=hint
        ) from error


def check_writable(folder: Path) -> None:
    """Raise `InputError` unless 128 KiB can be written to a folder, or where the folder will be created."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    try:
        with (
            write_errors(folder),
            tempfile.TemporaryFile(dir=existing) as file,
        ):  # an unnamed file leaves nothing behind
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except NotADirectoryError as error:
        raise InputError(f"{folder}: expected a folder to write in, got {error.strerror}. Choose another.") from error


def find_temporary_files(folder: Path) -> dict[str, list[Path]]:
    """List the temporary files in a folder by the name of their target: of running and of killed processes."""
    found: dict[str, list[Path]] = {}
    for entry in folder.glob(".*.part"):
        if match := _TEMPORARY.fullmatch(entry.name):
            found.setdefault(match[1], []).append(entry)
    return found


def remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder. No other process may write to the folder."""
    for entries in find_temporary_files(folder).values():
        for entry in entries:
            entry.unlink(missing_ok=True)


def sync_to_disk(paths: Iterable[Path]) -> None:
    """Wait until files, and folders with the files in them, are on the disk, so that a power failure loses none."""
    there = [path for path in paths if path.exists()]
    files = [file for path in there for file in (path.iterdir() if path.is_dir() else (path,))]
    if len(files) > _MAX_SYNCED_FILES and sys.platform == "linux":
        os.sync()  # waits for all files of all processes, and is faster than so many calls
        return
    for entry in dict.fromkeys([*files, *(file.parent for file in files)]):
        if sys.platform == "win32" and entry.is_dir():  # folders cannot be opened there
            continue
        descriptor = os.open(entry, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def temporary_path(path: str | Path) -> tuple[Path, Path]:
    """Return the target and a new temporary name beside it; creates the folder where it is missing.

    The temporary name starts with a dot and ends in ``.part``, so that patterns like ``*.png`` do not match it.
    """
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target}: expected the name of a file, got a folder. Add a file name to it.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target}: expected a folder to write in, got {error.strerror}. Choose another.") from error
    return target, target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")


def write_text(path: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_lines(path: str | Path, lines: Iterable[str]) -> None:
    """Write lines of UTF-8 text atomically; surrogates become the bytes of file names that they stand for."""
    with atomic_write(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="surrogateescape")


class Writer:
    """Base of writers that are context managers: `close` at the end, `discard` after an error."""

    def close(self) -> object:
        """Finish the file."""

    def discard(self) -> None:
        """Close without finishing the file."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
