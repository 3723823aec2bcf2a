"""The interface between tasks and the engine: the four steps of a task, their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from vitruvian.cuda.graphs import GraphCache
from vitruvian.cuda.streams import CudaStream, PendingTensors
from vitruvian.pipelines.sources import Frame
from vitruvian.results.base import People

ResultT = TypeVar("ResultT")


class ModelInput(NamedTuple):
    """One input of the model: an image, a person or a tile.

    Attributes:
        pixels: Input tensor [3, h, w].
        extra: Further inputs of the task.
        pending: Set if another thread computes `pixels` on another stream.
    """

    pixels: Tensor
    extra: Any = None
    pending: PendingTensors | None = None


# "worker": any worker thread; "stream": one thread, on a stream of its own beside the model's; "consumer": the thread
# that iterates over the results.
DecodeThread = Literal["worker", "stream", "consumer"]
DeferredModelInput = Callable[[], ModelInput]  # makes an input of the task's fixed size when its batch runs


@dataclass(eq=False)
class Prepared:
    """A preprocessed image.

    Attributes:
        frame: The image.
        inputs: Inputs of the model: the whole image, or one for each person or tile. May be empty. If there are many
            they are made batch by batch.
        context: What `decode` and `finish` of the task need to know about the inputs.
    """

    frame: Frame
    inputs: Sequence[ModelInput | DeferredModelInput]
    context: Any = None


class InferenceSteps(Generic[ResultT]):
    """The steps of a task. All methods run under `torch.inference_mode`.

    Attributes:
        upload_stream: Stream on which `prepare` works on the device; None if it works on the host.
        fixed_input_size: Whether all inputs have one size, so that a CUDA graph of a batch can be replayed.
        detects_people: What `detects` returns by default.
        max_ahead: Images that the model may process before their results are taken; None for a batch, at least 4.
    """

    upload_stream: CudaStream | None = None
    fixed_input_size: bool = False
    detects_people: bool = False
    max_ahead: int | None = None

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        raise NotImplementedError

    @property
    def graphs(self) -> GraphCache | None:
        """Where the model stores its CUDA graphs, if it has any."""
        return None

    def detects(self, frame: Frame) -> bool:
        """Return whether `detect` must run before `prepare` of this image."""
        return self.detects_people

    def detect(self, frame: Frame) -> People | None:
        """Detect people. Called by the consumer's thread, in the order of the source."""
        return None

    def prepare(self, frame: Frame, people: People | None) -> Prepared:
        """Make the model's inputs; `people` are detected ones. Called by worker threads."""
        raise NotImplementedError

    def forward(self, inputs: list[ModelInput]) -> list[Any]:
        """Run the model on inputs of one shape; return one output for each. Called by the consumer's thread."""
        raise NotImplementedError

    def batch_key(self) -> object:
        """Return a key: inputs of steps of one model whose keys are equal may be passed to `forward` together."""
        return id(self)

    def decode_thread(self) -> DecodeThread:
        """Return which thread calls `decode`."""
        return "worker"

    def decode(self, prepared: Prepared, outputs: list[Any]) -> Any:
        """Reduce an image's outputs, on the device, to nested lists, tuples and dicts of tensors.

        By default the output of its only input.
        """
        return outputs[0]

    def finish(self, prepared: Prepared, decoded: Any) -> ResultT:
        """Build the result from what `decode` returned, now on the host. Called by worker threads."""
        raise NotImplementedError
