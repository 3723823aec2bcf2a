"""The rows of a job: one for each source, with its status and a column for each file format.

| column | content |
|---|---|
| `source` | path or URI, followed by the member of a tar or the row of a Parquet file |
| `source_size`, `source_mtime_ns` | size and modification time of the source, if known |
| `status` | ``done``, ``failed``, or ``crashed``: the source ended its worker three times |
| `error` | why there is no result |
| `height`, `width` | size of the image |
| ``json`` | the result as JSON text, masks as COCO RLE |
| ``png``, ``npz`` … | the bytes of the file that the command writes on one machine |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from vitruvian.errors import escape_surrogates
from vitruvian.scale.filesystems import import_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa

    from vitruvian.scale.sources import SourceItem

Status = Literal["done", "failed", "crashed"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The row of one source; `files` holds bytes by file format."""

    source: str
    status: Status
    source_size: int | None = None
    source_mtime_ns: int | None = None
    error: str | None = None
    height: int | None = None
    width: int | None = None
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)


def failure_row(item: SourceItem, error: str, *, status: Status = "failed") -> Row:
    """Return the row of a source without a result."""
    return Row(source=item.name, source_size=item.size, source_mtime_ns=item.mtime_ns, status=status, error=error)


def crashed_table(formats: Sequence[str], item: SourceItem, message: str) -> pa.Table:
    """Return the row of a source that ends its worker."""
    return rows_to_table([failure_row(item, message, status="crashed")], formats)


def row_schema(formats: Sequence[str]) -> pa.Schema:
    """Return the columns of rows with these file formats."""
    pa = import_pyarrow()
    fields = {
        "source": pa.string(),
        "source_size": pa.int64(),
        "source_mtime_ns": pa.int64(),
        "status": pa.string(),
        "error": pa.string(),
        "height": pa.int32(),
        "width": pa.int32(),
    }
    return pa.schema(
        {**fields, **{name: pa.large_string() if name == "json" else pa.large_binary() for name in formats}}
    )


def rows_to_columns(rows: Sequence[Row], formats: Sequence[str]) -> dict[str, list[object]]:
    """Return rows as columns, in the order of `row_schema`."""
    names = ("source_size", "source_mtime_ns", "status", "error", "height", "width")
    columns: dict[str, list[object]] = {"source": [escape_surrogates(row.source) for row in rows]}
    columns |= {name: [getattr(row, name) for row in rows] for name in names}
    columns["error"] = [None if row.error is None else escape_surrogates(row.error) for row in rows]
    for file_format in formats:
        contents = [row.files.get(file_format) for row in rows]
        is_text = file_format == "json"
        columns[file_format] = [data.decode() if is_text and data is not None else data for data in contents]
    return columns


def rows_to_table(rows: Sequence[Row], formats: Sequence[str]) -> pa.Table:
    """Return rows as an Arrow table."""
    return import_pyarrow().table(rows_to_columns(rows, formats), schema=row_schema(formats))
