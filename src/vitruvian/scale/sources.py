"""What a job on a cluster reads: a stream of `SourceItem`, each small, and their bytes.

    folder            every image below it
    *.jpg, a/**/*.png glob patterns
    list.txt          a path or URL in each line; paths are relative to the list
    data.parquet      a column of bytes (`bytes`, `image`, …) or of paths (`path`, `file_name`, …)
    shard-0001.tar    the images in a tar file, as in WebDataset

Listing streams: memory does not grow with the number of sources, only with the largest remote folder or tar file.
Processes that only read do not import torch, which takes seconds and 300 MB.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import glob
import io
import os
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from vitruvian.errors import InputError, VitruvianError, one_line
from vitruvian.filesystem.media_files import IMAGE_SUFFIXES, is_url, source_kind, walk_files
from vitruvian.limits import Limits, get_limits, use_limits
from vitruvian.scale.filesystems import import_pyarrow, is_remote, join_path, open_filesystem, open_input

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

BYTES_COLUMNS = ("bytes", "image", "jpg", "png", "webp", "image_bytes")
PATH_COLUMNS = ("path", "file_name", "filepath", "image_path", "uri")
_LIST_SUFFIXES = frozenset({".txt", ".lst"})
_MAX_LINE = 1 << 16  # characters of a line in a list


@dataclass(frozen=True, slots=True)
class SourceItem:
    """One image that is not read yet.

    Attributes:
        name: Path as the user gave it, with the member or row behind it (``shard.tar/0001.jpg``, ``data.parquet#17``).
        path: File that holds it: the image, or the tar or Parquet file.
        size: Bytes of the image, if known.
        mtime_ns: Modification time of the file, if known.
        offset: Where it begins in a tar file.
        column: Column of a Parquet file.
        row_group: Row group of a Parquet file.
        row: Row in the row group.
        output: File for its result, if each source has one.
    """

    name: str
    path: str
    size: int | None = None
    mtime_ns: int | None = None
    offset: int | None = None
    column: str | None = None
    row_group: int = 0
    row: int = 0
    output: str | None = None


# ------------------------------------------------------------------------------------------------ listing


def list_sources(
    sources: Sequence[str], *, column: str | None = None, recursive: bool = True, ordered: bool = False
) -> Iterator[SourceItem]:
    """Yield every image that the sources name, in their order.

    Args:
        sources: Paths and URIs of folders, images, globs, lists (.txt), Parquet files and tars.
        column: Column of Parquet files; by default the first of the usual names.
        recursive: Whether to list the folders inside folders too.
        ordered: Whether the files of local folders and globs are sorted by name, which needs memory for their names.

    Raises:
        InputError: A source does not exist or holds no images.
    """
    for text in sources:
        found = False
        for item in _list_one(text, column, recursive=recursive, ordered=ordered):
            found = True
            yield item
        if not found:
            raise InputError(f"{text}: expected images, got none. Check the path.")


def _list_one(text: str, column: str | None, *, recursive: bool = True, ordered: bool = False) -> Iterator[SourceItem]:
    suffix, kind = PurePosixPath(text).suffix.lower(), source_kind(text)
    if kind == "url":
        yield _address_item(text)
    elif kind == "glob":
        yield from _list_glob(text, column, ordered=ordered)
    elif suffix in _LIST_SUFFIXES:
        yield from _list_lines(text)
    elif suffix == ".parquet":
        yield from _list_parquet(text, column)
    elif suffix == ".tar":
        yield from _list_tar(text)
    elif kind == "folder":
        for entry in walk_files(os.path.expanduser(text), recursive=recursive, ordered=ordered):
            if _is_image(entry.name):
                try:
                    stat = entry.stat()
                except FileNotFoundError:  # removed since the folder was read
                    continue
                yield SourceItem(entry.path, entry.path, stat.st_size, stat.st_mtime_ns)
    elif is_remote(text):
        yield from _list_remote(text, recursive=recursive)
    else:
        yield _file_item(os.path.expanduser(text))


def _address_item(text: str) -> SourceItem:
    """Return the item of a path, or of a URL, whose credentials and query are not part of its name."""
    if not is_url(text):
        return SourceItem(text, text)
    from vitruvian.images.download import redacted_url

    return SourceItem(redacted_url(text), text)


def _file_item(path: str) -> SourceItem:
    try:
        stat = os.stat(path)
    except OSError as error:
        raise InputError(f"{path}: expected a file, got {error.strerror}. Check the path.") from error
    return SourceItem(path, path, stat.st_size, stat.st_mtime_ns)


def _list_glob(pattern: str, column: str | None, *, ordered: bool) -> Iterator[SourceItem]:
    if not is_remote(pattern):
        paths = glob.iglob(os.path.expanduser(pattern), recursive=True)
        for path in sorted(paths) if ordered else paths:
            if os.path.isfile(path):
                yield from _list_one(path, column) if _is_container(path) else iter([_file_item(path)])
        return
    base = pattern[: min(pattern.find(char) for char in "*?[" if char in pattern)].rpartition("/")[0]
    for item in _list_remote(base, every=True):
        if fnmatch.fnmatchcase(item.path, pattern):
            yield from _list_one(item.path, column) if _is_container(item.path) else iter([item])


def needs_shards(text: str) -> bool:
    """Return whether a source names images that have no file of their own, or that are on a remote file system."""
    suffix = PurePosixPath(text).suffix.lower()
    return suffix in _LIST_SUFFIXES or _is_container(text) or (is_remote(text) and not is_url(text))


def _is_container(path: str) -> bool:
    return PurePosixPath(path).suffix.lower() in {".parquet", ".tar"}


def _is_image(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES and not PurePosixPath(name).name.startswith(".")


def _list_remote(text: str, *, every: bool = False, recursive: bool = True) -> Iterator[SourceItem]:
    """Walk a remote folder, one level at a time."""
    from pyarrow.fs import FileSelector, FileType

    filesystem, inner = open_filesystem(text)
    scheme = text.partition("://")[0]
    info: FileInfo = filesystem.get_file_info(inner)
    if info.type == FileType.File:
        yield SourceItem(text, text, info.size, info.mtime_ns)
        return
    pending = [inner]
    while pending:
        for entry in sorted(filesystem.get_file_info(FileSelector(pending.pop())), key=lambda entry: entry.path):
            if entry.type == FileType.Directory:
                pending += [entry.path] if recursive else []
            elif every or _is_image(entry.path):
                uri = f"{scheme}://{entry.path}"
                yield SourceItem(uri, uri, entry.size, entry.mtime_ns)


def _list_lines(text: str) -> Iterator[SourceItem]:
    """Read a list line by line. Files are not examined here: a list may have millions of lines."""
    folder = text.rpartition("/")[0]
    with open_input(text) as stream:
        lines = io.TextIOWrapper(io.BufferedReader(stream), encoding="utf-8", errors="surrogateescape")
        while line := lines.readline(_MAX_LINE + 1):
            path = line.strip()
            if len(path) > _MAX_LINE:
                raise InputError(f"{text}: expected a path in each line, got one of more than {_MAX_LINE} characters.")
            if path and not path.startswith("#"):
                yield _address_item(_below(folder, path))


def _below(folder: str, path: str) -> str:
    """Return a path that is relative to a folder, unless it is absolute or has a scheme."""
    return path if is_remote(path) or path.startswith("/") or not folder else join_path(folder, path)


def _list_parquet(text: str, column: str | None) -> Iterator[SourceItem]:
    """Yield the rows of a Parquet file: from its columns of paths, or as rows to read later."""
    pa = import_pyarrow()
    try:
        yield from _parquet_items(text, column)
    except (OSError, ValueError, pa.ArrowException) as error:
        if isinstance(error, VitruvianError):
            raise
        raise InputError(f"{text}: expected a Parquet file, got {one_line(error)}.") from error


def choose_column(names: Sequence[str], column: str | None, *, subject: str) -> str:
    """Return the column with the images or paths: `column`, or by default the first of the usual names."""
    chosen = column or next((name for name in (*BYTES_COLUMNS, *PATH_COLUMNS) if name in names), None)
    if chosen is None or chosen not in names:
        raise InputError(f"{subject}: expected a column of images or paths, got {', '.join(names)}. Pass its name.")
    return chosen


def _parquet_items(text: str, column: str | None) -> Iterator[SourceItem]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(open_input(text)) as file:
        names = file.schema_arrow.names
        chosen = choose_column(names, column, subject=text)
        column_type = file.schema_arrow.field(chosen).type
        if pa.types.is_string(column_type) or pa.types.is_large_string(column_type):
            folder = text.rpartition("/")[0]
            for batch in file.iter_batches(columns=[chosen]):
                for path in filter(None, batch.column(0).to_pylist()):
                    yield _address_item(_below(folder, path))
            return
        number = 0
        for group in range(file.num_row_groups):
            for row in range(file.metadata.row_group(group).num_rows):
                yield SourceItem(f"{text}#{number}", text, column=chosen, row_group=group, row=row)
                number += 1


def _list_tar(text: str) -> Iterator[SourceItem]:
    """Yield the images in a tar file by position. Names are only names: nothing is extracted."""
    try:
        with open_input(text) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                if member.isreg() and _is_image(member.name):
                    yield SourceItem(f"{text}/{member.name}", text, member.size, offset=member.offset_data)
    except (OSError, tarfile.TarError) as error:
        raise InputError(f"{text}: expected a tar file, got {error}.") from error


# ------------------------------------------------------------------------------------------------ reading


def read_sources(items: Sequence[SourceItem], limits: Limits | None = None) -> list[bytes | VitruvianError]:
    """Read the bytes of images within limits; an image that cannot be read gives its error."""
    with use_limits(**({} if limits is None else dataclasses.asdict(limits))):
        return _read_all(items)


def _read_all(items: Sequence[SourceItem]) -> list[bytes | VitruvianError]:
    contents: list[bytes | VitruvianError] = []
    rows = _read_rows([item for item in items if item.column is not None])
    for item in items:
        try:
            contents.append(rows[item.name] if item.column is not None else _read_one(item))
        except VitruvianError as error:
            contents.append(error)
        except (OSError, KeyError, ValueError) as error:
            contents.append(InputError(f"{item.name}: expected a readable image, got {error}."))
    return contents


def _read_one(item: SourceItem) -> bytes:
    if is_url(item.path):
        from vitruvian.images.download import download

        return download(item.path, timeout=30.0)
    with open_input(item.path) as file:
        size = item.size if item.offset is not None and item.size is not None else file.size()
        get_limits().check("file_bytes", size, subject=item.name)
        file.seek(item.offset or 0)
        return bytes(file.read(size))


def _read_rows(items: Sequence[SourceItem]) -> dict[str, bytes]:
    """Read rows of Parquet files by name, each row group once; rows that cannot be read are missing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    groups: dict[tuple[str, int, str], list[SourceItem]] = defaultdict(list)
    for item in items:
        groups[item.path, item.row_group, str(item.column)].append(item)
    rows: dict[str, bytes] = {}
    for (path, group, column), members in groups.items():
        with contextlib.suppress(OSError, ValueError, IndexError, pa.ArrowException):  # its rows are missing below
            with open_input(path) as file:
                values = pq.ParquetFile(file).read_row_group(group, columns=[column]).column(0)
            for item in members:
                value = values[item.row].as_py()
                if isinstance(value, dict):  # {"bytes": …, "path": …}, as Hugging Face datasets store images
                    value = value.get("bytes")
                if isinstance(value, bytes):
                    rows[item.name] = value
    return rows
