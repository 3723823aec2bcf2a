"""Runs chunks of sources on a Ray cluster: read tasks → model actors → write tasks.

Ray schedules the three stages and moves their data. This module keeps a bounded number of chunks in flight, replaces
actors that die, and finds the source that ends them:

| what happens to a chunk | then |
|---|---|
| its worker process ends, first time | the chunk runs again |
| second time | its sources run again one by one |
| a source alone ends its worker | it gets a row with the status ``crashed``, and the job goes on |
| its results are lost with a machine | the chunk runs again |
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitruvian.errors import MissingExtraError, VitruvianError
from vitruvian.scale.rows import failure_row, rows_to_table
from vitruvian.scale.shards import ShardFormat, shard_name, write_shard
from vitruvian.scale.sources import SourceItem, read_sources
from vitruvian.scale.worker import Encoder, PipelineSpec, PipelineWorker

if TYPE_CHECKING:
    import pyarrow as pa

MAX_CRASHES = 3  # of the worker that holds a source, before the source is set aside
_CHUNKS_PER_ACTOR = 2  # one is processed while the next is read
_MAX_FAILED_STARTS = 20  # of worker processes that end before their model is loaded
_MAX_LOST = 3  # times that the results of a chunk may be lost with a machine


def import_ray() -> Any:
    """Import Ray, or raise `MissingExtraError`."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "scale", "jobs on a cluster") from error
    return ray


@dataclass
class _Chunk:
    """Sources that are processed together."""

    items: tuple[SourceItem, ...]
    crashes: int = 0
    lost: int = 0


@dataclass(frozen=True)
class ChunkCounts:
    """The outcome of a shard: how many rows have which status, and the first errors."""

    name: str
    done: int
    failed: int
    crashed: int
    errors: tuple[str, ...]


@dataclass(eq=False)
class _Actor:
    """A model actor, and the chunks that were sent to it, the one that it processes first."""

    handle: Any
    starting: Any  # reference that is ready once the model is loaded
    queue: deque[tuple[_Chunk, Any, Any]] = field(default_factory=deque)  # (chunk, finished, table)


class ChunkRunner:
    """Runs chunks and yields what was written.

    Args:
        spec: The pipeline of each worker.
        encode: Encodes results as files.
        kinds: Kinds of files in rows.
        out: Folder or URI of the shards.
        settings: Digest of the settings, stored in the shards.
        form: Format of the shards.
        first_shard: Number of the first shard.
        workers: Number of model actors.
        cpus_per_worker: Cores that Ray reserves for each.
        gpus_per_worker: GPUs that Ray reserves for each; may be a fraction.
        rows_per_shard: Rows of shards that are made of single sources, after crashes.
        runtime_env: Environment of the worker processes, as `ray.init` takes it.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        encode: Encoder,
        kinds: Sequence[str],
        *,
        out: str,
        settings: str,
        form: ShardFormat,
        first_shard: int,
        workers: int,
        cpus_per_worker: float,
        gpus_per_worker: float,
        rows_per_shard: int,
        runtime_env: dict[str, Any] | None = None,
    ) -> None:
        ray = import_ray()
        self._ray, self._kinds, self._workers = ray, tuple(kinds), workers
        self._out, self._settings, self._form, self._rows_per_shard = out, settings, form, rows_per_shard
        self._numbers = itertools.count(first_shard)
        env = {} if runtime_env is None else {"runtime_env": runtime_env}
        # Reading and writing mostly wait. They reserve no cores: workers may have reserved all of them.
        self._read = ray.remote(num_cpus=0, max_retries=3, scheduling_strategy="SPREAD", **env)(read_sources)
        self._write = ray.remote(num_cpus=0, max_retries=3, scheduling_strategy="SPREAD", **env)(_write_counted)
        actor = ray.remote(num_cpus=cpus_per_worker, num_gpus=gpus_per_worker, max_restarts=0, **env)(_ModelActor)
        self._start: Callable[[], Any] = lambda: actor.remote(spec, encode, self._kinds)
        self._actors: list[_Actor] = []
        self._failed_starts = 0
        self._pending: deque[_Chunk] = deque()  # to run again
        self._single_tables: list[tuple[_Chunk, Any]] = []  # of sources that run one by one
        self._writing: dict[Any, list[_Chunk]] = {}

    def run(self, chunks: Iterable[Sequence[SourceItem]]) -> Iterator[ChunkCounts]:
        """Run all chunks, and yield the counts of each shard once it is written."""
        ray = self._ray
        source = (_Chunk(tuple(items)) for items in chunks)
        if (first := next(source, None)) is None:  # nothing to do: no model is loaded
            return
        self._pending.append(first)
        exhausted = False
        try:
            self._actors = [self._start_actor() for _ in range(self._workers)]
            while True:
                while not exhausted and (actor := self._free_actor()) is not None:
                    chunk = self._pending.popleft() if self._pending else next(source, None)
                    if chunk is None:
                        exhausted = True
                    else:
                        self._send(actor, chunk)
                while self._pending and (actor := self._free_actor()) is not None:
                    self._send(actor, self._pending.popleft())
                working = any(actor.queue for actor in self._actors)
                if exhausted and not self._pending and not working:
                    if self._single_tables:
                        self._write_singles()
                    elif not self._writing:
                        return
                waited = [actor.starting for actor in self._actors if actor.starting is not None]
                waited += [actor.queue[0][1] for actor in self._actors if actor.queue]
                waited += list(self._writing)
                ready, _ = ray.wait(waited, num_returns=1, timeout=5.0, fetch_local=False)
                for reference in ready:
                    yield from self._handle(reference)
        finally:
            for actor in self._actors:
                ray.kill(actor.handle)

    # ------------------------------------------------------------------------------------------------ actors

    def _start_actor(self) -> _Actor:
        handle = self._start()
        return _Actor(handle, handle.ready.remote())

    def _free_actor(self) -> _Actor | None:
        """Return the actor that can take a chunk soonest; None if all are busy, or too much waits to be written."""
        if len(self._writing) >= 2 * self._workers:
            return None
        free = [one for one in self._actors if one.starting is None and len(one.queue) < _CHUNKS_PER_ACTOR]
        return min(free, key=lambda one: len(one.queue), default=None)

    def _send(self, actor: _Actor, chunk: _Chunk) -> None:
        contents = self._read.remote(chunk.items)
        finished, table = actor.handle.process.options(num_returns=2).remote(chunk.items, contents)
        actor.queue.append((chunk, finished, table))

    # ------------------------------------------------------------------------------------------------ events

    def _handle(self, reference: Any) -> Iterator[ChunkCounts]:
        if reference in self._writing:
            yield from self._written(reference)
            return
        for actor in self._actors:
            if actor.starting == reference:
                self._started(actor)
                return
            if actor.queue and actor.queue[0][1] == reference:
                self._processed(actor)
                return

    def _started(self, actor: _Actor) -> None:
        try:
            self._ray.get(actor.starting)
        except self._ray.exceptions.RayTaskError as error:  # the model cannot be opened: no worker can
            raise _cause(error) from None
        except self._ray.exceptions.RayActorError:  # its machine is gone, or it ran out of memory
            self._failed_starts += 1
            if self._failed_starts > _MAX_FAILED_STARTS:
                raise
            self._actors[self._actors.index(actor)] = self._start_actor()
            return
        actor.starting = None

    def _processed(self, actor: _Actor) -> None:
        """Take the result of the first chunk of an actor, or replace the actor if it died."""
        exceptions = self._ray.exceptions
        chunk, finished, table = actor.queue[0]
        try:
            self._ray.get(finished)
        except exceptions.RayActorError:
            self._replace(actor)
            return
        except (exceptions.ObjectLostError, exceptions.WorkerCrashedError, exceptions.NodeDiedError):
            actor.queue.popleft()
            self._again(chunk)
            return
        except exceptions.RayTaskError as error:
            raise _cause(error) from None
        actor.queue.popleft()
        if chunk.crashes >= MAX_CRASHES - 1 and len(chunk.items) == 1:
            self._single_tables.append((chunk, table))
            if len(self._single_tables) >= self._rows_per_shard:
                self._write_singles()
        else:
            self._write_tables([(chunk, table)])

    def _replace(self, dead: _Actor) -> None:
        """Start another actor. The chunk that was processed counts a crash; those behind it did not run."""
        self._actors[self._actors.index(dead)] = self._start_actor()
        (chunk, _, _), *waiting = dead.queue
        self._pending.extendleft(reversed([one for one, _, _ in waiting]))
        chunk.crashes += 1
        if chunk.crashes >= MAX_CRASHES and len(chunk.items) == 1:
            text = f"{chunk.items[0].name}: ended its worker process {chunk.crashes} times. It was set aside."
            row = failure_row(chunk.items[0], text, status="crashed")
            self._single_tables.append((chunk, self._ray.put(rows_to_table([row], self._kinds))))
        elif chunk.crashes == MAX_CRASHES - 1:
            self._pending.extendleft(_Chunk((item,), chunk.crashes) for item in reversed(chunk.items))
        else:
            self._pending.appendleft(chunk)

    def _again(self, chunk: _Chunk) -> None:
        chunk.lost += 1
        if chunk.lost > _MAX_LOST:
            raise RuntimeError(f"{chunk.items[0].name}: its results were lost {chunk.lost} times.")
        self._pending.append(chunk)

    # ------------------------------------------------------------------------------------------------ writing

    def _write_singles(self) -> None:
        self._write_tables(self._single_tables)
        self._single_tables = []

    def _write_tables(self, tables: Sequence[tuple[_Chunk, Any]]) -> None:
        name = shard_name(next(self._numbers), tables[0][0].items[0].name)
        reference = self._write.remote(self._out, name, self._settings, self._form, *(table for _, table in tables))
        self._writing[reference] = [chunk for chunk, _ in tables]

    def _written(self, reference: Any) -> Iterator[ChunkCounts]:
        exceptions = self._ray.exceptions
        chunks = self._writing.pop(reference)
        try:
            yield self._ray.get(reference)
        except exceptions.RayTaskError as error:
            if isinstance(cause := _cause(error), VitruvianError):
                raise cause from None
            for chunk in chunks:  # an input of the write task is gone
                self._again(chunk)
        except (exceptions.ObjectLostError, exceptions.WorkerCrashedError, exceptions.NodeDiedError):
            for chunk in chunks:
                self._again(chunk)


class _ModelActor:
    """The actor that holds a pipeline."""

    def __init__(self, spec: PipelineSpec, encode: Encoder, kinds: Sequence[str]) -> None:
        self._arguments = spec, encode, kinds

    def ready(self) -> None:
        """Load the model; its errors are those of this call."""
        self._worker = PipelineWorker(*self._arguments)

    def process(self, items: Sequence[SourceItem], contents: Any) -> tuple[bool, pa.Table]:
        """Return a small value to wait for, and the rows, which stay in the object store."""
        return True, self._worker.process_table(items, contents)


def _write_counted(out: str, name: str, settings: str, form: ShardFormat, *tables: pa.Table) -> ChunkCounts:
    """Write a shard and count its rows."""
    file_name = write_shard(tables, out, name, settings=settings, form=form)
    statuses = [status for table in tables for status in table.column("status").to_pylist()]
    errors = [error for table in tables for error in table.column("error").to_pylist() if error is not None]
    return ChunkCounts(
        file_name, statuses.count("done"), statuses.count("failed"), statuses.count("crashed"), tuple(errors[:20])
    )


def _cause(error: Any) -> BaseException:
    """Return the exception that a task raised."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
