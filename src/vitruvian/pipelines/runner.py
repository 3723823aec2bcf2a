"""The engine under every pipeline: reading, preparing, the model, finishing and saving, all at the same time.

    tickets ─ read ─▶ frames ─ look ─▶ people ─ prepare ─▶ units ─ forward ─▶ outputs ─ decode, finish ─▶ results
              threads          caller           threads            caller               threads

The model runs in the thread that asks for results; the rest is done by background threads. On a GPU the caller never
waits for the device: pictures are sent and prepared beside the model, batches are asked for ahead, and they are decoded
on the device, so that only results are copied back: by the caller where that is one call more, by a thread that waits
for batches otherwise. Units of several pictures share a batch. Results come in the order of the source, and only so
many pictures are on their way at any time, however long the source is: the caller's pace sets the pace of everything.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeVar

import torch

from vitruvian.pipelines.job import Failure, Job, Prepared, Unit
from vitruvian.pipelines.memory import (
    BatchSize,
    Lane,
    Moment,
    OnHost,
    is_out_of_memory,
    read_here,
    release_memory,
    to_host,
    with_less_memory,
)
from vitruvian.pipelines.sources import BadFrame, Frame, Source, Ticket, VideoInfo

__all__ = ["Errors", "Failure", "Job", "Prepared", "Results", "Unit", "run_many", "run_one"]

ResultT = TypeVar("ResultT")
Errors = Literal["keep", "raise"]

FINISHING = 4  # pictures that may always be finished ahead of the caller
FINISHED_BYTES = 1 << 30  # more may be, while their results stay below this
PIXEL_BYTES = 16  # of a result for each pixel of its picture: four floating-point maps
PATIENCE = 0.5  # seconds to wait for further pictures before a batch runs as it is
POLL = 0.2  # seconds between looks at the keyboard while waiting
MOST_WORKERS = 8  # background threads that feed a GPU, where nobody says how many
GOODBYE = 5.0  # seconds that a source which is stuck in reading is waited for at the end


class Results(Generic[ResultT]):
    """Results one after another, as they are asked for. Close it, or use it in ``with``, to stop early.

    Attributes:
        count: How many pictures there are, where that is known.
        video: What the video says of itself, where the source is one.
    """

    def __init__(self, results: Iterator[ResultT | Failure], *, count: int | None, video: VideoInfo | None) -> None:
        self._results = results
        self.count, self.video = count, video

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResultT | Failure:
        return next(self._results)

    def close(self) -> None:
        """Stop: what is being written is finished, what waits is dropped, and all threads end."""
        close = getattr(self._results, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_one(job: Job[ResultT], ticket: Ticket, batch: BatchSize) -> ResultT:
    """Take one picture through all steps in this thread, and raise what goes wrong."""
    frame = ticket.frame(0)
    if isinstance(frame, BadFrame):
        raise frame.error
    with torch.inference_mode():
        prepared = job.prepare(frame, job.look(frame) if job.looks else None)
        outputs = forward_units(job, prepared.units, batch)
        return job.finish(prepared, to_host(job.decode(prepared, outputs)).wait())


def run_many(
    job: Job[ResultT],
    source: Source,
    *,
    batch: BatchSize,
    workers: int | None = None,
    errors: Errors = "keep",
    save: Callable[[ResultT], Any] | None = None,
    patience: float = PATIENCE,
) -> Iterator[ResultT | Failure]:
    """Take the pictures of a source through all steps, in order; see `TaskPipeline.__call__` for the arguments.

    Nothing is started before the first result is asked for. Whichever way it ends (the last picture, an error, Ctrl-C,
    `close`), the threads end too.
    """
    count = workers or usual_workers(job.device)
    with Line(job, source, batch=batch, workers=count, save=save, patience=patience) as line:
        while (item := line.next_done()) is not None:
            found = item.outcome()
            if isinstance(found, Failure) and errors == "raise":
                raise found.error
            yield found


@dataclass(eq=False)
class Item:
    """A picture's place in the line, and how far it is."""

    index: int
    name: str
    frame: int | None = None
    bytes: int = 0
    preparing: Future[Prepared] | None = None
    prepared: Prepared | None = None
    outputs: list[Any] = field(default_factory=list)
    finishing: Future[Any] | None = None
    failure: Failure | None = None

    def fail(self, error: Exception) -> None:
        """Give up on this picture."""
        self.failure = Failure(name=self.name, error=error, index=self.index, frame=self.frame)
        self.preparing = self.prepared = self.finishing = None
        self.outputs = []

    @property
    def through(self) -> bool:
        """Whether the model has nothing more to do for it."""
        ready = self.prepared is not None and len(self.outputs) == len(self.prepared.units)
        return ready or self.finishing is not None or self.failure is not None

    @property
    def done(self) -> bool:
        """Whether there is a result or a failure."""
        return self.failure is not None or (self.finishing is not None and self.finishing.done())

    def outcome(self) -> Any:
        """The result, or the failure."""
        if self.finishing is not None:
            try:
                return self.finishing.result()
            except Exception as error:  # noqa: BLE001 - belongs to this picture
                self.fail(error)
        return self.failure


class Line(Generic[ResultT]):
    """The pictures on their way, oldest first, and the threads that work on them."""

    def __init__(
        self,
        job: Job[ResultT],
        source: Source,
        *,
        batch: BatchSize,
        workers: int,
        save: Callable[[ResultT], Any] | None,
        patience: float,
    ) -> None:
        self.job, self.source, self.batch, self.save, self.patience = job, source, batch, save, patience
        self.backlog = max(FINISHING, batch.size)  # pictures that the model is ahead of the caller before it rests
        self.most = most_on_the_way(batch.size, workers)
        self.slots = threading.Semaphore(self.most)
        self.loaded: queue.SimpleQueue[Future[tuple[Frame | BadFrame, Any]] | BaseException | None]
        self.loaded = queue.SimpleQueue()
        self.bell = threading.Event()  # rung whenever a thread has something for the caller
        self.stopped = threading.Event()
        self.ended = False
        self.broken: Exception | None = None
        self.items: deque[Item] = deque()
        self.reading: deque[Future[tuple[Frame | BadFrame, Any]]] = deque()
        self.waiting: deque[tuple[Item, Unit]] = deque()  # units that the model has not seen
        self.news, self.taken = time.monotonic(), 0
        self.started = batch.size if job.steady else 1
        self.pool = ThreadPoolExecutor(workers, thread_name_prefix="vitruvian")
        self.finishers = self.pool
        self.device_pool: ThreadPoolExecutor | None = None  # one thread, which waits for the device and decodes there
        if job.lane is not None:
            # A device that is fast leaves much to read: what it has done must not stand in line behind that.
            self.finishers = ThreadPoolExecutor(workers, thread_name_prefix="vitruvian-finish")
        if job.lane is not None and not job.decodes_behind:
            self.device_pool = ThreadPoolExecutor(1, thread_name_prefix="vitruvian-device")
            self.down = Lane(job.device)
        self.feeder = threading.Thread(target=self.feed, name="vitruvian-source", daemon=True)

    def __enter__(self) -> Self:
        self.feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.slots.release()  # the feeder may be waiting for one
        for pool in (self.device_pool, self.finishers, self.pool):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        self.feeder.join(GOODBYE)
        for held in (self.items, self.waiting, self.reading):
            held.clear()

    # ------------------------------------------------------------------------------------------- in the background

    def feed(self) -> None:
        """Take tickets from the source and have them read, as long as there is room in the line."""
        tickets = self.source.tickets()
        try:
            for index, ticket in enumerate(tickets):
                self.slots.acquire()
                if self.stopped.is_set():
                    return
                self.loaded.put(self.submit(self.pool, self.load, ticket, index))
            self.loaded.put(None)
        except BaseException as error:  # noqa: BLE001 - the source's own; the caller's thread raises it
            self.loaded.put(error)
        finally:
            self.bell.set()
            with contextlib.suppress(Exception):
                getattr(tickets, "close", lambda: None)()

    def submit(self, pool: ThreadPoolExecutor, function: Callable[..., Any], *values: Any) -> Future[Any]:
        """Have something done by a background thread, which rings the bell after."""
        future = pool.submit(function, *values)
        future.add_done_callback(lambda _: self.bell.set())
        return future

    def load(self, ticket: Ticket, index: int) -> tuple[Frame | BadFrame, Any]:
        """Read a picture, and prepare it too where nobody has to look at it first."""
        frame = ticket.frame(index)
        if isinstance(frame, BadFrame) or self.job.looks:
            return frame, None
        try:
            return frame, self.prepare(frame, None)
        except Exception as error:  # noqa: BLE001 - belongs to this picture
            return frame, error

    @torch.inference_mode()
    def prepare(self, frame: Frame, seen: Any) -> Prepared:
        """Make the model's inputs."""
        return self.job.prepare(frame, seen)

    @torch.inference_mode()
    def complete(self, prepared: Prepared, decoded: Any) -> ResultT:
        """Finish and save one picture; `decoded` is on its way from the device, or the outputs to decode here."""
        values = decoded if isinstance(decoded, OnHost) else self.decode(prepared, decoded)
        result = self.job.finish(prepared, values.wait())
        if self.save is not None:
            self.save(result)
        return result

    # ------------------------------------------------------------------------------------------- in the caller's thread

    def next_done(self) -> Item | None:
        """Return the oldest picture once it is done, or None at the end of the source."""
        while True:
            self.bell.clear()
            self.take_in()
            self.line_up()
            self.hand_over()
            if self.waiting and self.should_run():
                self.run_batch()
                continue
            if self.items and self.items[0].done:
                self.slots.release()
                return self.items.popleft()
            if self.ended and not self.items and not self.reading:
                return None
            self.bell.wait(POLL)

    def take_in(self) -> None:
        """Put pictures that were read at the end of the line, and let the task look at them."""
        with contextlib.suppress(queue.Empty):
            while True:
                entry = self.loaded.get_nowait()
                if isinstance(entry, Future):
                    self.reading.append(entry)
                    continue
                self.ended = True
                if isinstance(entry, Exception):
                    self.broken = entry
                elif entry is not None:
                    raise entry
        # Looking may take as long as the model itself: no further ahead than the next batch.
        while self.reading and self.reading[0].done() and self.unseen() <= self.batch.size:
            self.add(*self.reading.popleft().result())
        if self.broken is not None and not self.reading:
            self.add(BadFrame(name="source", error=self.broken, index=self.taken), None)
            self.broken = None

    def unseen(self) -> int:
        """How many pictures of the line wait for the model."""
        return sum(not item.through for item in self.items)

    def add(self, frame: Frame | BadFrame, ready: Prepared | Exception | None) -> None:
        """Put a picture at the end of the line."""
        self.news, self.taken = time.monotonic(), frame.index + 1
        item = Item(frame.index, frame.name)
        if isinstance(frame, Frame):
            item.frame, item.bytes = frame.frame, frame.picture.size // 3 * PIXEL_BYTES
        self.items.append(item)
        if isinstance(frame, BadFrame):
            item.fail(frame.error)
        elif isinstance(ready, Exception):
            item.fail(ready)
        elif ready is not None:
            item.preparing = Future()
            item.preparing.set_result(ready)
        else:
            try:
                with torch.inference_mode():
                    seen = self.job.look(frame)
            except Exception as error:  # noqa: BLE001 - belongs to this picture
                item.fail(error)
            else:
                item.preparing = self.submit(self.pool, self.prepare, frame, seen)

    def line_up(self) -> None:
        """Add the units of pictures that are prepared to those that wait for the model, in order."""
        for item in self.items:
            if item.preparing is None:
                continue
            if not item.preparing.done():
                return
            self.news = time.monotonic()
            try:
                item.prepared, item.preparing = item.preparing.result(), None
            except Exception as error:  # noqa: BLE001 - belongs to this picture
                item.fail(error)
                continue
            self.waiting.extend((item, unit) for unit in item.prepared.units)

    def should_run(self) -> bool:
        """Tell whether to run the model now rather than wait for a fuller batch, or for the caller."""
        if self.items[0].through and sum(item.through for item in self.items) > self.backlog:
            return False  # there is enough to hand out first
        if len(self.waiting) >= self.next_size:
            return True
        if any(item.preparing is not None for item in self.items):
            return False
        nothing_comes = (self.ended and not self.reading) or len(self.items) >= self.most
        return nothing_comes or time.monotonic() - self.news > self.patience

    @property
    def next_size(self) -> int:
        """How many units the next batch has. The first few are small: the model need not wait for a whole batch."""
        return min(self.started, self.batch.size)

    def run_batch(self) -> None:
        """Run the model on the units that wait longest."""
        chunk = [self.waiting.popleft() for _ in range(min(self.next_size, len(self.waiting)))]
        self.started *= 2
        chunk = [(item, unit) for item, unit in chunk if item.failure is None]  # it may have failed in an earlier batch
        units = [unit for _, unit in chunk]
        with torch.inference_mode():
            try:
                found: list[Any] = forward_units(self.job, units, self.batch)
            except Exception as error:  # noqa: BLE001 - tried again one by one, to tell whose it is
                found = [error] if len(units) == 1 else [self.run_alone(unit) for unit in units]
        for (item, _), output in zip(chunk, found, strict=True):
            if isinstance(output, Exception):
                item.fail(output)
            elif item.failure is None:
                item.outputs.append(output)

    def run_alone(self, unit: Unit) -> Any:
        """Run one unit after its batch failed: its output, or its error."""
        try:
            return forward_units(self.job, [unit], self.batch)[0]
        except Exception as error:  # noqa: BLE001 - belongs to this picture
            return error

    def hand_over(self) -> None:
        """Let the background finish the oldest pictures, as many as may be finished ahead."""
        ahead = 0
        for number, item in enumerate(self.items):
            ahead += item.bytes
            if not item.through or (number >= FINISHING and ahead > FINISHED_BYTES):
                return
            prepared, outputs = item.prepared, item.outputs
            if prepared is None:
                continue
            item.prepared, item.outputs = None, []
            if self.job.lane is not None:
                prepared.units.clear()  # the model has seen them: let go of the device's memory
            try:
                if self.device_pool is not None:
                    item.finishing = self.decode_in_turn(self.device_pool, prepared, outputs)
                    continue
                decoded = outputs if self.job.decodes_behind else self.decode(prepared, outputs)
                item.finishing = self.submit(self.finishers, self.complete, prepared, decoded)
            except Exception as error:  # noqa: BLE001 - belongs to this picture
                item.fail(error)

    def decode_in_turn(self, thread: ThreadPoolExecutor, prepared: Prepared, outputs: list[Any]) -> Future[Any]:
        """Have outputs decoded by the thread that waits for the device, and the rest done by the others."""
        asked, done = Moment(self.job.device), Future[Any]()
        done.add_done_callback(lambda _: self.bell.set())

        def finish(decoded: OnHost) -> None:
            settle(done, lambda: self.complete(prepared, decoded))

        def decode() -> None:
            asked.wait()
            with self.down.entered():
                read_here(outputs)
                try:
                    decoded = self.decode(prepared, outputs)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    release_memory(self.job.device)
                    decoded = self.decode(prepared, to_host(outputs).wait())  # slower, and there is more room
            self.finishers.submit(finish, decoded)

        thread.submit(settle, done, decode, only_errors=True)
        return done

    @torch.inference_mode()
    def decode(self, prepared: Prepared, outputs: list[Any]) -> OnHost:
        """Decode on the device, and start copying what comes of it."""
        return to_host(self.job.decode(prepared, outputs))


def settle(done: Future[Any], work: Callable[[], Any], *, only_errors: bool = False) -> None:
    """Do something and tell a future how it ended."""
    try:
        found = work()
    except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it
        done.set_exception(error)
    else:
        if not only_errors:
            done.set_result(found)


def usual_workers(device: torch.device) -> int:
    """Return how many background threads suit a machine: some, and half its cores where a GPU wants to be fed.

    Reading a photograph holds Python's lock for a fifth of its time; more than eight threads would stand in line for
    it, with the caller among them.
    """
    if device.type != "cuda":
        return min(4, max(2, os.cpu_count() or 1))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST_WORKERS, max(2, cores // 2))


def most_on_the_way(batch_size: int, workers: int) -> int:
    """Return how many pictures are held at a time: a batch each of those read, in the model and finished, and some."""
    return 2 * batch_size + max(FINISHING, batch_size) + workers


def forward_units(job: Job[Any], units: list[Unit], batch: BatchSize) -> list[Any]:
    """Run the model on units, those of one shape together; return one output each, in order.

    Where memory runs out the batch is halved, and what is left is run again.
    """
    for arrival in {unit.arrival for unit in units if unit.arrival is not None}:
        arrival.receive()
    outputs: dict[int, Any] = {}
    shapes: dict[tuple[int, ...], list[int]] = {}
    for number, unit in enumerate(units):
        shapes.setdefault(tuple(unit.pixels.shape), []).append(number)
    for numbers in shapes.values():
        while numbers:

            def run(size: int, numbers: list[int] = numbers) -> dict[int, Any]:
                chosen = numbers[:size]
                return dict(zip(chosen, job.forward([units[number] for number in chosen]), strict=True))

            found = with_less_memory(run, batch, job.device, most=len(numbers))
            outputs.update(found)
            del numbers[: len(found)]
    return [outputs[number] for number in range(len(units))]
