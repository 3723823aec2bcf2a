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
from pathlib import Path

from vitruvian.errors import InputError

LOCK_FOLDER = ".vitruvian.locks"


class OutputLock:
    """A lock on the files of one result, held from creation to `release`.

    Args:
        folder: The output folder.
        name: What the lock is about; for messages, and for its file's name.

    Raises:
        InputError: Another process has it.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / LOCK_FOLDER / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.lock"
        while True:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:  # its last user has just removed the folder
                continue
            except OSError as error:
                raise InputError(f"{folder}: expected a folder to write in, got {error.strerror}.") from error
            if not _lock(self._file):
                other = _owner(self._file)
                os.close(self._file)
                raise InputError(f"{name}: is being written by {other}. Wait for it, or choose another --out.")
            if _same_file(self._file, self._path):
                break
            os.close(self._file)  # removed by its last user between opening and locking
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.strftime("%Y-%m-%d %H:%M:%S")}
        os.ftruncate(self._file, 0)
        os.write(self._file, json.dumps(owner).encode())

    def release(self) -> None:
        """Give the lock back and remove its file."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()  # unless others are in it


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


def _same_file(file: int, path: Path) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def _owner(file: int) -> str:
    """Return who holds a lock, as its file tells."""
    try:
        os.lseek(file, 0, os.SEEK_SET)
        owner = json.loads(os.read(file, 4096))
        return f"process {owner['pid']} on {owner['host']} since {owner['time']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
