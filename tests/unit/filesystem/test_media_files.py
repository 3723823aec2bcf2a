"""What texts name; the files of a folder: order, hidden ones, folders inside folders, links."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitruvian.errors import InputError
from vitruvian.filesystem.media_files import source_kind, walk_files


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


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("camera:0", "camera"),
        ("camera:x", "file"),
        (" HTTPS://host/a.png", "url"),
        ("s3://bucket/a.png", "file"),
        ("s3://bucket/*.png", "glob"),
        ("DATA:image/png;base64,AA==", "data"),
        ("A" * 5000, "data"),
        ("clips", "folder"),
        ("clips/*.mp4", "glob"),
        ("clips/frame_%04d.png", "sequence"),
        ("clips/frame_%04d_*.png", "sequence"),
        ("clips/[1].png", "file"),
        ("clips/100%d.png", "file"),
        ("missing.png", "file"),
    ],
)
def test_source_kinds(text: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clips").mkdir()
    for name in ("[1].png", "100%d.png"):  # existing files take precedence over patterns
        (tmp_path / "clips" / name).touch()
    assert source_kind(text) == kind


def test_an_empty_source() -> None:
    with pytest.raises(InputError, match="empty string"):
        source_kind("")
