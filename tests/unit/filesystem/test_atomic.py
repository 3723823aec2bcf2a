"""Files appear whole or not at all."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from vitruvian.errors import InputError
from vitruvian.filesystem.atomic import (
    atomic_write,
    check_writable,
    find_temporary_files,
    remove_temporary_files,
    sync_to_disk,
)


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "deep" / "a.txt"
    with atomic_write(target) as temporary:
        temporary.write_text("whole")
        assert temporary.parent == target.parent
        assert temporary.name.startswith(".")
        assert not target.exists()
        assert list(target.parent.glob("*.txt")) == []
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_after_an_error_the_old_file_stays_and_nothing_is_left(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(error), atomic_write(target) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise error
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_files_get_the_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic_write(tmp_path / "a") as temporary:
        temporary.write_text("")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected the name of a file, got a folder"), atomic_write(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder to write in"), atomic_write(tmp_path / "file" / "a.txt"):
        pass


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "Free some space"), (errno.EROFS, "Choose another"), (errno.EACCES, "Choose")]
)
def test_errors_of_the_disk_have_a_name(number: int, hint: str, tmp_path: Path) -> None:
    expected = rf"a\.txt: expected a writable path, got {os.strerror(number)}\. {hint}"
    with pytest.raises(InputError, match=expected), atomic_write(tmp_path / "a.txt"):
        raise OSError(number, os.strerror(number))
    assert not list(tmp_path.iterdir())


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError), atomic_write(tmp_path / "a.txt"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    own = [".a.txt.0123abcd.part", ".a.txt.ffffffff.part"]
    others = [".b.txt.0123abcd.part", ".a.txt.part", ".a.txt.0123abcx.part", "a.txt.0123abcd.part", "a.txt"]
    for name in own + others:
        (tmp_path / name).touch()
    found = find_temporary_files(tmp_path)
    assert {target: {path.name for path in paths} for target, paths in found.items()} == {
        "a.txt": set(own),
        "b.txt": {others[0]},
    }
    remove_temporary_files(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(others[1:])


def test_a_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    during = []
    monkeypatch.setattr(os, "fsync", lambda file: during.extend(tmp_path.iterdir()))
    check_writable(tmp_path / "not" / "there")
    assert not list(tmp_path.iterdir())
    assert sys.platform == "win32" or not during  # a process that is killed in the middle leaves nothing
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="expected a folder"):
        check_writable(tmp_path / "file")


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be opened")
def test_files_and_their_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    paths = [tmp_path / "folder", tmp_path / "file", tmp_path / "missing"]
    paths[0].mkdir()
    for path in (paths[0] / "a", paths[1]):
        path.write_text("content")
    sync_to_disk(paths)
    assert sorted(synced) == sorted(path.stat().st_ino for path in (paths[0] / "a", paths[1], paths[0], tmp_path))
