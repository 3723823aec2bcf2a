"""Paths of results: inside their folder, in names that file systems take, distinct."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vitruvian.errors import InputError
from vitruvian.filesystem.output_paths import DistinctNames, PathPattern, output_path, safe_name


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("photo", "photo_pose.json"),
        ("a/b/photo", "a/b/photo_pose.json"),
        ('w<e>i:r"d|?*', "w_e_i_r_d__pose.json"),
        ("tab\there", "tab_here_pose.json"),
        ("..hidden", "..hidden_pose.json"),
    ],
)
def test_paths(stem: str, name: str, tmp_path: Path) -> None:
    assert output_path(tmp_path, stem, "_pose.json") == tmp_path / name


@pytest.mark.parametrize("stem", ["../x", "a/../../x", "/x", "a//x", "..", ".", "", "a/."])
def test_paths_that_leave_the_folder(stem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="outside of"):
        output_path(tmp_path, stem, ".json")


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_links_that_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "away").symlink_to(tmp_path)
    with pytest.raises(InputError, match="outside of"):
        output_path(tmp_path / "out", "away/x", ".json")
    (tmp_path / "link").symlink_to(tmp_path / "out")  # the folder itself may be one
    assert output_path(tmp_path / "link", "x", ".json").name == "x.json"


@pytest.mark.parametrize("letter", ["x", "é", "字", os.fsdecode(b"\xe9")])
@pytest.mark.parametrize("ending", ["_pose.json", "_pointmap_plot.jpg"])
def test_long_names(letter: str, ending: str, tmp_path: Path) -> None:
    paths = [output_path(tmp_path, letter * 300 + end, ending) for end in ("", "a", "b")]
    assert len(set(paths)) == 3
    for path in paths:
        assert path.name.endswith(ending)
        assert len(os.fsencode(f".{path.name}.12345678.part")) <= 255
    assert output_path(tmp_path, letter * 300, ending) == paths[0]


@pytest.mark.parametrize("name", ["", " ", ".", ".."])
def test_names_that_mean_folders(name: str) -> None:
    assert safe_name(name) == "image"


def test_distinct_names() -> None:
    names = DistinctNames()
    assert [names.add(name) for name in ("a", "A", "a_2", "a", "é", "e\u0301")] == [
        "a",
        "A_2",
        "a_2_2",
        "a_3",
        "é",
        "e\u0301_2",
    ]


class TestPatterns:
    def test_sources_of_one_name_get_numbers_in_their_order(self, tmp_path: Path) -> None:
        paths = PathPattern(str(tmp_path / "{stem}.png"))
        for index, source in enumerate(("a/x.jpg", "b/x.jpg", "https://a.org/y.jpg?x=/z", "array", "q?.png")):
            paths.announce(source, index)
        assert paths.path("b/x.jpg", 1, 0) == tmp_path / "x_2.png"
        assert paths.path("a/x.jpg", 0, 0) == tmp_path / "x.png"
        assert paths.path("https://a.org/y.jpg?x=/z", 2, 0) == tmp_path / "y.png"
        assert paths.path("array", 3, 0) == tmp_path / "array.png"
        assert paths.path("q?.png", 4, 0) == tmp_path / "q_.png"

    def test_frames_share_the_stem_of_their_video(self, tmp_path: Path) -> None:
        paths = PathPattern(tmp_path / "{stem}_{frame:03d}.png")
        for index, source in enumerate(("a/x.mp4", "a/x.mp4", "b/x.mp4")):
            paths.announce(source, index)
        assert paths.path("b/x.mp4", 2, 0) == tmp_path / "x_2_000.png"
        assert paths.path("a/x.mp4", 1, 1) == tmp_path / "x_001.png"

    def test_names_stay_short_and_inside(self, tmp_path: Path) -> None:
        paths = PathPattern(tmp_path / "{stem}" / "{stem}.npz")
        path = paths.path("/" + "x" * 400 + ".jpg", 0, 0)
        assert all(len(part) <= 255 for part in path.parts)
        with pytest.raises(InputError, match="outside of"):
            PathPattern(str(tmp_path / "{stem}" / ".." / ".." / "x")).path("a", 0, 0)

    @pytest.mark.parametrize("pattern", ["out/x.png", "out/{stem}_{other}.png", "out/{stem"])
    def test_patterns_that_cannot_be_meant(self, pattern: str) -> None:
        with pytest.raises(InputError, match="save"):
            PathPattern(pattern).path("a.jpg", 0, 0)
