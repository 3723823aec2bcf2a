"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitruvian.atomic import atomic_write
from vitruvian.errors import InputError


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
