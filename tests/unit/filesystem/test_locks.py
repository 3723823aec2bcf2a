"""Locks on outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vitruvian.errors import InputError
from vitruvian.filesystem.locks import _LOCK_FOLDER, OutputLock, remove_unused_locks


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("a", "b")}
    lock = OutputLock(tmp_path, files)
    with pytest.raises(InputError, match="b: is being written by process"):
        OutputLock(tmp_path, {"c": tmp_path / "c", "b": tmp_path / "b"})
    OutputLock(tmp_path, {"c": tmp_path / "c"}).release()  # what was locked before the failure is free again
    lock.release()
    OutputLock(tmp_path, files).release()
    assert not (tmp_path / _LOCK_FOLDER).exists()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from vitruvian.filesystem.locks import OutputLock, remove_unused_locks
OutputLock(Path({str(tmp_path)!r}), {{"a": Path("a")}})
os._exit(1)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    (left,) = (tmp_path / _LOCK_FOLDER).iterdir()
    OutputLock(tmp_path, {"a": tmp_path / "a"}).release()
    assert not left.exists()
    subprocess.run([sys.executable, "-c", code], check=False)
    own = OutputLock(tmp_path, {"b": tmp_path / "b"})
    remove_unused_locks(tmp_path)
    assert not left.exists()
    with pytest.raises(InputError, match="is being written"):
        OutputLock(tmp_path, {"b": tmp_path / "b"})
    own.release()
    assert not (tmp_path / _LOCK_FOLDER).exists()


def test_a_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="expected a folder to write in"):
        OutputLock(tmp_path / "file", {"a": tmp_path / "a"})
