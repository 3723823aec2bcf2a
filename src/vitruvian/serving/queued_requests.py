"""The steps that concurrent requests share in one run of the engine, each with the options of its own call.

`SharedSteps` passes each step on to the pipeline call of the image's request. Of a batch, it runs the inputs of calls
with the same `InferenceSteps.batch_key` together. How a batch forms: see `model_queue`.

A request may be cancelled at any time. Steps of its image that have not begun by then are skipped, and the model leaves
out its inputs.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from vitruvian.cuda.graphs import GraphCache
from vitruvian.images.exif_focal import exif_focal
from vitruvian.images.read import load_rgb
from vitruvian.images.types import RgbImage
from vitruvian.pipelines.engine.steps import DecodeThread, DeferredModelInput, InferenceSteps, ModelInput, Prepared
from vitruvian.pipelines.sources import Frame
from vitruvian.results import People
from vitruvian.serving.metrics import Metrics

AnswerT = TypeVar("AnswerT")


def decode_upload(body: bytes, name: str) -> RgbImage:
    """Decode an image file that a client calls `name`, for messages."""
    stream = io.BytesIO(body)
    stream.name = name
    return load_rgb(stream)


class QueuedRequest(Generic[AnswerT]):
    """A request that waits for a model.

    Args:
        body: The image file.
        name: Its name in the result.
        call: The steps of the task with the options of the request.
        make_answer: Makes the answer of the result, in a worker thread.

    Attributes:
        future: The answer. Cancelling it cancels the request.
    """

    def __init__(
        self, body: bytes, name: str, call: InferenceSteps[Any], make_answer: Callable[[Any], AnswerT]
    ) -> None:
        self._body: bytes | None = body
        self.name, self.call, self.make_answer = name, call, make_answer
        self.future: Future[AnswerT] = Future()
        self.submitted = time.monotonic()

    def load(self) -> Frame:
        """Decode the image."""
        body, self._body = self._body, None
        self.check()
        assert body is not None
        image = decode_upload(body, self.name)
        return _QueuedFrame(image=image, name=self.name, exif_focal_px=exif_focal(body, image.shape[:2]), request=self)

    def check(self) -> None:
        """Raise `CancelledError` if the request is cancelled."""
        if self.future.cancelled():
            raise CancelledError

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


class _InputOfRequest(NamedTuple):
    """`extra` of an input: the request that it is for, and the `extra` of its call."""

    request: QueuedRequest[Any]
    extra: Any


class SharedSteps(InferenceSteps[int]):
    """Forwards each step to the pipeline call of the image's request."""

    def __init__(
        self, name: str, pipe: InferenceSteps[Any], lock: AbstractContextManager[None], metrics: Metrics
    ) -> None:
        self._name, self._pipe, self._lock, self._metrics = name, pipe, lock, metrics
        self.upload_stream, self.fixed_input_size = pipe.upload_stream, pipe.fixed_input_size

    def decode_thread(self) -> DecodeThread:
        """Return which thread decodes."""
        return self._pipe.decode_thread()

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._pipe.device

    @property
    def graphs(self) -> GraphCache | None:
        """Where the model stores its CUDA graphs."""
        return self._pipe.graphs

    def detects(self, frame: Frame) -> bool:
        """Return whether the call detects people."""
        return _request_of(frame).call.detects(frame)

    def detect(self, frame: Frame) -> People | None:
        """Detect people, unless the request is cancelled."""
        _request_of(frame).check()
        with self._lock, self._metrics.stage(self._name, "detect"):
            return _request_of(frame).call.detect(frame)

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Make the inputs of an image, unless its request is cancelled."""
        request = _request_of(frame)
        request.check()
        with self._metrics.stage(self._name, "prepare"):
            prepared = request.call.prepare(frame, people)
        prepared.inputs = [_with_request(model_input, request) for model_input in prepared.inputs]
        return prepared

    def forward(self, inputs: list[ModelInput]) -> list[Any]:
        """Run the model on the inputs of each group of calls that agree about it.

        Inputs of cancelled requests are left out, and have no output. A batch of nothing else raises `CancelledError`,
        after which the engine drops the inputs that are left of its image.
        """
        groups: dict[object, list[int]] = {}
        for index, model_input in enumerate(inputs):
            request = model_input.extra.request
            if not request.future.cancelled():
                groups.setdefault(request.call.batch_key(), []).append(index)
        if not groups:
            raise CancelledError
        outputs: list[Any] = [None] * len(inputs)
        self._metrics.batch_size.labels(self._name).observe(sum(map(len, groups.values())))
        with self._lock, self._metrics.stage(self._name, "forward"):
            for indices in groups.values():
                call = inputs[indices[0]].extra.request.call
                inner = [inputs[index]._replace(extra=inputs[index].extra.extra) for index in indices]
                for index, output in zip(indices, call.forward(inner), strict=True):
                    outputs[index] = output
        return outputs

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        """Decode the outputs of an image, unless its request is cancelled."""
        request = _request_of(prepared.frame)
        request.check()
        return request.call.decode(prepared, outputs)

    def finish(self, prepared: Prepared, decoded: Any) -> int:
        """Build the result and make the answer of it, unless the request is cancelled; return the image's index."""
        request = _request_of(prepared.frame)
        request.check()
        with self._metrics.stage(self._name, "finish"):
            result = request.call.finish(prepared, decoded)
        with self._metrics.stage(self._name, "encode"):
            request.answer(request.make_answer(result))
        return prepared.frame.index


def _request_of(frame: Frame) -> QueuedRequest[Any]:
    assert isinstance(frame, _QueuedFrame)
    return frame.request


def _with_request(
    model_input: ModelInput | DeferredModelInput, request: QueuedRequest[Any]
) -> ModelInput | DeferredModelInput:
    """Return an input that knows its request."""
    if isinstance(model_input, ModelInput):
        return model_input._replace(extra=_InputOfRequest(request, model_input.extra))
    make = model_input

    def make_with_request() -> ModelInput:
        if request.future.cancelled():  # `forward` leaves it out
            return ModelInput(torch.empty(0), _InputOfRequest(request, None))
        made = make()
        return made._replace(extra=_InputOfRequest(request, made.extra))

    return make_with_request
