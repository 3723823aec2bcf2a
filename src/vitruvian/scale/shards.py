"""Result shards: Parquet or tar files with the rows of many sources, and the index of what they hold.

A shard appears under its name only when it is complete: it is renamed on disks, and object stores publish complete
objects. It contains a digest of the settings that it was made with. So the shards are the journal of a job: a source is
done if a shard has its row. A shard is written by one worker and never appended to.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitruvian.errors import InputError, escape_surrogates, one_line
from vitruvian.filesystem.output_paths import safe_name
from vitruvian.scale.filesystems import import_pyarrow, join_path, open_filesystem
from vitruvian.scale.sources import SourceItem
from vitruvian.tasks import PLOTS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

ShardFormat = Literal["parquet", "tar"]
_SETTINGS_KEY = b"vitruvian.settings"
_TAR_RECORDS = "rows.jsonl"  # last member of a tar shard: the rows without their files
_PREFIX = "part-"
_TEMPORARY = ".part"
_INDEX_COLUMNS = ("source", "source_size", "source_mtime_ns", "status")
_ROW_COLUMNS = (*_INDEX_COLUMNS, "error", "height", "width")
_MAX_ERRORS = 20  # number of errors of a shard that are reported


def _source_key(name: str) -> int:
    """Return 64 bits that identify a source, by the name that its row has: bytes that are not UTF-8 are escaped."""
    return int.from_bytes(hashlib.blake2b(escape_surrogates(name).encode(), digest_size=8).digest(), "little")


def _version_key(name: str, size: int | None, mtime_ns: int | None) -> int:
    """Return 64 bits that identify a source and its content, as far as size and time tell."""
    return _source_key(f"{name}\0{size}\0{mtime_ns}")


# ------------------------------------------------------------------------------------------------ writing


@dataclass(frozen=True)
class ChunkCounts:
    """What was written: how many sources have which status, the first errors, and what else the writer tells."""

    name: str
    done: int
    failed: int
    crashed: int
    errors: tuple[str, ...]
    details: tuple[Any, ...] = ()


def write_counted(out: str, settings: str, shard_format: ShardFormat, name: str, *tables: pa.Table) -> ChunkCounts:
    """Write a shard and count its rows: the last stage of a job, in processes that do not import torch."""
    file_name = write_shard(tables, out, name, settings=settings, shard_format=shard_format)
    statuses = [status for table in tables for status in table.column("status").to_pylist()]
    errors = [error for table in tables for error in table.column("error").to_pylist() if error is not None]
    return ChunkCounts(
        file_name,
        statuses.count("done"),
        statuses.count("failed"),
        statuses.count("crashed"),
        tuple(errors[:_MAX_ERRORS]),
    )


def write_shard(tables: Sequence[pa.Table], out: str, name: str, *, settings: str, shard_format: ShardFormat) -> str:
    """Write the rows of tables as one shard, atomically, and return its file name."""
    pa = import_pyarrow()
    table = pa.concat_tables(tables)
    filesystem, folder = open_filesystem(out)
    filesystem.create_dir(folder, recursive=True)
    file_name = f"{name}.{shard_format}"
    temporary = join_path(folder, f".{file_name}.{uuid.uuid4().hex[:8]}{_TEMPORARY}")
    try:
        if shard_format == "parquet":
            _write_parquet(table, filesystem, temporary, settings)
        else:
            _write_tar(table, filesystem, temporary, settings)
        if filesystem.type_name == "local":
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        filesystem.move(temporary, join_path(folder, file_name))
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{out}/{file_name}: expected a shard to be written, got {error}. Is the disk full?"
        ) from error
    return file_name


def _write_parquet(table: pa.Table, filesystem: FileSystem, path: str, settings: str) -> None:
    import pyarrow.parquet as pq

    table = table.replace_schema_metadata({_SETTINGS_KEY: settings.encode()})
    with filesystem.open_output_stream(path) as stream:
        pq.write_table(table, stream, compression="zstd", compression_level=1, row_group_size=1024)


def _write_tar(table: pa.Table, filesystem: FileSystem, path: str, settings: str) -> None:
    """Write `KEY.KIND` members for each row, as WebDataset reads them, and all rows without files at the end."""
    formats = [name for name in table.schema.names if name not in _ROW_COLUMNS]
    records = [{"settings": settings}]
    with filesystem.open_output_stream(path) as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        for number, row in enumerate(table.to_pylist()):
            key = f"{number:06d}_{safe_name(PurePosixPath(row['source']).stem).replace('.', '_')[:80]}"
            for file_format in formats:
                if row[file_format] is not None:
                    _add_member(archive, f"{key}.{PLOTS.get(file_format, file_format).lstrip('_')}", row[file_format])
            records.append({name: row[name] for name in _ROW_COLUMNS} | {"key": key})
        _add_member(archive, _TAR_RECORDS, "".join(json.dumps(record) + "\n" for record in records))


def _add_member(archive: tarfile.TarFile, name: str, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    member = tarfile.TarInfo(name)  # without times and owners: the same rows give the same bytes
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


# ------------------------------------------------------------------------------------------------ what is done


@dataclass
class ShardIndex:
    """Which sources have a row in the shards of a folder: about 20 bytes a source.

    Attributes:
        names: File names of the shards.
        sources: Sorted keys of sources, uint64 [N].
        versions: Keys of source and content, uint64 [N].
        shards: Number of the shard, int32 [N].
        failed: Whether the row has no result, bool [N].
    """

    names: list[str] = field(default_factory=list)
    sources: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    versions: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    shards: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    failed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))

    @classmethod
    def read(cls, out: str, *, settings: str) -> ShardIndex:
        """Read the index of a folder, which need not exist.

        Raises:
            InputError: A shard was made with other settings, or is not one of this library.
        """
        names: list[str] = []
        parts: list[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int32], NDArray[np.bool_]]] = []
        filesystem, folder = open_filesystem(out)
        for name in shard_names(filesystem, folder):
            found, rows = _read_index_rows(filesystem, join_path(folder, name))
            if found != settings:
                raise InputError(
                    f"{out}/{name}: expected results of the same settings, got those of others. "
                    "Choose another --out, or add --overwrite."
                )
            keys = [
                (_source_key(source), _version_key(source, size, mtime), status != "done")
                for source, size, mtime, status in rows
            ]
            parts.append(
                (
                    np.array([key[0] for key in keys], np.uint64),
                    np.array([key[1] for key in keys], np.uint64),
                    np.full(len(keys), len(names), np.int32),
                    np.array([key[2] for key in keys], bool),
                )
            )
            names.append(name)
        if not parts:
            return cls(names)
        sources, versions, shards, failed = (np.concatenate(column) for column in zip(*parts, strict=True))
        parts.clear()
        order = np.argsort(sources, kind="stable")
        return cls(names, sources[order], versions[order], shards[order], failed[order])

    def __len__(self) -> int:
        return len(self.sources)

    def lookup(self, item: SourceItem, *, retry_failed: bool) -> tuple[bool, list[str]]:
        """Return whether a source is done, and the shards with outdated rows of it."""
        key, current = np.uint64(_source_key(item.name)), _version_key(item.name, item.size, item.mtime_ns)
        begin, end = (int(np.searchsorted(self.sources, key, side=side)) for side in ("left", "right"))
        usable: list[int] = []
        outdated: list[int] = []
        for index in range(begin, end):
            same = int(self.versions[index]) == current and not (retry_failed and self.failed[index])
            (usable if same else outdated).append(index)
        # Of several rows the newest with a result counts; a job that was killed may have left others.
        usable.sort(key=lambda index: (self.failed[index], -self.shards[index]))
        remaining = {int(self.shards[index]) for index in usable[:1]}
        shards = {int(self.shards[index]) for index in (*usable[1:], *outdated)}
        return bool(usable), [self.names[shard] for shard in sorted(shards - remaining)]


def shard_names(filesystem: FileSystem, folder: str) -> list[str]:
    """List the shards of a folder, and remove what killed writers left."""
    from pyarrow.fs import FileSelector

    names = []
    for info in filesystem.get_file_info(FileSelector(folder, allow_not_found=True)):
        if info.base_name.startswith(f".{_PREFIX}") and info.base_name.endswith(_TEMPORARY):
            filesystem.delete_file(info.path)
        elif info.base_name.startswith(_PREFIX) and info.extension in ("parquet", "tar"):
            names.append(info.base_name)
    return sorted(names)


def _read_index_rows(
    filesystem: FileSystem, path: str
) -> tuple[str | None, Iterator[tuple[str, int | None, int | None, str]]]:
    """Return the settings of a shard, and (source, size, time, status) of its rows."""
    pa = import_pyarrow()
    import pyarrow.parquet as pq

    try:
        with filesystem.open_input_file(path) as file:
            if path.endswith(".tar"):
                with tarfile.open(fileobj=file, mode="r:") as archive:
                    member = archive.extractfile(_TAR_RECORDS)
                    lines = [] if member is None else member.read().splitlines()
                first, *records = [json.loads(line) for line in lines]
                settings, columns = first["settings"], [[record[name] for record in records] for name in _INDEX_COLUMNS]
            else:
                parquet = pq.ParquetFile(file)
                settings = (parquet.schema_arrow.metadata or {}).get(_SETTINGS_KEY, b"").decode()
                table = parquet.read(columns=list(_INDEX_COLUMNS))
                columns = [table.column(name).to_pylist() for name in _INDEX_COLUMNS]
        if not all(isinstance(source, str) for source in columns[0]):
            raise TypeError("a source that is no text")
    except (OSError, LookupError, ValueError, TypeError, RecursionError, tarfile.TarError, pa.ArrowException) as error:
        raise InputError(
            f"{path}: expected a shard of results, got {one_line(error)}. Choose another --out."
        ) from error
    return settings, zip(*columns, strict=True)


def remove_rows(out: str, name: str, sources: set[str], *, settings: str) -> None:
    """Rewrite a Parquet shard without the rows of some sources; a shard without rows is removed."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    pa = import_pyarrow()
    filesystem, folder = open_filesystem(out)
    with filesystem.open_input_file(join_path(folder, name)) as file:
        table = pq.ParquetFile(file).read()
    removed = pa.array(sorted(escape_surrogates(source) for source in sources))  # as `rows_to_columns` writes them
    remaining = table.filter(pc.invert(pc.is_in(table.column("source"), value_set=removed)))
    if remaining.num_rows:
        write_shard([remaining], out, name.rpartition(".")[0], settings=settings, shard_format="parquet")
    else:
        filesystem.delete_file(join_path(folder, name))


def shard_name(number: int, first: str) -> str:
    """Return the name of a shard: its number in the run, and a hash that tells runs apart."""
    return f"{_PREFIX}{number:06d}-{_source_key(first) & 0xFFFFFFFF:08x}"
