"""Sources on the command line → inputs, and the names of their results."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitruvian.cli.named_sources import find_sources


def stems(folder: Path, *names: str) -> list[str]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [item.stem for item in find_sources([str(folder / name) for name in names])]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.jpg", "b.jpg"], ["a", "b"]),
        (["x/a.jpg", "y/a.jpg", "b.jpg"], ["x/a", "y/a", "b"]),
        (["1/x/a.jpg", "2/x/a.jpg"], ["1/x/a", "2/x/a"]),
        (["a.jpg", "a.png"], ["a_jpg", "a_png"]),
        (["x/a.jpg", "x/a.png", "y/a.jpg"], ["a_jpg", "a_png", "a"]),
        (["A.jpg", "x/a.jpg"], ["{here}/A", "x/a"]),
        (["A.jpg", "a.jpg", "x/b.jpg", "y/b.jpg"], ["A_jpg", "a_jpg_2", "x/b", "y/b"]),
        (["a b.jpg", "ä.jpg", "no_ending"], ["a b", "ä", "no_ending"]),
    ],
)
def test_stems(names: list[str], expected: list[str], tmp_path: Path) -> None:
    assert stems(tmp_path, *names) == [stem.format(here=tmp_path.name) for stem in expected]


def test_stems_of_addresses_and_folders(tmp_path: Path) -> None:
    found = find_sources(["https://a.org/x/photo.jpg?v=1", "https://b.org/photo.jpg", "camera:1", "-", "camera:1"])
    assert [item.stem for item in found] == ["x/photo", "b.org/photo", "camera1", "stdin"]
    assert [item.kind for item in found] == ["image", "image", "camera", "stdin"]
    for name in ("a.jpg", "b/c.jpg", ".hidden.jpg", ".b/d.jpg", "e.mp4", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [(item.stem, item.kind) for item in find_sources([str(tmp_path)])] == [("a", "image"), ("e", "video")]
    assert [item.stem for item in find_sources([str(tmp_path)], recursive=True)] == ["a", "b/c", "e"]
