"""The inference engine of all pipelines: loading, preprocessing, inference, postprocessing and saving run concurrently.

    loaders ─ load ─▶ frames ─ detect ─▶ people ─ prepare ─▶ inputs ─ forward ─▶ outputs ─ decode, finish ─▶ results
              workers          caller             workers            caller               workers

The model runs in the thread that iterates over the results. On a GPU that thread never synchronizes with the device:
images are uploaded and cropped on a second stream, batches are queued ahead, and outputs are decoded on the device, so
that only results are copied back. Inputs of several images share a batch. Results keep the order of the source (those
of requests need not), and the number of images in flight is bounded, so a slow consumer slows down everything.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, ParamSpec, Self, TypeVar

import torch

from vitruvian.cpu_threads import usable_cores
from vitruvian.cuda.streams import CudaStream, HostCopy, StreamEvent, record_stream
from vitruvian.files.video import VideoReader
from vitruvian.images.decode import on_decode
from vitruvian.pipelines.engine.batches import Batch, BatchQueue, BatchSize, is_out_of_memory
from vitruvian.pipelines.engine.byte_budget import ByteBudget
from vitruvian.pipelines.engine.steps import InferenceSteps, Prepared
from vitruvian.pipelines.options import Errors, Options
from vitruvian.pipelines.sources import Failure, Frame, FrameLoader, Source
from vitruvian.results.base import People

ResultT = TypeVar("ResultT")
T = TypeVar("T")
P = ParamSpec("P")
ResultGenerator = Generator[ResultT | Failure, None, None]

_MAX_LIVE = 2  # images of a camera in flight beside a batch: with more, results would be of the past
_MIN_FINISHED = 4  # images that may always be finished ahead of the consumer
_MAX_FINISHED_BYTES = 1 << 30  # more images may be, while their results stay below this
_RESULT_BYTES_PER_PIXEL = 16  # four float32 maps
_MAX_QUEUED_BATCHES = 2  # on the device, one of which runs, before partial batches wait for more images
_POLL_SECONDS = 0.2  # between checks for KeyboardInterrupt
_TIMER_SECONDS = 0.001  # precision of timeouts: a wait is that much longer, so that it ends after them
_MAX_WORKERS = 8  # default worker threads beside a GPU
_SHUTDOWN_TIMEOUT = 5.0  # seconds to wait for a source that is blocked in a read
_Loaded = tuple[Frame | Failure, Prepared | None]


class Results(Generic[ResultT]):
    """Iterator over results. Close it, or use it in a ``with`` statement, to stop early.

    Attributes:
        count: Number of images, if known.
        video: The video file, if the source is one.
    """

    def __init__(self, results: ResultGenerator[ResultT], *, count: int | None, video: VideoReader | None) -> None:
        self._results = results
        self.count, self.video = count, video

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ResultT | Failure:
        return next(self._results)

    def close(self) -> None:
        """Stop: complete running saves, drop pending images, and end all threads."""
        self._results.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run_one(steps: InferenceSteps[ResultT], loader: FrameLoader, batch: BatchSize) -> ResultT:
    """Process one image in the calling thread. Errors are raised."""
    frame = loader.read(0)
    if isinstance(frame, Failure):
        raise frame.error
    with torch.inference_mode():
        prepared = steps.prepare(frame, steps.detect(frame) if steps.detects(frame) else None)
        outputs = BatchQueue[None](steps, batch).run(None, prepared.inputs)
        return steps.finish(prepared, HostCopy(steps.decode(prepared, outputs)).wait())


def run_many(
    steps: InferenceSteps[ResultT],
    source: Source,
    *,
    batch: BatchSize,
    workers: int | None = None,
    errors: Errors = "keep",
    save: Callable[[ResultT, int], object] | None = None,
    batch_timeout: float | None = Options.batch_timeout,
    ordered: bool = True,
) -> ResultGenerator[ResultT]:
    """Process all images of a source; `save(result, index)` runs in worker threads. See `Options`.

    For requests, which come one by one: with ``batch_timeout=None`` a partial batch does not wait for more images,
    unless one batch runs on the device and another is queued behind it; with ``ordered=False`` no image waits for an
    earlier one that takes longer, and results come as they are done.

    Nothing starts before the first result is requested. All threads end with the iterator: after the last image, an
    error, Ctrl-C or `close`.
    """
    with InferenceEngine(
        steps, source, batch=batch, workers=workers, save=save, batch_timeout=batch_timeout, ordered=ordered
    ) as engine:
        while True:
            engine.wakeup.clear()
            engine.advance()
            if engine.batch_ready():
                with engine.batches.take() as taken:
                    taken.outputs = steps.forward(taken.inputs())
                engine.complete(taken)
                del taken  # it holds device memory
            elif (item := engine.pop_finished()) is not None:
                outcome = item.outcome()
                if isinstance(outcome, Failure) and errors == "raise":
                    raise outcome.error
                yield outcome
            elif engine.exhausted:
                return
            else:
                engine.wakeup.wait(engine.seconds_to_wait())


@dataclass(eq=False)
class _InFlight(Generic[ResultT]):
    """An image in flight and its progress."""

    index: int
    name: str
    frame: int | None = None
    result_bytes: int = 0
    preparing: Future[Prepared] | None = None
    prepared: Prepared | None = None
    outputs: dict[int, Any] = field(default_factory=dict)  # by the index of the input
    finishing: Future[ResultT] | None = None
    failure: Failure | None = None

    def fail(self, error: Exception) -> Failure:
        """Record an error as the outcome, and release everything else."""
        self.failure = Failure(name=self.name, error=error, index=self.index, frame=self.frame)
        self.preparing = self.prepared = self.finishing = None
        self.outputs = {}
        return self.failure

    @property
    def past_model(self) -> bool:
        """Whether all its inputs have gone through the model."""
        complete = self.prepared is not None and len(self.outputs) == len(self.prepared.inputs)
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
        steps: InferenceSteps[ResultT],
        source: Source,
        *,
        batch: BatchSize,
        workers: int | None,
        save: Callable[[ResultT, int], object] | None,
        batch_timeout: float | None,
        ordered: bool,
    ) -> None:
        workers = workers or _default_workers(steps.device)
        self._steps, self._source, self._batch = steps, source, batch
        self._save, self._batch_timeout, self._ordered = save, batch_timeout, ordered
        self.batches: BatchQueue[_InFlight[ResultT]] = BatchQueue(
            steps, batch, steps.graphs, warmup=True, partial=batch_timeout is None
        )
        # Images past the model before it pauses for the consumer.
        self._max_ahead = max(_MIN_FINISHED, batch.size) if steps.max_ahead is None else steps.max_ahead
        self._max_in_flight = batch.size + _MAX_LIVE if source.live else _max_in_flight(batch.size, workers)
        self._slots = threading.Semaphore(self._max_in_flight)
        self._loads: queue.SimpleQueue[Future[_Loaded] | BaseException | None] = queue.SimpleQueue()
        self.wakeup = threading.Event()  # set when a thread has news for the consumer
        self._stopped = threading.Event()
        self._source_ended = False
        self._source_error: Exception | None = None
        self._items: deque[_InFlight[ResultT]] = deque()
        self._loading: deque[Future[_Loaded]] = deque()
        self._last_arrival, self._added = time.monotonic(), 0
        self._computed: deque[StreamEvent] = deque(maxlen=_MAX_QUEUED_BATCHES)  # the ends of the last batches
        self._budget = ByteBudget(on_wait=self.wakeup.set)
        # A fast device keeps the first pool full of loads, and loads may wait for memory: other work has its own pool.
        self._load_pool = ThreadPoolExecutor(workers, thread_name_prefix="vitruvian-load")
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="vitruvian")
        self._decode_pool: ThreadPoolExecutor | None = None  # one thread, which synchronizes with the device
        self._decode_thread = steps.decode_thread()
        if self._decode_thread == "stream":
            self._decode_pool = ThreadPoolExecutor(1, thread_name_prefix="vitruvian-device")
            self._download_stream = CudaStream(steps.device)
        self._reader = threading.Thread(target=self._read_source, name="vitruvian-source", daemon=True)

    def __enter__(self) -> Self:
        try:
            self._reader.start()
        except BaseException:  # Ctrl-C while the thread starts
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._source.close is not None:
            self._source.close()
        self._slots.release()  # the reader may be blocked on it
        self._budget.close()
        for pool in (self._decode_pool, self._pool, self._load_pool):
            if pool is not None:
                pool.shutdown(wait=True, cancel_futures=True)
        if self._reader.ident is not None:  # it was started
            self._reader.join(_SHUTDOWN_TIMEOUT)

    # ------------------------------------------------------------------------------------------- background threads

    def _read_source(self) -> None:
        """Submit the loaders of the source while there are free slots."""
        loaders = self._source.loaders()
        try:
            for index in itertools.count():
                self._slots.acquire()  # first: an image of a camera must not wait
                loader = None if self._stopped.is_set() else next(loaders, None)
                if loader is None:
                    break
                if loader.decoded_bytes:
                    self._budget.reserve(index, loader.decoded_bytes)
                if self._stopped.is_set():
                    return
                if loader.remote:
                    self._loads.put(self._submit_remote(self._load, loader, index))
                else:
                    self._loads.put(self._submit(self._load_pool, self._load, loader, index))
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
        future, wakeup = pool.submit(function, *args, **kwargs), self.wakeup
        future.add_done_callback(lambda _: wakeup.set())  # without a reference cycle through the engine
        return future

    def _submit_remote(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in its own thread, so that a slow download blocks neither workers nor shutdown."""
        future, wakeup = Future[T](), self.wakeup

        def run() -> None:
            try:
                future.set_result(function(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised by `future.result`
                future.set_exception(error)
            wakeup.set()

        threading.Thread(target=run, name="vitruvian-remote", daemon=True).start()
        return future

    def _load(self, loader: FrameLoader, index: int) -> _Loaded:
        """Load an image, and prepare it too unless people must be detected first."""
        token = on_decode.set(partial(self._budget.reserve, index))
        try:
            frame = loader.read(index)
        finally:
            on_decode.reset(token)
        self._budget.resize(index, 0 if isinstance(frame, Failure) else frame.image.nbytes)
        if isinstance(frame, Failure) or self._steps.detects(frame):
            return frame, None
        try:
            return frame, self._prepare(frame, None)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
            return Failure(name=frame.name, error=error, index=index, frame=frame.frame), None

    @torch.inference_mode()
    def _prepare(self, frame: Frame, people: People | None) -> Prepared:
        return self._steps.prepare(frame, people)

    @torch.inference_mode()
    def _decode(self, prepared: Prepared, outputs: list[Any]) -> HostCopy[Any]:
        """Decode on the device, and start copying to the host."""
        return HostCopy(self._steps.decode(prepared, outputs))

    def _decode_on_stream(self, computed: StreamEvent, prepared: Prepared, outputs: list[Any]) -> HostCopy[Any]:
        """Decode on a stream beside the model's, once the outputs are computed; on the host if memory runs out."""
        computed.synchronize()
        with self._download_stream.activate():
            record_stream(outputs)
            try:
                return self._decode(prepared, outputs)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                torch.cuda.empty_cache()
                return self._decode(prepared, HostCopy(outputs).wait())

    @torch.inference_mode()
    def _finish(self, prepared: Prepared, decode: Callable[[], HostCopy[Any]]) -> ResultT:
        """Finish and save an image."""
        result = self._steps.finish(prepared, decode().wait())
        if self._save is not None:
            self._save(result, prepared.frame.index)
        return result

    # ------------------------------------------------------------------------------------------- consumer's thread

    def advance(self) -> None:
        """Move every image as far as it goes without running the model."""
        self._collect_loaded()
        self._queue_inputs()
        self._submit_finishing()

    def pop_finished(self) -> _InFlight[ResultT] | None:
        """Remove and return the oldest image if it is done; without order, the oldest that is done."""
        item = _pop_first(self._items, lambda item: item.done, skip=not self._ordered)
        if item is None:
            return None
        self._budget.release(item.index)
        self._slots.release()
        return item

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
        while sum(not item.past_model for item in self._items) <= self._batch.size:
            loaded = _pop_first(self._loading, Future.done, skip=not self._ordered)
            if loaded is None:
                break
            self._add(*loaded.result())
        if self._source_error is not None and not self._loading:
            self._add(Failure(name="source", error=self._source_error, index=self._added), None)
            self._source_error = None

    def _add(self, frame: Frame | Failure, prepared: Prepared | None) -> None:
        """Add an image behind all others, and detect the people in it if the task does."""
        self._last_arrival, self._added = time.monotonic(), max(self._added, frame.index + 1)
        item: _InFlight[ResultT] = _InFlight(frame.index, frame.name, frame.frame)
        self._items.append(item)
        if isinstance(frame, Failure):
            item.failure = frame
            return
        item.result_bytes = frame.image.size // 3 * _RESULT_BYTES_PER_PIXEL
        try:
            if prepared is not None:
                item.preparing = _completed(prepared)
            else:
                with torch.inference_mode():
                    people = self._steps.detect(frame)
                item.preparing = self._submit(self._pool, self._prepare, frame, people)
        except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
            item.fail(error)

    def _queue_inputs(self) -> None:
        """Queue the inputs of prepared images for the model."""
        for item in self._items:
            if item.preparing is None:
                continue
            if not item.preparing.done():
                if self._ordered:
                    return
                continue
            self._last_arrival = time.monotonic()
            try:
                item.prepared, item.preparing = item.preparing.result(), None
            except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
                item.fail(error)
                continue
            self.batches.add(item, item.prepared.inputs)

    def batch_ready(self) -> bool:
        """Return whether to run the model now, rather than wait for a fuller batch or for the consumer."""
        if not self.batches:
            return False
        if self._items[0].past_model and sum(item.past_model for item in self._items) > self._max_ahead:
            return False
        if len(self.batches) >= self.batches.next_size:
            return True
        if self._batch_timeout is None:
            # While the next batch is queued already the device never waits for Python to launch it.
            return len(self._computed) < _MAX_QUEUED_BATCHES or self._computed[0].reached
        if any(item.preparing is not None for item in self._items):
            return False
        no_more = (self._source_ended and not self._loading) or len(self._items) >= self._max_in_flight
        return no_more or self._budget.exhausted or time.monotonic() - self._last_arrival > self._batch_timeout

    def seconds_to_wait(self) -> float:
        """Return for how long to wait for news: until a partial batch is due, if there is one."""
        if self._batch_timeout is None:
            return _TIMER_SECONDS if self.batches else _POLL_SECONDS
        left = self._last_arrival + self._batch_timeout - time.monotonic()
        if not self.batches or not -_TIMER_SECONDS < left < _POLL_SECONDS:  # others that wait are woken up
            return _POLL_SECONDS
        return max(left, 0.0) + _TIMER_SECONDS

    def complete(self, batch: Batch[_InFlight[ResultT]]) -> None:
        """Assign the outputs or errors of a batch to its images."""
        if self._batch_timeout is None:
            self._computed.append(StreamEvent(self._steps.device))
        for item, index, output in self.batches.complete(batch):
            if isinstance(output, Exception):
                item.fail(output)
            else:
                item.outputs[index] = output

    def _submit_finishing(self) -> None:
        """Submit the oldest images for finishing, as many as may be finished ahead of the consumer."""
        ahead_bytes = 0
        for number, item in enumerate(self._items):
            ahead_bytes += item.result_bytes
            if number >= _MIN_FINISHED and ahead_bytes > _MAX_FINISHED_BYTES:
                return
            if not item.past_model:
                if self._ordered:
                    return
                continue
            prepared, outputs = item.prepared, [item.outputs[index] for index in sorted(item.outputs)]
            if prepared is None:
                continue
            item.prepared, item.outputs = None, {}
            if self._steps.upload_stream is not None:
                prepared.inputs = []  # frees their device memory
            decode: Callable[[], HostCopy[Any]] = partial(self._decode, prepared, outputs)
            try:
                if self._decode_pool is not None:
                    computed = StreamEvent(self._steps.device)
                    decode = self._decode_pool.submit(self._decode_on_stream, computed, prepared, outputs).result
                elif self._decode_thread == "consumer":
                    decode = _completed(decode()).result
                item.finishing = self._submit(self._pool, self._finish, prepared, decode)
            except Exception as error:  # noqa: BLE001 - becomes the outcome of this image
                item.fail(error)


def _pop_first(items: deque[T], condition: Callable[[T], bool], *, skip: bool) -> T | None:
    """Remove and return the first item if the condition is true for it; with `skip`, the first for which it is."""
    for index, item in enumerate(items):
        if condition(item):
            del items[index]
            return item
        if not skip:
            return None
    return None


def _completed(value: T) -> Future[T]:
    """Return a future that has its result already."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _default_workers(device: torch.device) -> int:
    """Return the default number of worker threads: 2 to 4, or half the cores up to 8 beside a GPU.

    Decoding a JPEG holds the GIL for a fifth of its time, so more than eight threads only contend for it.
    """
    cores = usable_cores()
    return min(_MAX_WORKERS, max(2, cores // 2)) if device.type == "cuda" else min(4, max(2, cores))


def _max_in_flight(batch_size: int, workers: int) -> int:
    """Return the maximum number of images in flight.

    Three batches (one loading, one in the model, one finished), and an image for each worker.
    """
    return 2 * batch_size + max(_MIN_FINISHED, batch_size) + workers
