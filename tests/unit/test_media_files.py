"""The files of a folder: order, hidden ones, folders inside folders, links."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitruvian.errors import InputError
from vitruvian.media_files import walk_files


@pytest.mark.parametrize("ordered", [True, False])
def test_walk_files(tmp_path: Path, ordered: bool) -> None:
    for name in ("b.jpg", "a/c.jpg", "a/.d.jpg", ".e/f.jpg", "a.jpg", "a/b/g.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)  # followed, it would never end
    (tmp_path / "link.jpg").symlink_to(tmp_path / "b.jpg")

    def names(**options: bool) -> list[str]:
        found = [Path(entry.path) for entry in walk_files(tmp_path, ordered=ordered, **options)]
        assert not ordered or found == sorted(found)
        return sorted(str(path.relative_to(tmp_path)) for path in found)

    assert names() == ["a.jpg", "b.jpg", "link.jpg"]
    assert names(recursive=True) == ["a.jpg", "a/b/g.txt", "a/c.jpg", "b.jpg", "link.jpg"]


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a readable folder"):
        list(walk_files(tmp_path / "none"))
