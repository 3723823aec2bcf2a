"""CUDA streams, events and copies between host and device. On other devices all of them do nothing.

How the inference engine uses them:

    image ─ pinned memory ─▶ upload stream: image, crops ─ event ─▶ model ─ event ─▶ download stream: decode ─▶ host

The model's stream waits for the event of a batch's crops. Only the thread that decodes waits for the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitruvian.cuda.pinned_copy import pinned_copy
from vitruvian.outputs import map_tensors

T = TypeVar("T")


class StreamEvent:
    """A CUDA event, recorded on the current stream of the calling thread when it is created."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._event = device, None
        if device.type == "cuda":
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # waiting threads sleep
            self._event.record(torch.cuda.current_stream(device))

    @property
    def reached(self) -> bool:
        """Whether the device has reached the event."""
        return self._event is None or self._event.query()  # type: ignore[no-untyped-call]

    def synchronize(self) -> None:
        """Block the calling thread until the device has reached the event."""
        if self._event is not None:
            self._event.synchronize()

    def block_current_stream(self) -> None:
        """Make the current stream wait for the event. The calling thread continues."""
        if self._event is not None:
            torch.cuda.current_stream(self.device).wait_event(self._event)


class PendingTensors:
    """Tensors that another thread computes on another stream of the device."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self.tensors, self._ready = list(tensors), StreamEvent(device)

    def wait(self) -> None:
        """Make the tensors usable on the current stream."""
        self._ready.block_current_stream()
        record_stream(self.tensors)
        self.tensors = []


class CudaStream:
    """A high-priority stream beside the model's, shared by threads."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the current stream of the calling thread."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def upload(self, image: NDArray[np.uint8]) -> Tensor:
        """Copy an image [H, W, 3] to the device as [3, H, W]; call it while the stream is active."""
        return pinned_copy(image, self.device).permute(2, 0, 1)  # [3, H, W]


def upload_stream(device: torch.device, current: CudaStream | None) -> CudaStream | None:
    """Return the upload stream of a model on `device`: `current` if it is on that device, None unless on CUDA."""
    if current is not None and current.device == device:
        return current
    return CudaStream(device) if device.type == "cuda" else None


def record_stream(values: object) -> None:
    """Keep the memory of nested CUDA tensors until the current stream has used them."""

    def record(tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor

    map_tensors(record, values)


class HostCopy(Generic[T]):
    """A copy, asynchronous from a GPU, of the tensors in nested lists, tuples and dicts to pinned host memory."""

    def __init__(self, values: T) -> None:
        devices: set[torch.device] = set()

        def copy(tensor: Tensor) -> Tensor:
            if not tensor.is_cuda:
                return tensor.cpu()
            devices.add(tensor.device)
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

        self._values: T = map_tensors(copy, values)
        self._copied = StreamEvent(devices.pop()) if devices else None

    def wait(self) -> T:
        """Return the values once all copies are complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._values


def stack_on_device(inputs: Sequence[Tensor], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Stack inputs [3, h, w] into a batch [B, 3, h, w] on a device, through pinned memory on CUDA.

    On CUDA the batch has the data type `dtype`, whether its inputs come from the host or the device.
    """
    if device.type != "cuda":
        return torch.stack(list(inputs)).to(device)  # [B, 3, h, w]
    if any(tensor.is_cuda for tensor in inputs):
        uploaded = [tensor if tensor.is_cuda else pinned_copy(tensor, device) for tensor in inputs]
        batch = torch.stack(uploaded)  # [B, 3, h, w]
    else:
        shape = (len(inputs), *inputs[0].shape)
        pinned = torch.empty(shape, dtype=inputs[0].dtype, pin_memory=True)
        batch = torch.stack(list(inputs), out=pinned).to(device, non_blocking=True)  # [B, 3, h, w]
    return batch if dtype is None or batch.dtype == dtype else batch.to(dtype)
