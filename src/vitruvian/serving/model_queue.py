"""The queue of a model, from which concurrent requests share batches.

    submit ─▶ waiting (bounded) ─▶ pipelines' engine (`run_many`): load, detect, prepare, forward, finish ─▶ encode
    429 when full                  a thread for each model, and its workers

How a batch forms: `ModelQueue.submit` adds a request; the engine takes requests from the queue (`_loaders`) as long as
it has room, and its workers decode and prepare them. On a GPU one batch runs and one is queued behind it, so that the
device never waits; requests that arrive meanwhile form the next batch, up to its size. A single request does not wait.
(`InferenceEngine.batch_ready` in `pipelines/engine/runner.py`, `BatchQueue.take` in `pipelines/engine/batches.py`.)
`SharedSteps.forward` (`queued_requests`) runs the inputs of a batch whose options agree together.

An error is the answer to its image alone. A request that is cancelled, since its client has gone or its time is up,
leaves the queue immediately; of an image that is in the engine already, only the inputs of the batch that runs are
computed. `ModelQueue.close` drains the queue, for a limited time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.runner import run_many
from vitruvian.pipelines.sources import Failure, Frame, FrameLoader, Source
from vitruvian.serving.errors import RequestError, too_many
from vitruvian.serving.metrics import Metrics
from vitruvian.serving.queued_requests import AnswerT, QueuedRequest, SharedSteps

QueueState = Literal["loading", "ready", "failed", "closed"]
_log = logging.getLogger("vitruvian.serving")
_RECENT = 64  # answers from which the rate is estimated
_MAX_RETRY_SECONDS = 60
_DRAIN_SECONDS = 30.0  # for requests that were accepted, when the queue is closed
_CANCEL_SECONDS = 5.0  # for a batch that runs then


class FairLock:
    """A lock that threads get in the order in which they ask for it.

    `threading.Lock` is mostly taken again by the thread that released it: one busy model would starve the others.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait()

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().set()  # held by the next thread
            else:
                self._held = False


class ModelQueue:
    """A model, the requests that wait for it, and the thread that runs it.

    Args:
        name: The task.
        open_pipeline: Opens the pipeline; called in the thread of the queue.
        size: Requests that may wait.
        lock: Held while a model of the device runs, since others share it.
        metrics: Where times and batches are counted.
        batch_size: Inputs in a batch; None for what the pipeline chooses.
        on_failure: Called with the error if the pipeline cannot be opened.
    """

    def __init__(
        self,
        name: str,
        open_pipeline: Callable[[], TaskPipeline[Any, Any]],
        *,
        size: int,
        lock: FairLock,
        metrics: Metrics,
        batch_size: int | None,
        on_failure: Callable[[Exception], object],
    ) -> None:
        self.name = name
        self.state: QueueState = "loading"
        self._open, self._size, self.lock, self._metrics = open_pipeline, size, lock, metrics
        self._batch = None if batch_size is None else BatchSize(batch_size, fixed=False)  # shrinks when memory runs out
        self._on_failure = on_failure
        self._pipe: Future[TaskPipeline[Any, Any]] = Future()
        self._waiting: deque[QueuedRequest[Any]] = deque()
        self._in_engine: dict[int, QueuedRequest[Any]] = {}  # by the index in the engine
        self._changed = threading.Condition()  # re-entrant
        self._run_number = 0  # of the engine, which starts again after an error
        self._answers: deque[float] = deque(maxlen=_RECENT)
        self._thread = threading.Thread(target=self._run, name=f"vitruvian-{name}", daemon=True)

    def start(self) -> None:
        """Open the model in the background."""
        self._thread.start()

    def close(self, seconds: float = _DRAIN_SECONDS) -> None:
        """Accept nothing more, and wait for the answers to what was accepted; not for a model that loads.

        What is not answered after so many seconds is cancelled. The thread of the queue then ends after its batch; a
        batch that takes long is not waited for, and ends with the process.
        """
        with self._changed:
            self.state = "closed" if self.state != "failed" else "failed"
            self._changed.notify_all()
        if not self._pipe.done():
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("requests for %s are cancelled: they took more than %g seconds", self.name, seconds)
            with self._changed:
                for request in (*self._waiting, *list(self._in_engine.values())):
                    request.future.cancel()
            self._thread.join(_CANCEL_SECONDS)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pipe(self) -> TaskPipeline[Any, Any]:
        """The pipeline; an error 503 while it is opened. Never waits."""
        if not self._pipe.done():
            if self.state == "closed":
                raise _shuts_down()
            raise RequestError(
                503, headers={"Retry-After": "2"}, subject=self.name, expected="a loaded model",
                got="one that is loading", hint="Try again in 2 seconds.",
            )  # fmt: skip
        return self._pipe.result()

    def check_space(self) -> None:
        """Raise an error 429 if the queue is full."""
        with self._changed:
            self._drop_cancelled()
            if len(self._waiting) >= self._size:
                raise too_many("queue", self._size, f"images that wait for {self.name}", retry_seconds=self._retry())

    def submit(self, request: QueuedRequest[AnswerT]) -> Future[AnswerT]:
        """Add a request; its future has the answer. Thread-safe.

        Raises:
            RequestError: The queue is full (429), or the server shuts down (503).
        """
        with self._changed:
            self.check_space()
            if self.state in ("closed", "failed"):
                raise _shuts_down()
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def _drop_cancelled(self) -> None:
        if any(request.future.cancelled() for request in self._waiting):
            self._waiting = deque(request for request in self._waiting if not request.future.cancelled())

    def _retry(self) -> int:
        """Return after how many seconds about half of the queue is answered."""
        if len(self._answers) < 2:
            return 1
        seconds = (self._answers[-1] - self._answers[0]) / (len(self._answers) - 1)
        return max(1, min(_MAX_RETRY_SECONDS, math.ceil(seconds * len(self._waiting) / 2)))

    # ------------------------------------------------------------------------------------------- the queue's thread

    def _run(self) -> None:
        """Open the model and run requests until the queue is closed and empty."""
        try:
            pipe = self._open()
            pipe.for_call({})  # optimizes the model before requests come
            if pipe.device.type == "cuda":  # compiles kernels and captures graphs, for seconds
                with self.lock:
                    pipe.warm_up(self._batch)
        except Exception as error:  # noqa: BLE001 - ends the server
            self.state = "failed"
            self._pipe.set_exception(error)
            self._on_failure(error)
            return
        self._pipe.set_result(pipe)
        with self._changed:
            self.state = "ready" if self.state == "loading" else self.state
        while self.state == "ready" or self._waiting:
            try:
                self._run_engine(pipe)
            except Exception as error:  # noqa: BLE001 - logged; the queue continues
                _log.exception("the engine of %s stopped; it starts again", self.name)
                for request in self._in_engine.values():
                    request.fail(error)
            self._in_engine.clear()

    def _run_engine(self, pipe: TaskPipeline[Any, Any]) -> None:
        call = pipe.for_call({})
        outcomes = run_many(
            SharedSteps(self.name, call, self.lock, self._metrics),
            Source(partial(self._loaders, self._run_number), close=self._end_run),
            batch=self._batch or pipe.batch_size(call.options, live=False),
            batch_timeout=None,  # requests collect while the device is busy
            ordered=False,
        )
        for outcome in outcomes:
            request = self._in_engine.pop(outcome.index if isinstance(outcome, Failure) else outcome)
            self._answers.append(time.monotonic())
            if isinstance(outcome, Failure):
                request.fail(outcome.error)

    def _end_run(self) -> None:
        """End the reader of this run, which must not take requests of the next."""
        with self._changed:
            self._run_number += 1
            self._changed.notify_all()

    def _loaders(self, number: int) -> Iterator[FrameLoader]:
        """Yield the images of requests as they come, until the queue is closed and empty, or the run ends."""
        index = 0
        while True:
            with self._changed:
                while not self._waiting and self.state == "ready" and number == self._run_number:
                    self._changed.wait()
                if not self._waiting or number != self._run_number:
                    return
                request = self._waiting.popleft()
            if request.future.cancelled():
                continue
            self._metrics.stage_seconds.labels(self.name, "queue").observe(time.monotonic() - request.submitted)
            self._in_engine[index] = request
            index += 1
            yield FrameLoader(name=request.name, load=self._timed(request))

    def _timed(self, request: QueuedRequest[Any]) -> Callable[[], Frame]:
        def load() -> Frame:
            with self._metrics.stage(self.name, "load"):
                return request.load()

        return load


def _shuts_down() -> RequestError:
    return RequestError(
        503, headers={"Retry-After": "5"}, subject="server", expected="a running server",
        got="one that is shutting down", hint="Try again in 5 seconds.",
    )  # fmt: skip
