"""Listing and reading of sources: folders, globs, lists, Parquet files, tars, remote file systems."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vitruvian.errors import InputError
from vitruvian.limits import Limits, use_limits
from vitruvian.scale.rows import Row, rows_to_table
from vitruvian.scale.shards import ShardIndex, write_shard
from vitruvian.scale.sources import list_sources, needs_shards, read_sources


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "deep/er/c.png", ".hidden/d.png"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(len(name)))
    (tmp_path / "notes.md").write_text("no image")
    return tmp_path


def names(found: object, root: Path) -> list[str]:
    return sorted(os.path.relpath(item.name, root) for item in found)  # type: ignore[attr-defined]


def test_folder_lists_images_below_it_without_hidden_ones(folder: Path) -> None:
    items = list(list_sources([str(folder)]))
    assert names(items, folder) == ["a.png", "b.png", "deep/er/c.png"]
    assert all(item.size and item.mtime_ns for item in items)


def test_folder_without_those_inside_it(folder: Path) -> None:
    assert names(list_sources([str(folder)], recursive=False), folder) == ["a.png", "b.png"]


def test_files_that_vanish_while_a_folder_is_listed_are_left_out(folder: Path) -> None:
    items = list_sources([str(folder)], ordered=True)
    first = next(items)
    (folder / "b.png").unlink()
    assert names([first, *items], folder) == ["a.png", "deep/er/c.png"]


def test_glob_lists_matching_files(folder: Path) -> None:
    assert names(list_sources([f"{folder}/**/c.*"]), folder) == ["deep/er/c.png"]


def test_list_names_paths_relative_to_itself(folder: Path) -> None:
    (folder / "list.txt").write_text("# comment\na.png\n\ndeep/er/c.png\n")
    items = list(list_sources([str(folder / "list.txt")]))
    assert names(items, folder) == ["a.png", "deep/er/c.png"]
    assert read_sources(items) == [png(5), png(13)]


@pytest.mark.parametrize("as_struct", [False, True])
def test_parquet_with_bytes_reads_each_row(tmp_path: Path, as_struct: bool) -> None:
    values = [png(value) for value in range(5)]
    column = [{"bytes": value, "path": None} for value in values] if as_struct else values
    pq.write_table(pa.table({"id": range(5), "image": column}), tmp_path / "data.parquet", row_group_size=2)
    items = list(list_sources([str(tmp_path / "data.parquet")]))
    assert [item.name.rpartition("#")[2] for item in items] == list("01234")
    assert read_sources(items[::-1]) == values[::-1]


def test_parquet_with_paths_lists_them(folder: Path) -> None:
    pq.write_table(pa.table({"path": ["b.png", "a.png"]}), folder / "data.parquet")
    assert [Path(item.name).name for item in list_sources([str(folder / "data.parquet")])] == ["b.png", "a.png"]


def test_parquet_without_a_known_column_asks_for_its_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({"photo": [png(1)]}), tmp_path / "data.parquet")
    with pytest.raises(InputError, match="got photo"):
        list(list_sources([str(tmp_path / "data.parquet")]))
    assert read_sources(list(list_sources([str(tmp_path / "data.parquet")], column="photo"))) == [png(1)]


def test_tar_reads_members_by_position(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "shard.tar", "w") as archive:
        for name, content in {"0.png": png(7), "0.json": b"{}", "../1.png": png(9)}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    items = list(list_sources([str(tmp_path / "shard.tar")]))
    assert [item.name.rpartition("shard.tar/")[2] for item in items] == ["0.png", "../1.png"]
    assert read_sources(items) == [png(7), png(9)]


def test_remote_folder_and_glob(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    for name in ("x.png", "y/z.png", "y/readme.txt"):
        memory.pipe(f"/bucket-{tmp_path.name}/{name}", png(len(name)))
    root = f"memory://bucket-{tmp_path.name}"
    items = list(list_sources([root]))
    assert sorted(item.name.rpartition("/")[2] for item in items) == ["x.png", "z.png"]
    assert set(read_sources(items)) == {png(5), png(7)}  # type: ignore[type-var]


@pytest.mark.parametrize("text", ["missing.jpg", "*.nothing", "missing.parquet", "missing.tar", "unknown://bucket/x"])
def test_missing_sources_are_errors(tmp_path: Path, text: str) -> None:
    path = text if "://" in text else str(tmp_path / text)
    with pytest.raises(InputError):
        list(list_sources([path]))


def test_a_source_that_cannot_be_read_gives_its_error(folder: Path) -> None:
    items = list(list_sources([str(folder / "a.png"), str(folder / "b.png")]))
    (folder / "a.png").unlink()
    first, second = read_sources(items)
    assert isinstance(first, InputError)
    assert second == png(5)


def test_a_damaged_parquet_file_gives_errors_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pq.write_table(pa.table({"image": [png(1)]}), path)
    items = list(list_sources([str(path)]))
    path.write_bytes(b"PAR1 damaged")
    assert isinstance(read_sources(items)[0], InputError)


def test_limits_of_the_job_apply_where_images_are_read(folder: Path) -> None:
    (error,) = read_sources(list(list_sources([str(folder / "a.png")])), Limits(file_bytes=10))
    assert "file_bytes" in str(error)


def test_large_files_are_refused(folder: Path) -> None:
    with use_limits(file_bytes=10):
        (error,) = read_sources(list(list_sources([str(folder / "a.png")])))
    assert "file_bytes" in str(error)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("photos", False),
        ("photos/*.jpg", False),
        ("https://example.com/a.jpg", False),
        ("list.txt", True),
        ("data.parquet", True),
        ("shard-*.tar", True),
        ("s3://bucket/photos", True),
    ],
)
def test_sources_without_local_files_need_shards(source: str, expected: bool) -> None:
    assert needs_shards(source) == expected


def test_reading_does_not_import_torch() -> None:
    code = "import sys, vitruvian.scale.shards, vitruvian.scale.sources; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.png")
    path.write_bytes(png(1))
    (tmp_path / "list.txt").write_bytes(b"\xff.png\na\0b.png\n")
    items = list(list_sources([str(tmp_path / "list.txt")]))
    content, error = read_sources(items)
    assert content == png(1)
    assert isinstance(error, InputError)
    table = rows_to_table([Row(source=items[0].name, status="done")], [])
    write_shard([table], str(tmp_path / "out"), "part-0", settings="s", shard_format="parquet")
    assert ShardIndex.read(str(tmp_path / "out"), settings="s").lookup(items[0], retry_failed=False) == (True, [])


def test_lines_of_lists_are_limited(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a" * 200_000)
    with pytest.raises(InputError, match="more than 65536 characters"):
        list(list_sources([str(tmp_path / "list.txt")]))


def test_damaged_parquet_files_of_paths(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"path": ["a.png"] * 100}), tmp_path / "a.parquet", compression="NONE", use_dictionary=False
    )
    content = (tmp_path / "a.parquet").read_bytes().replace(b"a.png", b"\xff.png")
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match="expected a Parquet file"):
        list(list_sources([str(tmp_path / "a.parquet")]))
