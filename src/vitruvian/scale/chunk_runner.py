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
from vitruvian.errors import InputError, MissingExtraError, VitruvianWarning
from vitruvian.scale.placement import Placement, capacity
from vitruvian.scale.shards import shard_name

MAX_CRASHES = 3  # of the worker that holds a source, before the source is set aside
_CHUNKS_PER_ACTOR = 2  # one is processed while the next is read
_MAX_FAILED_STARTS = 20  # of worker processes in a row that end before their model is loaded
_MAX_LOST = 10  # times that a chunk may be lost with a machine


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

    items: tuple[Any, ...]  # each has a `name`
    crashed_on: tuple[str, ...] = ()  # ids of the machines on which processes that held it ended
    lost: int = 0


@dataclass(frozen=True)
class ChunkCounts:
    """What was written: how many sources have which status, the first errors, and what else the writer tells."""

    name: str
    done: int
    failed: int
    crashed: int
    errors: tuple[str, ...]
    details: tuple[Any, ...] = ()


class ChunkActor(ABC):
    """What runs in a worker process: a model that processes chunks."""

    @abstractmethod
    def load(self) -> None:
        """Load the model."""

    @abstractmethod
    def process(self, items: Sequence[Any], contents: Any) -> tuple[bool, Any]:
        """Return a small value to wait for, and the results, which stay in the object store."""


class _Worker:
    """The actor of Ray: it prepares its process before it imports the classes of the other, and torch with them."""

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
class _Actor:
    """A worker, and the chunks that were sent to it, the one that it processes first."""

    handle: Any
    starting: Any  # reference to the id of its machine, which is ready once the model is loaded
    node: str = ""  # id of its machine
    queue: deque[tuple[_Chunk, Any, Any]] = field(default_factory=deque)  # (chunk, finished, results)


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
    """Runs chunks and yields what was written.

    Args:
        stages: What runs on the cluster.
        first_shard: Number of the first shard.
        placement: Number of model actors, and what Ray reserves for each.
        rows_per_shard: Rows of shards that are made of single items, after crashes.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        first_shard: int,
        placement: Placement,
        rows_per_shard: int,
    ) -> None:
        ray = import_ray()
        self._ray, self._placement, self._workers = ray, placement, placement.workers
        self._rows_per_shard, self._crashed = rows_per_shard, stages.crashed
        self._numbers = itertools.count(first_shard)
        # Reading and writing mostly wait. They reserve no cores: workers may have reserved all of them.
        task = functools.partial(ray.remote, num_cpus=0, scheduling_strategy="SPREAD")
        folder = os.getcwd()
        self._read = None if stages.read is None else task(max_retries=1)(_run_in(folder, stages.read))
        self._read_arguments = stages.read_arguments
        self._write = None if stages.write is None else task(max_retries=3)(_run_in(folder, stages.write))
        self._write_arguments = stages.write_arguments
        actor = ray.remote(num_cpus=placement.cpus, num_gpus=placement.gpus, max_restarts=0)(_Worker)
        pickled = ray.cloudpickle.dumps((stages.actor, stages.arguments))
        self._start: Callable[[], Any] = lambda: actor.remote(folder, pickled)
        self._actors: list[_Actor] = []
        self._failed_starts = 0
        self._any_started = self._warned = False
        self._pending: deque[_Chunk] = deque()  # to run again
        self._single_results: list[tuple[_Chunk, Any]] = []  # of items that run one by one
        self._writing: dict[Any, list[_Chunk]] = {}

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
                    if self._single_results:
                        self._write_singles()
                    elif not self._writing:
                        return
                waited = [actor.starting for actor in self._actors if actor.starting is not None]
                waited += [actor.queue[0][1] for actor in self._actors if actor.queue]
                waited += list(self._writing)
                ready, _ = ray.wait(waited, num_returns=1, timeout=5.0, fetch_local=False)
                for reference in ready:
                    yield from self._handle(reference)
                if not ready and all(actor.starting is not None for actor in self._actors):
                    self._check_machines()
        finally:
            for actor in self._actors:
                ray.kill(actor.handle)

    # ------------------------------------------------------------------------------------------------ actors

    def _start_actor(self) -> _Actor:
        handle = self._start()
        return _Actor(handle, handle.start.remote())

    def _check_machines(self) -> None:
        """Say so where no machine is left that a worker fits: Ray waits for one without a word.

        Ray lists a machine as alive for up to a minute after it was lost, so a job may count on it. Before any worker
        has started that is an error; later, machines may come back.
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

    def _free_actor(self) -> _Actor | None:
        """Return the actor that can take a chunk soonest; None if all are busy, or too much waits to be written."""
        if len(self._writing) >= 2 * self._workers:
            return None
        free = [one for one in self._actors if one.starting is None and len(one.queue) < _CHUNKS_PER_ACTOR]
        return min(free, key=lambda one: len(one.queue), default=None)

    def _send(self, actor: _Actor, chunk: _Chunk) -> None:
        contents = None if self._read is None else self._read.remote(chunk.items, *self._read_arguments)
        finished, results = actor.handle.process.options(num_returns=2).remote(chunk.items, contents)
        actor.queue.append((chunk, finished, results))

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
        exceptions = self._ray.exceptions
        try:
            actor.node, actor.starting = self._ray.get(actor.starting), None
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
            self._actors[self._actors.index(actor)] = self._start_actor()

    def _processed(self, actor: _Actor) -> None:
        """Take the result of the first chunk of an actor, or run the chunk again."""
        exceptions = self._ray.exceptions
        chunk, finished, results = actor.queue[0]
        try:
            self._ray.get(finished)
        except exceptions.RayActorError as error:
            self._replace(actor, lost=error.preempted or isinstance(error, exceptions.ActorUnavailableError))
            return
        except exceptions.RayError as error:
            cause = _cause(error)
            actor.queue.popleft()
            if isinstance(cause, exceptions.WorkerCrashedError | exceptions.OutOfMemoryError):  # while it was read
                self._crash(chunk, node="")
            elif isinstance(cause, exceptions.RayError) and not isinstance(cause, exceptions.RayTaskError):
                self._lose(chunk)
            else:
                raise cause from None
            return
        actor.queue.popleft()
        if len(chunk.crashed_on) >= MAX_CRASHES - 1 and len(chunk.items) == 1:
            self._single_results.append((chunk, results))
            if len(self._single_results) >= self._rows_per_shard:
                self._write_singles()
        else:
            self._write_results([(chunk, results)])

    def _replace(self, dead: _Actor, *, lost: bool) -> None:
        """Start another actor. The first chunk was being processed; those behind it did not run."""
        self._ray.kill(dead.handle)  # one that cannot be reached may still run
        self._actors[self._actors.index(dead)] = self._start_actor()
        (chunk, _, _), *waiting = dead.queue
        self._pending.extendleft(reversed([one for one, _, _ in waiting]))
        if lost or dead.node not in self._live_nodes():
            self._lose(chunk)
        else:
            self._crash(chunk, dead.node)

    def _crash(self, chunk: _Chunk, node: str) -> None:
        """Count a crash of the worker that held a chunk; crashes on machines that are gone since do not count."""
        live = self._live_nodes()
        chunk.crashed_on = (*(one for one in chunk.crashed_on if one in live), node)
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
            self._writing |= {one: [chunk] for chunk, one in results}
            return
        name = shard_name(next(self._numbers), results[0][0].items[0].name)
        reference = self._write.remote(*self._write_arguments, name, *(one for _, one in results))
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
