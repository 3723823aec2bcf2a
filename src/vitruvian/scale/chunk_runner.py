"""Runs chunks of sources on a Ray cluster: read tasks → model actors → write tasks.

Ray schedules the three stages and moves their data. This module keeps a bounded number of chunks in flight, replaces
actors that die, and finds the source that ends them:

| what happens to a chunk | then |
|---|---|
| its worker process ends, first time | the chunk runs again |
| second time | its sources run again one by one |
| a source alone ends its worker | it gets a row with the status ``crashed``, and the job goes on |
| it is lost with a machine, also one that is shut down after the process | the chunk runs again; that is no crash |
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitruvian.cpu_threads import configure_openmp
from vitruvian.errors import InputError, VitruvianWarning
from vitruvian.scale.cluster import import_ray
from vitruvian.scale.placement import Placement, capacity
from vitruvian.scale.shards import ChunkCounts, shard_name

MAX_CRASHES = 3  # number of times that a source may end its worker process
_CHUNKS_PER_WORKER = 2  # one is processed while the next is read
_MAX_FAILED_STARTS = 20  # number of worker processes in a row that may end before their model is loaded
_MAX_LOST = 10  # number of times that a chunk may be lost with its machine


@dataclass
class _Chunk:
    """Sources that are processed together."""

    items: tuple[Any, ...]  # each has a `name`
    crashed_on: tuple[str, ...] = ()  # ids of the machines on which processes that held it ended
    lost: int = 0


class ChunkActor(ABC):
    """What runs in a worker process: a model that processes chunks."""

    @abstractmethod
    def load(self) -> None:
        """Load the model."""

    @abstractmethod
    def process(self, items: Sequence[Any], contents: Any) -> tuple[bool, Any]:
        """Return a small value to wait for, and the results, which stay in the object store."""


class _ActorProcess:
    """The class that Ray makes an actor of: it prepares its process, then imports and runs a `ChunkActor`.

    The order matters: `configure_openmp` must run before the import of torch.
    """

    def __init__(self, folder: str, pickled: bytes) -> None:
        self._folder, self._pickled = folder, pickled

    def start(self) -> str:
        """Load the model, and return the id of this machine."""
        _enter(self._folder)
        configure_openmp()
        ray = import_ray()
        actor, arguments = ray.cloudpickle.loads(self._pickled)
        self._actor: ChunkActor = actor(*arguments)
        self._actor.load()
        return str(ray.get_runtime_context().get_node_id())

    def process(self, items: Sequence[Any], contents: Any) -> tuple[bool, Any]:
        """Process a chunk."""
        return self._actor.process(items, contents)


@dataclass(eq=False)
class _Worker:
    """What the driver knows about a worker process.

    Attributes:
        handle: Handle of its actor.
        starting: Reference to the id of its machine, which is ready once the model is loaded; None from then on.
        node: Id of its machine.
        queue: The chunks that were sent to it, with references to `finished` and `results`. The first one is processed.
    """

    handle: Any
    starting: Any
    node: str = ""
    queue: deque[tuple[_Chunk, Any, Any]] = field(default_factory=deque)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """What runs on the cluster for each chunk. Everything is pickled by Ray.

    Attributes:
        actor: Class of the actors.
        arguments: Arguments of its constructor.
        read: Takes items and `read_arguments`, and returns the contents; None if actors read them.
        write: Takes `write_arguments`, a name for a shard and the results of one or more chunks; None if actors write
            them, and the results of a chunk are the `details` of its counts.
        write_arguments: Its first arguments.
        read_arguments: Further arguments of `read`.
        crashed: Returns the results for an item that ends its worker, with the message.
    """

    actor: type[ChunkActor]
    arguments: tuple[Any, ...]
    read: Callable[..., Any] | None
    write: Callable[..., ChunkCounts] | None
    crashed: Callable[[Any, str], Any]
    write_arguments: tuple[Any, ...] = ()
    read_arguments: tuple[Any, ...] = ()


class ChunkRunner:
    """Runs chunks in worker processes, each a Ray actor with a model.

    Args:
        stages: What runs on the cluster.
        first_shard: Number of the first shard.
        placement: Number of workers, and what Ray reserves for each.
        rows_per_shard: Rows of shards that are made of single items, after crashes.
    """

    def __init__(self, stages: Stages, *, first_shard: int, placement: Placement, rows_per_shard: int) -> None:
        ray = import_ray()
        self._ray, self._placement = ray, placement
        self._rows_per_shard, self._crashed = rows_per_shard, stages.crashed
        self._numbers = itertools.count(first_shard)
        # Reading and writing mostly wait. They reserve no cores: workers may have reserved all of them.
        task = functools.partial(ray.remote, num_cpus=0, scheduling_strategy="SPREAD")
        folder = os.getcwd()
        self._read = None if stages.read is None else task(max_retries=1)(_run_in(folder, stages.read))
        self._read_arguments = stages.read_arguments
        self._write = None if stages.write is None else task(max_retries=3)(_run_in(folder, stages.write))
        self._write_arguments = stages.write_arguments
        actor = ray.remote(num_cpus=placement.cpus, num_gpus=placement.gpus, max_restarts=0)(_ActorProcess)
        pickled = ray.cloudpickle.dumps((stages.actor, stages.arguments))
        self._start: Callable[[], Any] = lambda: actor.remote(folder, pickled)
        self._workers: list[_Worker] = []
        self._failed_starts = 0
        self._any_started = self._warned = False
        self._pending: deque[_Chunk] = deque()  # chunks that run next: again, or added by `add`
        self._single_results: list[tuple[_Chunk, Any]] = []  # results of items that run one by one
        self._writing: dict[Any, list[_Chunk]] = {}  # reference of a write task -> the chunks that it writes

    def add(self, items: Sequence[Any]) -> None:
        """Add a chunk while `run` yields counts: work that follows from what was done."""
        self._pending.append(_Chunk(tuple(items)))

    def run(self, chunks: Iterable[Sequence[Any]]) -> Iterator[ChunkCounts]:
        """Run all chunks, and yield the counts of each shard once it is written."""
        ray = self._ray
        source = (_Chunk(tuple(items)) for items in chunks)
        if (first := next(source, None)) is None:  # nothing to do: no model is loaded
            return
        self._pending.append(first)
        exhausted = False
        try:
            self._workers = [self._start_worker() for _ in range(self._placement.workers)]
            while True:
                while not exhausted and (worker := self._free_worker()) is not None:
                    chunk = self._pending.popleft() if self._pending else next(source, None)
                    if chunk is None:
                        exhausted = True
                    else:
                        self._send(worker, chunk)
                while self._pending and (worker := self._free_worker()) is not None:
                    self._send(worker, self._pending.popleft())
                working = any(worker.queue for worker in self._workers)
                if exhausted and not self._pending and not working:
                    if self._single_results:
                        self._write_singles()
                    elif not self._writing:
                        return
                waited = [worker.starting for worker in self._workers if worker.starting is not None]
                waited += [worker.queue[0][1] for worker in self._workers if worker.queue]
                waited += list(self._writing)
                ready, _ = ray.wait(waited, num_returns=1, timeout=5.0, fetch_local=False)
                for reference in ready:
                    yield from self._handle(reference)
                if not ready and all(worker.starting is not None for worker in self._workers):
                    self._check_machines()
        finally:
            for worker in self._workers:
                ray.kill(worker.handle)

    # ------------------------------------------------------------------------------------------------ workers

    def _start_worker(self) -> _Worker:
        handle = self._start()
        return _Worker(handle, handle.start.remote())

    def _check_machines(self) -> None:
        """Raise or warn if no machine is left that has room for a worker; Ray would wait for one silently.

        Ray lists a machine as alive for up to a minute after it was lost, so the placement may include it. Before any
        worker has started this is an error; later, machines may come back.
        """
        placement = self._placement
        if capacity(self._ray.nodes(), placement.cpus, placement.gpus):
            return
        text = (
            f"workers: expected a machine with {placement.cpus:g} cores and {placement.gpus:g} GPUs for each, got none "
            "since machines were lost."
        )
        if not self._any_started:
            raise InputError(f"{text} Run the job again.")
        if not self._warned:
            self._warned = True
            warnings.warn(f"{text} The job waits until one joins the cluster.", VitruvianWarning, stacklevel=2)

    def _free_worker(self) -> _Worker | None:
        """Return the worker that can take a chunk soonest; None if all are busy, or too much waits to be written."""
        if len(self._writing) >= 2 * self._placement.workers:
            return None
        free = [w for w in self._workers if w.starting is None and len(w.queue) < _CHUNKS_PER_WORKER]
        return min(free, key=lambda worker: len(worker.queue), default=None)

    def _send(self, worker: _Worker, chunk: _Chunk) -> None:
        contents = None if self._read is None else self._read.remote(chunk.items, *self._read_arguments)
        finished, results = worker.handle.process.options(num_returns=2).remote(chunk.items, contents)
        worker.queue.append((chunk, finished, results))

    # ------------------------------------------------------------------------------------------------ events

    def _handle(self, reference: Any) -> Iterator[ChunkCounts]:
        if reference in self._writing:
            yield from self._written(reference)
            return
        for worker in self._workers:
            if worker.starting == reference:
                self._started(worker)
                return
            if worker.queue and worker.queue[0][1] == reference:
                self._processed(worker)
                return

    def _started(self, worker: _Worker) -> None:
        exceptions = self._ray.exceptions
        try:
            worker.node, worker.starting = self._ray.get(worker.starting), None
            self._failed_starts, self._any_started, self._warned = 0, True, False
        except exceptions.RayTaskError as error:  # the model cannot be opened: no worker can
            raise _cause(error) from None
        except exceptions.RayActorError as error:  # its machine is gone, or it ran out of memory
            self._failed_starts += 1
            if self._failed_starts > _MAX_FAILED_STARTS:
                reason = " ".join(str(error).split())
                raise InputError(
                    f"workers: expected processes that start, got {self._failed_starts} in a row that ended before "
                    f"their model was loaded: {reason}"
                ) from None
            self._workers[self._workers.index(worker)] = self._start_worker()

    def _processed(self, worker: _Worker) -> None:
        """Take the result of the first chunk of a worker, or run the chunk again."""
        exceptions = self._ray.exceptions
        chunk, finished, results = worker.queue[0]
        try:
            self._ray.get(finished)
        except exceptions.RayActorError as error:
            self._replace(worker, lost=error.preempted or isinstance(error, exceptions.ActorUnavailableError))
            return
        except exceptions.RayError as error:
            cause = _cause(error)
            worker.queue.popleft()
            if isinstance(cause, exceptions.WorkerCrashedError | exceptions.OutOfMemoryError):  # while it was read
                self._crash(chunk, node="")
            elif isinstance(cause, exceptions.RayError) and not isinstance(cause, exceptions.RayTaskError):
                self._lose(chunk)
            else:
                raise cause from None
            return
        worker.queue.popleft()
        if len(chunk.crashed_on) >= MAX_CRASHES - 1 and len(chunk.items) == 1:
            self._single_results.append((chunk, results))
            if len(self._single_results) >= self._rows_per_shard:
                self._write_singles()
        else:
            self._write_results([(chunk, results)])

    def _replace(self, dead: _Worker, *, lost: bool) -> None:
        """Start another worker. The first chunk was being processed; those behind it did not run."""
        self._ray.kill(dead.handle)  # one that cannot be reached may still run
        self._workers[self._workers.index(dead)] = self._start_worker()
        (chunk, _, _), *waiting = dead.queue
        self._pending.extendleft(reversed([later for later, _, _ in waiting]))
        if lost or dead.node not in self._live_nodes():
            self._lose(chunk)
        else:
            self._crash(chunk, dead.node)

    def _crash(self, chunk: _Chunk, node: str) -> None:
        """Count a crash of the worker that held a chunk; crashes on machines that are gone since do not count."""
        live = self._live_nodes()
        chunk.crashed_on = (*(seen for seen in chunk.crashed_on if seen in live), node)
        crashes = len(chunk.crashed_on)
        if crashes >= MAX_CRASHES and len(chunk.items) == 1:
            message = f"{chunk.items[0].name}: ended its worker process {crashes} times. It was set aside."
            self._single_results.append((chunk, self._ray.put(self._crashed(chunk.items[0], message))))
        elif crashes >= MAX_CRASHES - 1:
            self._pending.extendleft(_Chunk((item,), chunk.crashed_on) for item in reversed(chunk.items))
        else:
            self._pending.appendleft(chunk)

    def _lose(self, chunk: _Chunk) -> None:
        """Run a chunk again that was lost with a machine."""
        chunk.lost += 1
        if chunk.lost > _MAX_LOST:
            raise InputError(
                f"{chunk.items[0].name}: expected a result, got the end of {chunk.lost} machines that processed it or "
                f"one of the {len(chunk.items) - 1} sources after it. Run the job again without them."
            )
        self._pending.append(chunk)

    def _live_nodes(self) -> set[str]:
        return {"", *(node["NodeID"] for node in self._ray.nodes() if node["Alive"])}  # "": of a task, unknown

    # ------------------------------------------------------------------------------------------------ writing

    def _write_singles(self) -> None:
        self._write_results(self._single_results)
        self._single_results = []

    def _write_results(self, results: Sequence[tuple[_Chunk, Any]]) -> None:
        if self._write is None:
            self._writing |= {reference: [chunk] for chunk, reference in results}
            return
        name = shard_name(next(self._numbers), results[0][0].items[0].name)
        reference = self._write.remote(*self._write_arguments, name, *(rows for _, rows in results))
        self._writing[reference] = [chunk for chunk, _ in results]

    def _written(self, reference: Any) -> Iterator[ChunkCounts]:
        exceptions = self._ray.exceptions
        chunks = self._writing.pop(reference)
        try:
            counts = self._ray.get(reference)
        except exceptions.RayError as error:
            cause = _cause(error)
            if not isinstance(cause, exceptions.RayError) or isinstance(cause, exceptions.RayTaskError):
                raise cause from None
            for chunk in chunks:  # the results are gone, or the process that wrote them
                self._lose(chunk)
        else:
            yield counts if self._write is not None else ChunkCounts("", 0, 0, 0, (), details=tuple(counts))


def _enter(folder: str) -> None:
    """Enter the folder of the driver, so that relative paths are those of the user; other machines may not have it.

    Worker processes of a cluster that was running before the job start in the folder where it was started.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)


def _run_in(folder: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs in the folder of the driver."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        _enter(folder)
        return function(*args)

    return run


def _cause(error: Any) -> BaseException:
    """Return the exception that a task raised."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error
