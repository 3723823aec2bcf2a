"""The journal: what it proves, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitruvian.cli.named_sources import NamedSource
from vitruvian.cli.resume_journal import _DIGEST_BYTES, JOURNAL, Journal
from vitruvian.errors import InputError


@pytest.fixture
def source(tmp_path: Path) -> NamedSource:
    return make_input(tmp_path / "in" / "a.jpg", b"image")


def make_input(path: Path, content: bytes) -> NamedSource:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content)
    return NamedSource(identity=str(path), name=str(path), kind="image", path=path)


def finish(folder: Path, one: NamedSource, *paths: Path, settings: str = "s") -> None:
    journal = Journal(folder)
    origin = journal.begin(one, paths, settings)
    for path in paths:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text("result")
    journal.done(origin, paths)


def status(folder: Path, one: NamedSource, *paths: Path, settings: str = "s") -> str:
    return Journal(folder).status(one, paths, settings)


def test_statuses_of_a_job(tmp_path: Path, source: NamedSource) -> None:
    out = tmp_path / "out"
    one, two = out / "a.json", out / "b" / "a.png"
    assert status(out, source, one) == "new"
    finish(out, source, one)
    assert status(out, source, one) == "done"
    assert status(out, source, one, two) == "new"  # one is missing
    finish(out, source, one, two)
    assert status(out, source, one, two) == "done"
    assert status(out, source, one, settings="t") == "changed"
    make_input(Path(source.name), b"other")
    assert status(out, source, one) == "changed"


def test_a_started_job_is_not_done(tmp_path: Path, source: NamedSource) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "a.json"
    Journal(out).begin(source, [path], "s")
    path.write_text("half")
    assert status(out, source, path) == "new"
    finish(out, source, path, settings="t")
    Journal(out).begin(source, [path], "s")  # killed before or after the file was replaced
    assert status(out, source, path, settings="t") == "changed"
    assert status(out, source, path) == "new"


def test_large_sources_are_compared_by_time(tmp_path: Path) -> None:
    import os

    one = make_input(tmp_path / "in" / "large.jpg", bytes(_DIGEST_BYTES + 1))
    path = tmp_path / "out" / "large.json"
    finish(tmp_path / "out", one, path)
    assert status(tmp_path / "out", one, path) == "done"
    os.utime(one.name, ns=(1, 1))
    assert status(tmp_path / "out", one, path) == "changed"


def test_results_of_other_sources(tmp_path: Path, source: NamedSource) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "a.json"
    finish(out, source, path)
    other = make_input(tmp_path / "else" / "a.jpg", b"another image")
    with pytest.raises(InputError, match="holds the result of"):
        status(out, other, path)
    moved = make_input(tmp_path / "moved" / "a.jpg", b"image")
    assert status(out, moved, path) == "done"


@pytest.mark.parametrize("damage", ["no journal", "no record", "other size", "other version"])
def test_unknown_files(damage: str, tmp_path: Path, source: NamedSource) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "a.json"
    finish(out, source, path)
    if damage == "no journal":
        (out / JOURNAL).unlink()
    elif damage == "no record":
        path = path.rename(out / "b.json")
    elif damage == "other size":
        path.write_text("edited")
        path.write_text("edited by hand")
    else:
        text = (out / JOURNAL).read_text()
        (out / JOURNAL).write_text(text.replace('"version": 2', '"version": 3'))
        assert (out / JOURNAL).read_text() != text
    with pytest.raises(InputError, match="--overwrite"):
        status(out, source, path)


def test_folders_of_frames(tmp_path: Path, source: NamedSource) -> None:
    out, folder = tmp_path / "out", tmp_path / "out" / "a_pose"
    folder.mkdir(parents=True)
    assert status(out, source, folder) == "new"
    journal = Journal(out)
    origin = journal.begin(source, [folder], "s")
    for number in range(3):
        (folder / f"{number}.npz").write_text("frame")
    journal.done(origin, [folder])
    assert status(out, source, folder) == "done"
    assert journal.wrote(folder / "1.npz")
    (folder / "1.npz").unlink()
    with pytest.raises(InputError, match="changed since"):
        status(out, source, folder)


def test_missing_and_empty_files_are_not_done(tmp_path: Path, source: NamedSource) -> None:
    journal = Journal(tmp_path)
    origin = journal.begin(source, [tmp_path / "a.json"], "s")
    with pytest.raises(InputError, match="no file or an empty one"):
        journal.done(origin, [tmp_path / "a.json"])
    (tmp_path / "a.json").touch()
    with pytest.raises(InputError, match="no file or an empty one"):
        journal.done(origin, [tmp_path / "a.json"])


def test_yolo_labels_may_be_empty(tmp_path: Path, source: NamedSource) -> None:
    journal, path = Journal(tmp_path), tmp_path / "a.txt"
    origin = journal.begin(source, [path], "s")
    with pytest.raises(InputError, match="no file or an empty one"):
        journal.done(origin, [path])
    path.touch()
    journal.done(origin, [path])
    assert status(tmp_path, source, path) == "done"


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\xff\n", b"{}\n", b"[]\n", b"7\n", b'{"version": 2}\n', b'{"version": 2, "eve', b"[" * 9999 + b"\n"],
)
def test_damaged_lines_are_skipped(garbage: bytes, tmp_path: Path, source: NamedSource) -> None:
    out, path = tmp_path / "out", tmp_path / "out" / "a.json"
    finish(out, source, path)
    journal = out / JOURNAL
    journal.write_bytes(garbage + journal.read_bytes() if garbage.endswith(b"\n") else journal.read_bytes() + garbage)
    assert status(out, source, path) == "done"
    finish(out, source, out / "b.json")
    assert status(out, source, out / "b.json") == "done"


def test_two_processes_share_a_journal(tmp_path: Path, source: NamedSource) -> None:
    one, two = Journal(tmp_path), Journal(tmp_path)
    (tmp_path / "a.json").write_text("result")
    one.done(one.begin(source, [tmp_path / "a.json"], "s"), [tmp_path / "a.json"])
    two.refresh()
    assert two.status(source, [tmp_path / "a.json"], "s") == "done"
