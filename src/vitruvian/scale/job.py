"""A job on a cluster: what is not done yet is divided into chunks, processed, and written as shards."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitruvian.errors import InputError
from vitruvian.filesystem.locks import OutputLock
from vitruvian.filesystem.output_paths import PathPattern
from vitruvian.hub import BUILTIN
from vitruvian.limits import get_limits
from vitruvian.pipelines.digests import settings_digest
from vitruvian.pipelines.options import PeopleOptions
from vitruvian.scale.chunk_runner import ChunkActor, ChunkRunner, Stages
from vitruvian.scale.cluster import connect_to_ray, import_ray
from vitruvian.scale.filesystems import is_remote, open_filesystem
from vitruvian.scale.placement import choose_placement
from vitruvian.scale.rows import crashed_table
from vitruvian.scale.shards import ShardFormat, ShardIndex, remove_rows, shard_names, write_counted
from vitruvian.scale.sources import SourceItem, list_sources, read_sources
from vitruvian.scale.worker import Encoder, FileEncoder, PipelineSpec, PipelineWorker, RunnerSpec, default_formats
from vitruvian.tasks import find_task

if TYPE_CHECKING:
    import pyarrow as pa

# Number of sources that are processed and written together: it grows from the first to the second.
DEFAULT_CHUNK, MAX_CHUNK = 64, 1024
_MAX_FAILURES = 100  # number of messages in a summary
_ROWS_FOLDER = ".vitruvian.rows"  # folder of shards that record which sources are done, if each source has a file


@dataclass
class JobSummary:
    """What a job has done.

    Attributes:
        done: Sources with a result of this run.
        failed: Sources without one.
        crashed: Sources that ended their worker process again and again.
        skipped: Sources that were done before.
        shards: Shards that were written.
        seconds: Time that it took.
        failures: The first messages of failed sources.
    """

    done: int = 0
    failed: int = 0
    crashed: int = 0
    skipped: int = 0
    shards: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def run_on_ray(
    spec: PipelineSpec | RunnerSpec,
    sources: Sequence[str] | Iterable[SourceItem],
    out: str | Path,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
    formats: Sequence[str] | None = None,
    shard_format: ShardFormat = "parquet",
    column: str | None = None,
    recursive: bool = True,
    chunk_size: int | None = None,
    overwrite: bool = False,
    retry_failed: bool = False,
    encode: Encoder | None = None,
    settings: str | None = None,
    runtime_env: dict[str, Any] | None = None,
    progress: Callable[[JobSummary], None] | None = None,
) -> JobSummary:
    """Run a task on many sources with a Ray cluster, and write shards of results. A second call resumes.

    Args:
        spec: The task, its model and its options; other classes need `formats` and `settings` too.
        sources: Folders, globs, lists, Parquet files and tars, see `vitruvian.scale.sources`; or the items themselves.
        out: Folder or URI for the shards; or a pattern with ``{stem}`` in it, such as ``"out/{stem}.json"``, for a file
            of each source, as the option `save` of pipelines takes it.
        address: Address of a cluster, such as ``ray://host:10001``; by default the cluster of this process, or a new
            local one.
        workers: Number of worker processes with a model; by default one for each GPU of the cluster, or for each core
            if it has none.
        cpus_per_worker: Cores for each worker; by default 1 with a GPU, and otherwise what there is, divided.
        gpus_per_worker: GPUs for each worker, possibly a fraction; by default 1 if the cluster has any.
        formats: File formats, each a column of the shards; by default JSON and what the task writes.
        shard_format: ``"parquet"`` or ``"tar"`` (WebDataset).
        column: Column of Parquet sources.
        recursive: Whether to list the folders inside folders too.
        chunk_size: Sources in a chunk and rows in a shard. By default it grows from 64 to 1024.
        overwrite: Whether to remove the shards that are there first.
        retry_failed: Whether to process sources again that failed before.
        encode: Encodes a result as files; by default as `Result.save` does.
        settings: Digest of everything that results depend on; by default made from `spec`.
        runtime_env: Environment of worker processes, as `ray.init` takes it.
        progress: Called after each shard.

    Raises:
        InputError: A source does not exist, or the folder holds results of other settings.
    """
    ray = import_ray()
    start = time.monotonic()
    out = str(out)
    paths = PathPattern(out) if "{" in out else None
    if isinstance(spec, PipelineSpec):
        formats = () if paths is not None else formats or default_formats(spec.task)
        settings = settings or _spec_digest(spec, paths.pattern if paths is not None else formats)
    if formats is None or settings is None:
        raise InputError("formats, settings: expected both for a spec of another class than PipelineSpec, got none.")
    if paths is not None:
        if is_remote(out):
            raise InputError(f"out: expected a folder for shards on a remote file system, got the pattern {out}.")
        out = str(paths.folder / _ROWS_FOLDER)
    formats = tuple(formats)
    summary = JobSummary()
    with _locked(out), connect_to_ray(ray, address, runtime_env):
        items = _items(sources, column=column, recursive=recursive, ordered=paths is not None)
        if paths is not None:
            items = _with_outputs(items, paths)
        first = next(items, None)  # a source that does not exist is an error before anything is removed
        items = itertools.chain([] if first is None else [first], items)
        if overwrite:
            _remove_shards(out)
        index = ShardIndex.read(out, settings=settings)
        placement = choose_placement(ray.nodes(), workers, cpus_per_worker, gpus_per_worker)
        runner = ChunkRunner(
            _shard_stages(
                spec, encode or FileEncoder(formats), formats, out=out, settings=settings, shard_format=shard_format
            ),
            first_shard=_next_number(index.names),
            placement=placement,
            rows_per_shard=chunk_size or DEFAULT_CHUNK,
        )
        outdated: defaultdict[str, set[str]] = defaultdict(set)
        remaining = remaining_sources(items, index, summary, outdated, retry_failed=retry_failed)
        for counts in runner.run(divide_into_chunks(remaining, chunk_size, placement.workers)):
            summary.done += counts.done
            summary.failed += counts.failed
            summary.crashed += counts.crashed
            summary.shards += 1
            summary.failures += counts.errors[: _MAX_FAILURES - len(summary.failures)]
            summary.seconds = time.monotonic() - start
            if progress is not None:
                progress(summary)
        for name, names in outdated.items():  # their new rows are written by now
            remove_rows(out, name, names, settings=settings)
    summary.seconds = time.monotonic() - start
    return summary


def _shard_stages(
    spec: RunnerSpec, encode: Encoder, formats: Sequence[str], *, out: str, settings: str, shard_format: ShardFormat
) -> Stages:
    """Return what runs on the cluster for shards: bytes are read, a pipeline makes rows, and shards are written."""
    return Stages(
        actor=_ShardActor,
        arguments=(spec, encode, tuple(formats)),
        read=read_sources,
        read_arguments=(get_limits(),),
        write=write_counted,
        write_arguments=(out, settings, shard_format),
        crashed=functools.partial(crashed_table, tuple(formats)),
    )


class _ShardActor(ChunkActor):
    """Processes chunks with a pipeline."""

    def __init__(self, spec: RunnerSpec, encode: Encoder, formats: Sequence[str]) -> None:
        self._arguments = spec, encode, formats

    def load(self) -> None:
        """Open the pipeline."""
        self._worker = PipelineWorker(*self._arguments)

    def process(self, items: Sequence[SourceItem], contents: Any) -> tuple[bool, pa.Table]:
        """Return the rows as a table."""
        return True, self._worker.process_table(items, contents)


def _items(sources: Sequence[str] | Iterable[SourceItem], **listing: Any) -> Iterator[SourceItem]:
    """Yield the items that paths name, and items unchanged."""
    for source in sources:
        if isinstance(source, SourceItem):
            yield source
        else:
            yield from list_sources([source], **listing)


def _with_outputs(items: Iterable[SourceItem], paths: PathPattern) -> Iterator[SourceItem]:
    """Choose the file of each source. Equal names get numbers, in the order of the sources."""
    for index, item in enumerate(items):
        yield dataclasses.replace(item, output=str(paths.path(item.name, index, 0).absolute()))


def _spec_digest(spec: PipelineSpec, files: Sequence[str] | str) -> str:
    detects = issubclass(find_task(spec.task).options_class(), PeopleOptions)
    return settings_digest(
        spec.task,
        spec.model,
        revision=str(spec.options.get("revision") or "") or None,
        detector=str(spec.options.get("detect") or BUILTIN) if detects else None,
        options=spec.options,
        details=[spec.dtype, files],
    )


def remaining_sources(
    items: Iterable[SourceItem],
    index: ShardIndex,
    summary: JobSummary,
    outdated: defaultdict[str, set[str]],
    *,
    retry_failed: bool,
) -> Iterator[SourceItem]:
    """Yield the sources without a current row, and collect their outdated rows by shard."""
    for item in items:
        if not len(index):
            yield item
            continue
        done, shards = index.lookup(item, retry_failed=retry_failed)
        for name in shards:
            if not name.endswith(".parquet"):
                raise InputError(
                    f"{item.name}: expected a source that is unchanged since its result was written into {name}. "
                    "Choose another --out, or add --overwrite: rows of tar shards cannot be replaced."
                )
            outdated[name].add(item.name)
        if done:
            summary.skipped += 1
        else:
            yield item


def divide_into_chunks(items: Iterator[SourceItem], size: int | None, workers: int) -> Iterator[tuple[SourceItem, ...]]:
    """Divide sources into chunks. Chunks grow, so that all workers start early and few files are written."""
    current = size or DEFAULT_CHUNK
    for number in itertools.count(1):
        chunk = tuple(itertools.islice(items, current))
        if not chunk:
            return
        yield chunk
        if size is None and number % (4 * workers) == 0:
            current = min(2 * current, MAX_CHUNK)


def _next_number(names: Sequence[str]) -> int:
    return 1 + max((int(name.split("-")[1]) for name in names), default=-1)


def _remove_shards(out: str) -> None:
    filesystem, folder = open_filesystem(out)
    for name in shard_names(filesystem, folder):
        filesystem.delete_file(f"{folder}/{name}")


@contextlib.contextmanager
def _locked(out: str) -> Iterator[None]:
    """Lock a local output folder: two jobs on one folder would do the same work. Remote folders are not locked."""
    if is_remote(out):
        yield
        return
    folder = Path(out).expanduser()
    lock = OutputLock(folder, {"shards": folder})
    try:
        yield
    finally:
        lock.release()
