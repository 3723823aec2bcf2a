"""Batches of inputs for the model: their size, padding for CUDA graphs, and what follows when memory runs out."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import torch

from vitruvian.cuda.graphs import GraphCache, capture_only
from vitruvian.errors import InputError
from vitruvian.images.types import SizeHW
from vitruvian.pipelines.engine.steps import DeferredModelInput, InferenceSteps, ModelInput
from vitruvian.pipelines.options import check_batch_size

OwnerT = TypeVar("OwnerT")
T = TypeVar("T")

_REFERENCE_PIXELS = 1024 * 768  # of a Sapiens2 input, the unit of the constants below
_BYTES_PER_INPUT = 3 << 30  # GPU memory for one such input and the weights, a safe upper bound
_SATURATING_INPUTS = 8  # such inputs, 25,000 tokens, saturate a large GPU; more only add latency and memory
_MAX_INPUTS = 16


class BatchSize:
    """Number of inputs in a batch. Unless `fixed`, it shrinks when memory runs out."""

    def __init__(self, size: int, *, fixed: bool) -> None:
        check_batch_size(size)
        self.size, self.fixed = size, fixed

    def shrink_below(self, failed_size: int, device: torch.device, reason: str) -> None:
        """Free cached memory and halve the size until it is below one that ran out of memory.

        Raises:
            InputError: The size is fixed, or 1 already.
        """
        if device.type == "cuda":
            torch.cuda.empty_cache()
        elif device.type == "mps":
            torch.mps.empty_cache()
        while self.size >= failed_size:
            if self.fixed or self.size == 1:
                advice = (
                    "Use a smaller batch size, or auto."
                    if self.fixed and self.size > 1
                    else "Use a smaller model, a smaller dtype such as bfloat16, or the CPU."
                )
                raise InputError(
                    f"out of memory with batch size {self.size} on {device} "
                    f"({' '.join(reason.split())[:160]}). {advice}"
                )
            self.size //= 2

    def run(self, function: Callable[[int], T], device: torch.device) -> T:
        """Call a function with the size, again with a smaller one for as long as memory runs out."""
        while True:
            size = self.size
            try:
                return function(size)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error)  # the traceback, which references tensors, ends here
            self.shrink_below(size, device, reason)


def initial_batch_size(device: torch.device, input_hw: SizeHW) -> int:
    """Return the batch size to start from: by free memory on a GPU, larger for small inputs; 1 on a CPU.

    One input saturates a CPU, eight saturate a large GPU. Larger batches take more memory and delay the first result
    and the last, without more throughput.
    """
    if device.type == "cpu":
        return 1
    scale = _REFERENCE_PIXELS / max(1, input_hw[0] * input_hw[1])
    capacity = torch.cuda.mem_get_info(device)[0] / _BYTES_PER_INPUT if device.type == "cuda" else 4.0
    return max(1, min(_MAX_INPUTS, int(_SATURATING_INPUTS * max(1.0, scale)), int(capacity * scale)))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of any backend means that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        phrase in text for phrase in ("out of memory", "can't allocate memory", "not enough memory")
    )


@dataclass(eq=False)
class _QueuedInput(Generic[OwnerT]):
    """An input that waits for the model: number `index` of its owner; `alone` after its batch failed."""

    owner: OwnerT
    index: int
    model_input: ModelInput | DeferredModelInput
    alone: bool = False

    @property
    def shape(self) -> torch.Size | None:
        """Shape of the input; None if it is not made yet."""
        return self.model_input.pixels.shape if isinstance(self.model_input, ModelInput) else None


class Batch(Generic[OwnerT]):
    """Inputs of one shape for one call of the model. As a context manager it catches the errors of the call.

    Attributes:
        entries: The inputs, and where each is from.
        outputs: One for each input; the caller sets them.
        error: What the call raised, unless memory ran out.
        out_of_memory: The message if memory ran out. The exception is not stored: its traceback references tensors.
    """

    def __init__(self, entries: Sequence[_QueuedInput[OwnerT]], *, graph_size: int | None) -> None:
        self.entries = entries
        self.outputs: list[Any] = []
        self.error: Exception | None = None
        self.out_of_memory: str | None = None
        self._graph_size, self._contexts = graph_size, contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._contexts.enter_context(torch.inference_mode())
        if self._graph_size is not None:
            self._contexts.enter_context(capture_only(self._graph_size))
        return self

    def inputs(self) -> list[ModelInput]:
        """Return the inputs. Call it in the context.

        A batch that fills more than half of a CUDA graph is padded with copies of its last input.
        """
        queued = [entry.model_input for entry in self.entries]
        inputs = [made if isinstance(made, ModelInput) else made() for made in queued]
        for pending in {model_input.pending for model_input in inputs if model_input.pending is not None}:
            pending.wait()
        padding = (self._graph_size or 0) - len(inputs)
        return inputs + inputs[-1:] * padding if 0 < padding < len(inputs) else inputs

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        self._contexts.close()
        if error is not None and is_out_of_memory(error):
            self.out_of_memory = str(error)
        elif isinstance(error, Exception):
            self.error = error
        return self.out_of_memory is not None or self.error is not None


class BatchQueue(Generic[OwnerT]):
    """Inputs that wait for the model, in order.

    Args:
        steps: The steps of the pipeline.
        size: Maximum size of a batch.
        graphs: Where the model stores its CUDA graphs, if it has any.
        warmup: Whether the first batches are small, so that the first result does not wait for a whole one to load.
            Batches that a CUDA graph replays are whole from the start.
        partial: Whether batches run before they are full, as of requests that arrive one by one. The size of such a
            batch is a power of two, each of which is captured: five inputs run as four and one, in less time than as
            eight with padding.
    """

    def __init__(
        self,
        steps: InferenceSteps[Any],
        size: BatchSize,
        graphs: GraphCache | None = None,
        *,
        warmup: bool = False,
        partial: bool = False,
    ) -> None:
        self._steps, self._size, self._graphs, self._partial = steps, size, graphs, partial
        self._inputs: deque[_QueuedInput[OwnerT]] = deque()
        self._warmup = 1 if warmup and not self.graph_size else size.size

    def __len__(self) -> int:
        return len(self._inputs)

    @property
    def graph_size(self) -> int | None:
        """The one batch size to capture as a CUDA graph, 0 for none; None if the cache captures every small batch.

        Launching a large batch kernel by kernel contends with the worker threads for the GIL, while replaying a graph
        is one call. One capture is enough for a run if all inputs have one size.
        """
        if self._graphs is None or self._size.size <= self._graphs.max_batch:
            return None
        return self._size.size if self._steps.fixed_input_size else 0

    @property
    def next_size(self) -> int:
        """Number of inputs to wait for before a batch runs."""
        return 1 if self._inputs and self._inputs[0].alone else min(self._warmup, self._size.size)

    def add(self, owner: OwnerT, inputs: Iterable[ModelInput | DeferredModelInput]) -> None:
        """Append the inputs of an image."""
        self._inputs.extend(_QueuedInput(owner, index, model_input) for index, model_input in enumerate(inputs))

    def take(self) -> Batch[OwnerT]:
        """Remove and return the next batch: of the first inputs, those with the shape of the first."""
        first = [self._inputs.popleft() for _ in range(min(self.next_size, len(self._inputs)))]
        self._warmup = min(2 * self._warmup, self._size.size)
        entries = [entry for entry in first if entry.shape == first[0].shape]
        graph_size = self.graph_size
        if graph_size and self._partial and len(entries) < graph_size:
            graph_size = 1 << (len(entries).bit_length() - 1)
            entries = entries[:graph_size]
        self._inputs.extendleft(entry for entry in reversed(first) if entry not in entries)
        return Batch(entries, graph_size=graph_size)

    def complete(self, batch: Batch[OwnerT]) -> list[tuple[OwnerT, int, Any]]:
        """Return owner, index and output (or exception) of each input of a batch that has run.

        When memory runs out, the batch size is halved. The inputs of a batch that failed are queued again, one by one
        after other errors, to find the one that fails.
        """
        alone = False
        if batch.out_of_memory is not None:
            if self._graphs is not None:
                self._graphs.clear()  # a smaller batch needs other graphs
            try:
                self._size.shrink_below(len(batch.entries), self._steps.device, batch.out_of_memory)
            except InputError as error:
                batch.error = error
        if batch.error is not None:
            if len(batch.entries) == 1:
                (entry,) = batch.entries
                self._inputs = deque(other for other in self._inputs if other.owner is not entry.owner)
                return [(entry.owner, entry.index, batch.error)]
            alone = True
        elif batch.out_of_memory is None:
            outputs = batch.outputs[: len(batch.entries)]  # without padding
            return [(entry.owner, entry.index, output) for entry, output in zip(batch.entries, outputs, strict=True)]
        self._inputs.extendleft(replace(entry, alone=alone) for entry in reversed(batch.entries))
        return []

    def run(self, owner: OwnerT, inputs: Sequence[ModelInput | DeferredModelInput]) -> list[Any]:
        """Run the model on the inputs of one image, batch by batch; return one output for each. Errors are raised."""
        self.add(owner, inputs)
        outputs: dict[int, Any] = {}
        while self:
            with self.take() as batch:
                batch.outputs = self._steps.forward(batch.inputs())
            outputs |= {index: output for _, index, output in self.complete(batch)}
            if batch.error is not None:
                raise batch.error
        return [outputs[index] for index in range(len(inputs))]
