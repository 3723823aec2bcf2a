"""The inference engine of all pipelines: loading, preprocessing, inference, postprocessing and saving run concurrently.

    loaders ─ load ─▶ frames ─ detect ─▶ people ─ prepare ─▶ units ─ forward ─▶ outputs ─ decode, finish ─▶ results
              workers          caller             workers            caller               workers

The model runs in the thread that iterates over the results. On a GPU that thread never synchronizes with the device:
images are uploaded and cropped on a second stream, batches are queued ahead, and outputs are decoded on the device, so
that only results are copied back. Units of several images share a batch. Results keep the order of the source, and the
number of images in flight is bounded, so a slow consumer slows down everything.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar

import torch

from vitruvian.cpu_threads import usable_cores
from vitruvian.ops.cuda_graphs import GraphCache, capture_only
from vitruvian.pipelines.engine.cuda_streams import (
    CudaStream,
    HostCopy,
    StreamEvent,
    copy_to_host,
    record_stream,
)
from vitruvian.pipelines.engine.memory import BatchSize, is_out_of_memory
from vitruvian.pipelines.engine.task import InferenceTask, Prepared, Unit
from vitruvian.pipelines.sources import BadFrame, Frame, FrameLoader, Source, VideoInfo
from vitruvian.results.base import People

ResultT = TypeVar("ResultT")
T = TypeVar("T")
P = ParamSpec("P")
Errors = Literal["keep", "raise"]

BATCH_TIMEOUT = 0.5  # seconds to wait for more images before a partial batch runs
_MIN_FINISHED = 4  # images that may always be finished ahead of the consumer
_MAX_FINISHED_BYTES = 1 << 30  # more images may be, while their results stay below this
_RESULT_BYTES_PER_PIXEL = 16  # four float32 maps
_POLL_SECONDS = 0.2  # between checks for KeyboardInterrupt
_MAX_WORKERS = 8  # default worker threads beside a GPU
_SHUTDOWN_TIMEOUT = 5.0  # seconds to wait for a source that is blocked in a read


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An image without a result.

    Attributes:
        name: File name, URL or "array".
        error: The exception.
        index: Its index in the source.
        frame: Its frame number in a video.
    """

    name: str
    error: Exception
    index: int = 0
    frame: int | None = None

    @property
    def message(self) -> str:
        """The error in one line, with the name of the image in front."""
        text = " ".join(str(self.error).split()) or type(self.error).__name__
        return text if text.startswith(self.name) else f"{self.name}: {text}"


_Loaded = tuple[Frame | BadFrame, Prepared | Exception | None]


class Results(Generic[ResultT]):
    """Iterator over results. Close it, or use it in a ``with`` statement, to stop early.

    Attributes:
        count: Number of images, if known.
        video: Properties of the video, if the source is one.
    """

    def __init__(self, results: Iterator[ResultT | Failure], *, count: int | None, video: VideoInfo | None) -> None:
        self._results = results
        self.count, self.video = count, video

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResultT | Failure:
        return next(self._results)

    def close(self) -> None:
        """Stop: complete running saves, drop pending images, and end all threads."""
        close = getattr(self._results, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_one(task: InferenceTask[ResultT], loader: FrameLoader, batch: BatchSize) -> ResultT:
    """Process one image in the calling thread. Errors are raised."""
    frame = loader.frame(0)
    if isinstance(frame, BadFrame):
        raise frame.error
    with torch.inference_mode():
        prepared = task.prepare(frame, task.detect(frame) if task.detects_people else None)
        outputs = _forward_units(task, prepared.units, batch, None)
        return task.finish(prepared, copy_to_host(task.decode(prepared, outputs)).wait())


def run_many(
    task: InferenceTask[ResultT],
    source: Source,
    *,
    batch: BatchSize,
    workers: int | None = None,
    errors: Errors = "keep",
    save: Callable[[ResultT, int], object] | None = None,
    batch_timeout: float = BATCH_TIMEOUT,
    graphs: GraphCache | None = None,
) -> Iterator[ResultT | Failure]:
    """Process all images of a source, in order; `save(result, index)` runs in worker threads. See `Options`.

    Nothing starts before the first result is requested. All threads end with the iterator: after the last image, an
    error, Ctrl-C or `close`.
    """
    with InferenceEngine(
        task, source, batch=batch, workers=workers, save=save, batch_timeout=batch_timeout, graphs=graphs
    ) as engine:
        while True:
            engine.wakeup.clear()
            engine.advance()
            if engine.batch_ready():
                engine.run_batch()
            elif (item := engine.pop_finished()) is not None:
                outcome = item.outcome()
                if isinstance(outcome, Failure) and errors == "raise":
                    raise outcome.error
                yield outcome
            elif engine.exhausted:
                return
            else:
                engine.wakeup.wait(_POLL_SECONDS)


@dataclass(eq=False)
class _InFlight(Generic[ResultT]):
    """An image in flight and its progress."""

    index: int
    name: str
    frame: int | None = None
    result_bytes: int = 0
    preparing: Future[Prepared] | None = None
    prepared: Prepared | None = None
    outputs: list[Any] = field(default_factory=list)
    finishing: Future[ResultT] | None = None
    failure: Failure | None = None

    def fail(self, error: Exception) -> Failure:
        """Record an error as the outcome, and release everything else."""
        self.failure = Failure(name=self.name, error=error, index=self.index, frame=self.frame)
        self.preparing = self.prepared = self.finishing = None
        self.outputs = []
        return self.failure

    @property
    def past_model(self) -> bool:
        """Whether all its units have gone through the model."""
        complete = self.prepared is not None and len(self.outputs) == len(self.prepared.units)
        return complete or self.finishing is not None or self.failure is not None

    @property
    def done(self) -> bool:
        """Whether there is a result or a failure."""
        return self.failure is not None or (self.finishing is not None and self.finishing.done())

    def outcome(self) -> ResultT | Failure:
        """Return the result or the failure of an image that is done."""
        if self.failure is not None:
            return self.failure
        assert self.finishing is not None
        try:
            return self.finishing.result()
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
            return self.fail(error)


class InferenceEngine(Generic[ResultT]):
    """The images in flight, oldest first, and the threads that work on them. `run_many` drives it."""

    def __init__(
        self,
        task: InferenceTask[ResultT],
        source: Source,
        *,
        batch: BatchSize,
        workers: int | None,
        save: Callable[[ResultT, int], object] | None,
        batch_timeout: float,
        graphs: GraphCache | None,
    ) -> None:
        workers = workers or default_workers(task.device)
        self._task, self._source, self._batch, self._graphs = task, source, batch, graphs
        self._save, self._batch_timeout = save, batch_timeout
        self._max_ahead = max(_MIN_FINISHED, batch.size)  # images past the model before it pauses for the consumer
        self._max_in_flight = max_in_flight(batch.size, workers)
        self._slots = threading.Semaphore(self._max_in_flight)
        self._loads: queue.SimpleQueue[Future[_Loaded] | BaseException | None] = queue.SimpleQueue()
        self.wakeup = threading.Event()  # set when a thread has news for the consumer
        self._stopped = threading.Event()
        self._source_ended = False
        self._source_error: Exception | None = None
        self._items: deque[_InFlight[ResultT]] = deque()
        self._loading: deque[Future[_Loaded]] = deque()
        self._queued: deque[tuple[_InFlight[ResultT], Unit]] = deque()  # units that wait for the model
        self._last_arrival, self._added = time.monotonic(), 0
        # The first batches are small, so that the first result does not wait for a whole one to load. Batches that a
        # CUDA graph replays are whole from the start.
        self._warmup_size = batch.size if _graph_batch_size(task, batch, graphs) else 1
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="vitruvian")
        self._finish_pool = self._pool
        self._decode_pool: ThreadPoolExecutor | None = None  # one thread, which synchronizes with the device
        if task.upload_stream is not None:
            # A fast device keeps the pool full of loads; finishing must not queue behind them.
            self._finish_pool = ThreadPoolExecutor(workers, thread_name_prefix="vitruvian-finish")
            if not task.decodes_in_workers:
                self._decode_pool = ThreadPoolExecutor(1, thread_name_prefix="vitruvian-device")
                self._download_stream = CudaStream(task.device)
        self._reader = threading.Thread(target=self._read_source, name="vitruvian-source", daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._slots.release()  # the reader may be blocked on it
        for pool in (self._decode_pool, self._finish_pool, self._pool):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        self._reader.join(_SHUTDOWN_TIMEOUT)
        self._items.clear()
        self._queued.clear()
        self._loading.clear()

    # ------------------------------------------------------------------------------------------- background threads

    def _read_source(self) -> None:
        """Submit the loaders of the source while there are free slots."""
        loaders = self._source.loaders()
        try:
            for index, loader in enumerate(loaders):
                self._slots.acquire()
                if self._stopped.is_set():
                    return
                self._loads.put(self._submit(self._pool, self._load, loader, index))
            self._loads.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer's thread
            self._loads.put(error)
        finally:
            self.wakeup.set()
            with contextlib.suppress(Exception):
                getattr(loaders, "close", lambda: None)()

    def _submit(
        self, pool: ThreadPoolExecutor, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> Future[T]:
        """Run a function in a pool and wake the consumer up afterwards."""
        future = pool.submit(function, *args, **kwargs)
        future.add_done_callback(lambda _: self.wakeup.set())
        return future

    def _load(self, loader: FrameLoader, index: int) -> _Loaded:
        """Load an image, and prepare it too unless people must be detected first."""
        frame = loader.frame(index)
        if isinstance(frame, BadFrame) or self._task.detects_people:
            return frame, None
        try:
            return frame, self._prepare(frame, None)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
            return frame, error

    @torch.inference_mode()
    def _prepare(self, frame: Frame, people: People | None) -> Prepared:
        return self._task.prepare(frame, people)

    @torch.inference_mode()
    def _decode(self, prepared: Prepared, outputs: list[Any]) -> HostCopy[Any]:
        """Decode on the device, and start copying to the host."""
        return copy_to_host(self._task.decode(prepared, outputs))

    @torch.inference_mode()
    def _finish(self, prepared: Prepared, outputs: list[Any] | HostCopy[Any]) -> ResultT:
        """Finish and save an image, from outputs or from what was decoded."""
        decoded = outputs if isinstance(outputs, HostCopy) else self._decode(prepared, outputs)
        result = self._task.finish(prepared, decoded.wait())
        if self._save is not None:
            self._save(result, prepared.frame.index)
        return result

    # ------------------------------------------------------------------------------------------- consumer's thread

    def advance(self) -> None:
        """Move every image as far as it goes without running the model."""
        self._collect_loaded()
        self._queue_units()
        self._submit_finishing()

    def pop_finished(self) -> _InFlight[ResultT] | None:
        """Remove and return the oldest image if it is done."""
        if not self._items or not self._items[0].done:
            return None
        self._slots.release()
        return self._items.popleft()

    @property
    def exhausted(self) -> bool:
        """Whether the source has ended and no image is in flight."""
        return self._source_ended and not self._items and not self._loading

    def _collect_loaded(self) -> None:
        """Add loaded images, and detect people in them if the task does."""
        with contextlib.suppress(queue.Empty):
            while True:
                entry = self._loads.get_nowait()
                if isinstance(entry, Future):
                    self._loading.append(entry)
                    continue
                self._source_ended = True
                if isinstance(entry, Exception):
                    self._source_error = entry
                elif entry is not None:
                    raise entry
        # Detection may take as long as the model: detect no further ahead than the next batch.
        while (
            self._loading
            and self._loading[0].done()
            and sum(not item.past_model for item in self._items) <= self._batch.size
        ):
            self._add(*self._loading.popleft().result())
        if self._source_error is not None and not self._loading:
            self._add(BadFrame(name="source", error=self._source_error, index=self._added), None)
            self._source_error = None

    def _add(self, frame: Frame | BadFrame, prepared: Prepared | Exception | None) -> None:
        """Add an image behind all others."""
        self._last_arrival, self._added = time.monotonic(), frame.index + 1
        item: _InFlight[ResultT] = _InFlight(frame.index, frame.name)
        self._items.append(item)
        if isinstance(frame, BadFrame):
            item.fail(frame.error)
            return
        item.frame, item.result_bytes = frame.frame, frame.image.size // 3 * _RESULT_BYTES_PER_PIXEL
        if isinstance(prepared, Exception):
            item.fail(prepared)
        elif prepared is not None:
            item.preparing = Future()
            item.preparing.set_result(prepared)
        else:
            try:
                with torch.inference_mode():
                    people = self._task.detect(frame)
            except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
                item.fail(error)
            else:
                item.preparing = self._submit(self._pool, self._prepare, frame, people)

    def _queue_units(self) -> None:
        """Queue the units of prepared images for the model, in order."""
        for item in self._items:
            if item.preparing is None:
                continue
            if not item.preparing.done():
                return
            self._last_arrival = time.monotonic()
            try:
                item.prepared, item.preparing = item.preparing.result(), None
            except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
                item.fail(error)
                continue
            self._queued.extend((item, unit) for unit in item.prepared.units)

    def batch_ready(self) -> bool:
        """Return whether to run the model now, rather than wait for a fuller batch or for the consumer."""
        if not self._queued:
            return False
        if self._items[0].past_model and sum(item.past_model for item in self._items) > self._max_ahead:
            return False
        if len(self._queued) >= min(self._warmup_size, self._batch.size):
            return True
        if any(item.preparing is not None for item in self._items):
            return False
        no_more = (self._source_ended and not self._loading) or len(self._items) >= self._max_in_flight
        return no_more or time.monotonic() - self._last_arrival > self._batch_timeout

    def run_batch(self) -> None:
        """Run the model on the units that have waited longest."""
        size = min(self._warmup_size, self._batch.size, len(self._queued))
        chunk = [self._queued.popleft() for _ in range(size)]
        self._warmup_size *= 2
        chunk = [(item, unit) for item, unit in chunk if item.failure is None]  # may have failed in an earlier batch
        units = [unit for _, unit in chunk]
        with torch.inference_mode():
            try:
                outputs = _forward_units(self._task, units, self._batch, self._graphs)
            except Exception as error:  # noqa: BLE001 - run again one by one, to find the unit that fails
                outputs = [error] if len(units) == 1 else [self._run_alone(unit) for unit in units]
        for (item, _), output in zip(chunk, outputs, strict=True):
            if isinstance(output, Exception):
                item.fail(output)
            elif item.failure is None:
                item.outputs.append(output)

    def _run_alone(self, unit: Unit) -> Any:
        """Run one unit of a batch that failed; return its output or its error."""
        try:
            return _forward_units(self._task, [unit], self._batch, self._graphs)[0]
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
            return error

    def _submit_finishing(self) -> None:
        """Submit the oldest images for finishing, as many as may be finished ahead of the consumer."""
        ahead_bytes = 0
        for number, item in enumerate(self._items):
            ahead_bytes += item.result_bytes
            if not item.past_model or (number >= _MIN_FINISHED and ahead_bytes > _MAX_FINISHED_BYTES):
                return
            prepared, outputs = item.prepared, item.outputs
            if prepared is None:
                continue
            item.prepared, item.outputs = None, []
            if self._task.upload_stream is not None:
                prepared.units.clear()  # frees their device memory
            try:
                if self._decode_pool is not None:
                    item.finishing = self._submit_decoding(self._decode_pool, prepared, outputs)
                elif self._task.decodes_in_workers:
                    item.finishing = self._submit(self._finish_pool, self._finish, prepared, outputs)
                else:
                    decoded = self._decode(prepared, outputs)
                    item.finishing = self._submit(self._finish_pool, self._finish, prepared, decoded)
            except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
                item.fail(error)

    def _submit_decoding(
        self, decode_pool: ThreadPoolExecutor, prepared: Prepared, outputs: list[Any]
    ) -> Future[ResultT]:
        """Decode in the thread that synchronizes with the device, then finish in the workers."""
        computed, done = StreamEvent(self._task.device), Future[ResultT]()
        done.add_done_callback(lambda _: self.wakeup.set())

        def finish(decoded: HostCopy[Any]) -> None:
            try:
                done.set_result(self._finish(prepared, decoded))
            except BaseException as error:  # noqa: BLE001 - raised by `done.result()`
                done.set_exception(error)

        def decode() -> None:
            try:
                computed.synchronize()
                with self._download_stream.activate():
                    record_stream(outputs)
                    try:
                        decoded = self._decode(prepared, outputs)
                    except (RuntimeError, MemoryError) as error:
                        if not is_out_of_memory(error):
                            raise
                        torch.cuda.empty_cache()
                        decoded = self._decode(prepared, copy_to_host(outputs).wait())  # slower, on the host
                self._finish_pool.submit(finish, decoded)
            except BaseException as error:  # noqa: BLE001 - raised by `done.result()`
                done.set_exception(error)

        decode_pool.submit(decode)
        return done


def default_workers(device: torch.device) -> int:
    """Return the default number of worker threads: 2 to 4, or half the cores up to 8 beside a GPU.

    Decoding a JPEG holds the GIL for a fifth of its time, so more than eight threads only contend for it.
    """
    cores = usable_cores()
    return min(_MAX_WORKERS, max(2, cores // 2)) if device.type == "cuda" else min(4, max(2, cores))


def max_in_flight(batch_size: int, workers: int) -> int:
    """Return the maximum number of images in flight: a batch each loading, in the model and finished; plus workers."""
    return 2 * batch_size + max(_MIN_FINISHED, batch_size) + workers


def _graph_batch_size(task: InferenceTask[Any], batch: BatchSize, graphs: GraphCache | None) -> int | None:
    """Return the one batch size to record as a CUDA graph, 0 for none; None if the cache records every small batch.

    Launching a large batch kernel by kernel contends with the worker threads for the GIL, while replaying a graph is
    one call. One recording is enough for a run if all inputs have one size.
    """
    if graphs is None or batch.size <= graphs.max_batch:
        return None
    return batch.size if task.fixed_input_size else 0


def _forward_units(
    task: InferenceTask[Any], units: list[Unit], batch: BatchSize, graphs: GraphCache | None
) -> list[Any]:
    """Run the model on units, batching those of one shape; return one output for each, in order.

    When memory runs out, the batch size is halved and the remaining units run again. A batch that is more than half
    full is padded with its last unit up to the size that is recorded as a CUDA graph.
    """
    for pending in {unit.pending for unit in units if unit.pending is not None}:
        pending.wait()
    outputs: dict[int, Any] = {}
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, unit in enumerate(units):
        by_shape.setdefault(tuple(unit.pixels.shape), []).append(index)
    for remaining in by_shape.values():
        while remaining:
            size = min(batch.size, len(remaining))
            inputs = [units[index] for index in remaining[:size]]
            graph_size = _graph_batch_size(task, batch, graphs)
            padding = (graph_size or 0) - size
            if 0 < padding < size:
                inputs += inputs[-1:] * padding
            try:
                with contextlib.nullcontext() if graph_size is None else capture_only(graph_size):
                    computed = task.forward(inputs)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error)
            else:
                outputs.update(zip(remaining[:size], computed[:size], strict=True))
                del remaining[:size]
                continue
            # The traceback is gone here, and with it the tensors that it referenced.
            if graphs is not None:
                graphs.clear()  # a smaller batch needs other graphs
            batch.shrink_below(size, task.device, reason)
    return [outputs[index] for index in range(len(units))]
