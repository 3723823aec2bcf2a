"""The queue of a model: images of concurrent requests share batches.

    submit ─▶ waiting (bounded) ─▶ pipelines' engine (`run_many`): load, detect, prepare, forward, finish ─▶ encode
    429 when full                  a thread for each model, and its workers

Each request has the options of its own call. The engine runs one task, `_SharedSteps`, which passes each step on to the
call of the image; inputs of calls with the same `forward` go through the model together. An error is the answer to
its image alone. A request that is cancelled, since its client has gone or its time is up, leaves the queue immediately;
an image that is in the engine already is finished and dropped. `close` drains the queue.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch

from vitruvian.images.exif_focal import exif_focal
from vitruvian.images.read import load_rgb
from vitruvian.pipelines.base import TaskPipeline
from vitruvian.pipelines.engine.batches import BatchSize
from vitruvian.pipelines.engine.runner import run_many
from vitruvian.pipelines.engine.steps import DecodeThread, DeferredModelInput, InferenceSteps, ModelInput, Prepared
from vitruvian.pipelines.sources import Failure, Frame, FrameLoader, Source
from vitruvian.results import People
from vitruvian.serving.errors import RequestError, too_many
from vitruvian.serving.metrics import Metrics

AnswerT = TypeVar("AnswerT")
QueueState = Literal["loading", "ready", "failed", "closed"]
_log = logging.getLogger("vitruvian.serving")
_RECENT = 64  # answers from which the rate is estimated
_MAX_RETRY_SECONDS = 60


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


class QueuedRequest(Generic[AnswerT]):
    """A request that waits for a model.

    Args:
        body: The image file.
        name: Its name in the result.
        call: The steps of the task with the options of the request.
        encode: Makes the answer of the result, in a worker thread.

    Attributes:
        future: The answer. Cancelling it cancels the request.
    """

    def __init__(self, body: bytes, name: str, call: InferenceSteps[Any], encode: Callable[[Any], AnswerT]) -> None:
        self._body: bytes | None = body
        self.name, self.call, self.encode = name, call, encode
        self.future: Future[AnswerT] = Future()
        self.submitted = time.monotonic()

    def load(self) -> Frame:
        """Decode the image."""
        body, self._body = self._body, None
        if self.future.cancelled() or body is None:
            raise CancelledError
        stream = io.BytesIO(body)
        stream.name = self.name  # for error messages
        image = load_rgb(stream)
        return _QueuedFrame(image=image, name=self.name, exif_focal_px=exif_focal(body, image.shape[:2]), request=self)

    def answer(self, value: AnswerT) -> None:
        """Answer, unless the request is cancelled."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Answer with an error, unless there is an answer or the request is cancelled."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(frozen=True, kw_only=True, eq=False)
class _QueuedFrame(Frame):
    """The image of a request."""

    request: QueuedRequest[Any]


class _InputOfCall(NamedTuple):
    """`extra` of an input: the call that made it, and the `extra` of that call."""

    call: InferenceSteps[Any]
    extra: Any


class _SharedSteps(InferenceSteps[Any]):
    """Forwards each step to the pipeline call of the image's request."""

    def __init__(self, name: str, pipe: InferenceSteps[Any], lock: FairLock, metrics: Metrics) -> None:
        self._name, self._pipe, self._lock, self._metrics = name, pipe, lock, metrics
        self.upload_stream, self.fixed_input_size = pipe.upload_stream, pipe.fixed_input_size

    def decode_thread(self) -> DecodeThread:
        """Return which thread decodes."""
        return self._pipe.decode_thread()

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._pipe.device

    def detects(self, frame: Frame) -> bool:
        """Return whether the call detects people."""
        return _request_of(frame).call.detects(frame)

    def detect(self, frame: Frame) -> People | None:
        """Detect people."""
        with self._lock, self._metrics.stage(self._name, "detect"):
            return _request_of(frame).call.detect(frame)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Make the inputs of an image, unless its request is cancelled."""
        request = _request_of(frame)
        if request.future.cancelled():
            raise CancelledError
        with self._metrics.stage(self._name, "prepare"):
            prepared = request.call.prepare(frame, people)
        prepared.inputs = [_with_call(model_input, request.call) for model_input in prepared.inputs]
        return prepared

    def forward(self, inputs: list[ModelInput]) -> list[Any]:
        """Run the model on the inputs of each group of calls that agree about it."""
        groups: dict[object, list[int]] = {}
        for index, model_input in enumerate(inputs):
            groups.setdefault(_forward_key(model_input.extra.call), []).append(index)
        outputs: list[Any] = [None] * len(inputs)
        self._metrics.batch_size.labels(self._name).observe(len(inputs))
        with self._lock, self._metrics.stage(self._name, "forward"):
            for indices in groups.values():
                call = inputs[indices[0]].extra.call
                inner = [inputs[index]._replace(extra=inputs[index].extra.extra) for index in indices]
                for index, output in zip(indices, call.forward(inner), strict=True):
                    outputs[index] = output
        return outputs

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        """Decode the outputs of an image."""
        return _request_of(prepared.frame).call.decode(prepared, outputs)

    def finish(self, prepared: Prepared, decoded: Any) -> Any:
        """Build the result and make the answer of it."""
        request = _request_of(prepared.frame)
        if request.future.cancelled():
            raise CancelledError
        with self._metrics.stage(self._name, "finish"):
            result = request.call.finish(prepared, decoded)
        with self._metrics.stage(self._name, "encode"):
            request.answer(request.encode(result))  # before those that came earlier, if it is done before them


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
        self._batch_size, self._on_failure = batch_size, on_failure
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

    def close(self) -> None:
        """Accept nothing more, and wait until everything that was accepted is answered; not for a model that loads."""
        with self._changed:
            self.state = "closed" if self.state != "failed" else "failed"
            self._changed.notify_all()
        if self._pipe.done():
            self._thread.join()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def pipe(self) -> TaskPipeline[Any, Any]:
        """The pipeline; an error 503 while it is opened."""
        if self.state == "loading":
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
                raise RequestError(
                    503, headers={"Retry-After": "5"}, subject="server", expected="one that accepts requests",
                    got="one that shuts down", hint="Try again in 5 seconds.",
                )  # fmt: skip
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
                with self._changed:  # the reader of this run must not take requests of the next
                    self._run_number += 1
                    self._changed.notify_all()
                for request in self._in_engine.values():
                    request.fail(error)
            self._in_engine.clear()

    def _run_engine(self, pipe: TaskPipeline[Any, Any]) -> None:
        call = pipe.for_call({})
        fixed = None if self._batch_size is None else BatchSize(self._batch_size, fixed=False)
        outcomes = run_many(
            _SharedSteps(self.name, call, self.lock, self._metrics),
            Source(self._loaders),
            batch=fixed or pipe.batch_size(call.options, live=False),
            batch_timeout=None,  # requests collect while the model runs
            graphs=pipe.model.graphs if pipe.device.type == "cuda" else None,
        )
        for index, outcome in enumerate(outcomes):
            request = self._in_engine.pop(index)
            self._answers.append(time.monotonic())
            if isinstance(outcome, Failure):
                request.fail(outcome.error)

    def _loaders(self) -> Iterator[FrameLoader]:
        """Yield the images of requests as they come, until the queue is closed and empty."""
        index, number = 0, self._run_number
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


def _request_of(frame: Frame) -> QueuedRequest[Any]:
    assert isinstance(frame, _QueuedFrame)
    return frame.request


def _with_call(
    model_input: ModelInput | DeferredModelInput, call: InferenceSteps[Any]
) -> ModelInput | DeferredModelInput:
    """Return an input that knows its call."""
    if isinstance(model_input, ModelInput):
        return model_input._replace(extra=_InputOfCall(call, model_input.extra))
    make = model_input

    def make_with_call() -> ModelInput:
        made = make()
        return made._replace(extra=_InputOfCall(call, made.extra))

    return make_with_call


def _forward_key(call: InferenceSteps[Any]) -> object:
    """Return what calls that can share a batch have in common."""
    names = getattr(call, "forward_options", None)
    if names is None:
        return id(call)
    options = getattr(call, "options", None)
    return type(call), *(repr(getattr(options, name, None)) for name in names)
