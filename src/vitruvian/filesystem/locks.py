"""Locks on outputs: two processes never write one result at the same time.

A lock is a file in OUT/.vitruvian.locks that the operating system locks, so that it is released when its process ends,
however that happens. It names its owner for the message that the second process prints.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from vitruvian.errors import InputError

_LOCK_FOLDER = ".vitruvian.locks"


class OutputLock:
    """A lock on the files of one result, held from creation to `release`.

    Args:
        folder: The output folder.
        files: The files, by names that are the same for every process.

    Raises:
        InputError: Another process has one of them.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path]) -> None:
        self._locks: list[tuple[int, Path]] = []
        try:
            for name, file in files.items():
                digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:24]
                path = folder / _LOCK_FOLDER / f"{digest}.lock"
                self._locks.append((_locked_file(path, file), path))
        except BaseException as error:
            self.release()
            if isinstance(error, OSError):
                raise InputError(f"{folder}: expected a folder to write in, got {error.strerror}.") from error
            raise

    def release(self) -> None:
        """Give the lock back and remove its files."""
        for descriptor, path in self._locks:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # unless others are in it
        self._locks.clear()


def remove_unused_locks(folder: Path) -> None:
    """Remove the lock files that killed processes left in an output folder."""
    for path in (folder / _LOCK_FOLDER).glob("*.lock"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR)
            if _lock(descriptor) and os.path.samestat(os.fstat(descriptor), path.stat()):
                path.unlink()
            os.close(descriptor)
    with contextlib.suppress(OSError):
        (folder / _LOCK_FOLDER).rmdir()  # unless others are in it


def _locked_file(path: Path, output: Path) -> int:
    """Create a lock file, lock it and write its owner into it; return its descriptor."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # its last user has just removed the folder
            continue
        if not _lock(descriptor):
            holder = _owner(descriptor)
            os.close(descriptor)
            raise InputError(f"{output}: is being written by {holder}. Wait for it, or choose another --out.")
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                break
        os.close(descriptor)  # removed by its last user between opening and locking
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(owner).encode())
    return descriptor


def _lock(file: int) -> bool:
    """Lock an open file, unless another process has."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(file, 1 << 20, os.SEEK_SET)  # a byte beyond the content, which stays readable
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
            os.lseek(file, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _owner(file: int) -> str:
    """Return who holds a lock, according to its file."""
    try:
        os.lseek(file, 0, os.SEEK_SET)
        owner = json.loads(os.read(file, 4096))
        return f"process {owner['pid']} on {owner['host']} since {owner['time']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
