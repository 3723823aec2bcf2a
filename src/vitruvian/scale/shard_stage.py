"""The last stage of a job: writes the rows of chunks as a shard. Its processes do not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitruvian.scale.chunk_runner import ChunkCounts
from vitruvian.scale.rows import failure_row, rows_to_table
from vitruvian.scale.shards import ShardFormat, write_shard
from vitruvian.scale.sources import SourceItem

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ERRORS = 20  # number of errors of a shard that are reported


def write_counted(out: str, settings: str, shard_format: ShardFormat, name: str, *tables: pa.Table) -> ChunkCounts:
    """Write a shard and count its rows."""
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


def crashed_table(formats: Sequence[str], item: SourceItem, message: str) -> pa.Table:
    """Return the row of a source that ends its worker."""
    return rows_to_table([failure_row(item, message, status="crashed")], formats)
