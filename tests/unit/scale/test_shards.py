"""Result shards: what is written, what counts as done, and which rows are outdated."""

from __future__ import annotations

import dataclasses
import os
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from vitruvian.errors import InputError
from vitruvian.scale.rows import Row, failure_row, rows_to_table
from vitruvian.scale.shards import ShardFormat, ShardIndex, remove_rows, write_shard
from vitruvian.scale.sources import SourceItem

KINDS = ("json", "png")
ITEMS = [SourceItem(f"photos/{name}.jpg", f"photos/{name}.jpg", 10, 20) for name in "abc"]


def write(folder: Path, items: list[SourceItem], *, form: ShardFormat = "parquet", number: int = 0) -> str:
    rows = [
        Row(
            source=item.name,
            source_size=item.size,
            source_mtime_ns=item.mtime_ns,
            status="done",
            height=4,
            width=6,
            files={"json": b"{}", "png": b"\x89PNG" + item.name.encode()},
        )
        for item in items
    ]
    rows.append(failure_row(SourceItem("bad.jpg", "bad.jpg", 1, 2), "bad.jpg: broken"))
    return write_shard(
        [rows_to_table(rows, KINDS)], str(folder), f"part-{number:06d}-0", settings="s", shard_format=form
    )


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_what_a_shard_holds_is_done(tmp_path: Path, form: ShardFormat) -> None:
    write(tmp_path, ITEMS[:2], form=form)
    index = ShardIndex.read(str(tmp_path), settings="s")
    assert len(index) == 3
    assert [index.lookup(item, retry_failed=False) for item in ITEMS] == [(True, []), (True, []), (False, [])]


def test_tar_members_have_the_bytes_of_files(tmp_path: Path) -> None:
    name = write(tmp_path, ITEMS[:1], form="tar")
    with tarfile.open(tmp_path / name) as archive:
        assert archive.getnames() == ["000000_a.json", "000000_a.png", "rows.jsonl"]
        assert archive.extractfile("000000_a.png").read() == b"\x89PNGphotos/a.jpg"  # type: ignore[union-attr]


def test_changed_sources_and_retried_failures_are_outdated(tmp_path: Path) -> None:
    name = write(tmp_path, ITEMS)
    index = ShardIndex.read(str(tmp_path), settings="s")
    changed = dataclasses.replace(ITEMS[0], mtime_ns=21)
    assert index.lookup(changed, retry_failed=False) == (False, [name])
    failed = SourceItem("bad.jpg", "bad.jpg", 1, 2)
    assert index.lookup(failed, retry_failed=False) == (True, [])
    assert index.lookup(failed, retry_failed=True) == (False, [name])


def test_a_row_that_exists_twice_is_outdated_once(tmp_path: Path) -> None:
    first, second = write(tmp_path, ITEMS[:1]), write(tmp_path, ITEMS[:1], number=1)
    done, outdated = ShardIndex.read(str(tmp_path), settings="s").lookup(ITEMS[0], retry_failed=False)
    assert done
    assert len(outdated) == 1
    assert outdated[0] in (first, second)


def test_a_result_counts_before_a_failure_of_the_same_source(tmp_path: Path) -> None:
    """A retry that was killed before it removed the failed row leaves both."""
    bad = SourceItem("bad.jpg", "bad.jpg", 1, 2)
    failed = write(tmp_path, [])
    done = write_shard(
        [rows_to_table([Row(source="bad.jpg", source_size=1, source_mtime_ns=2, status="done")], KINDS)],
        str(tmp_path), "part-000001-0", settings="s", shard_format="parquet",
    )  # fmt: skip
    assert ShardIndex.read(str(tmp_path), settings="s").lookup(bad, retry_failed=False) == (True, [failed])
    assert failed != done


def test_a_source_that_is_twice_in_a_shard_keeps_its_row(tmp_path: Path) -> None:
    write(tmp_path, [ITEMS[0], ITEMS[0]])
    assert ShardIndex.read(str(tmp_path), settings="s").lookup(ITEMS[0], retry_failed=False) == (True, [])


def test_removed_rows_are_gone_and_empty_shards_too(tmp_path: Path) -> None:
    name = write(tmp_path, ITEMS)
    remove_rows(str(tmp_path), name, {ITEMS[1].name, "bad.jpg"}, settings="s")
    assert pq.read_table(tmp_path / name).column("source").to_pylist() == [ITEMS[0].name, ITEMS[2].name]
    remove_rows(str(tmp_path), name, {ITEMS[0].name, ITEMS[2].name}, settings="s")
    assert not (tmp_path / name).exists()


def test_rows_of_names_that_are_no_utf8_are_removed(tmp_path: Path) -> None:
    items = [SourceItem(os.fsdecode(name), os.fsdecode(name), 10, 20) for name in (b"\xff.jpg", b"\xfe.jpg")]
    rows = [Row(source=item.name, source_size=10, source_mtime_ns=20, status="done") for item in items]
    name = write_shard(
        [rows_to_table(rows, [])], str(tmp_path), "part-0", settings="s", shard_format="parquet",
    )  # fmt: skip
    changed = dataclasses.replace(items[0], mtime_ns=21)
    assert ShardIndex.read(str(tmp_path), settings="s").lookup(changed, retry_failed=False) == (False, [name])
    remove_rows(str(tmp_path), name, {changed.name}, settings="s")
    assert pq.read_table(tmp_path / name).column("source").to_pylist() == ["\\udcfe.jpg"]


def test_shards_of_other_settings_are_refused(tmp_path: Path) -> None:
    write(tmp_path, ITEMS)
    with pytest.raises(InputError, match="other"):
        ShardIndex.read(str(tmp_path), settings="changed")


def test_a_damaged_shard_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "part-000000-0.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(InputError, match="expected a shard"):
        ShardIndex.read(str(tmp_path), settings="s")


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".part-000003-0.parquet.12345678.part"
    left.write_bytes(b"half")
    assert len(ShardIndex.read(str(tmp_path), settings="s")) == 0
    assert not left.exists()
