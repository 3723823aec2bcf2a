"""Between memories: batches to the model's device, results back from it, and what to do where there is too little.

On a GPU three queues (streams) work side by side: the model's own, and two lanes beside it:

    picture ─ pinned memory ─▶ up: picture, crops ─ an event ─▶ model ─ an event ─▶ down: decoding ─▶ pinned memory

The model's queue waits for the event of a batch's crops; of the threads only the one that decodes waits for the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.images.at_once import sent
from vitruvian.outputs import map_tensors
from vitruvian.results.base import Picture

T = TypeVar("T")

REFERENCE_PIXELS = 1024 * 768  # of an input of Sapiens2, by which sizes of batches are measured
BYTES_A_UNIT = 3 << 30  # of GPU memory for one such input, weights and all, on the safe side
ENOUGH_UNITS = 8  # of such inputs fill a large GPU: 25,000 tokens. More take as long each, and come later
MOST_UNITS = 16


class BatchSize:
    """How many units go through the model at once; halves where memory runs out, if it may."""

    def __init__(self, size: int, *, fixed: bool) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f'batch_size: expected a whole number of at least 1, or "auto", got {size!r}.')
        self.size, self.fixed = size, fixed

    def halve(self) -> bool:
        """Go down to half; False where that is not possible."""
        if self.fixed or self.size == 1:
            return False
        self.size //= 2
        return True


def first_batch_size(device: torch.device, unit_hw: tuple[int, int]) -> int:
    """Return a batch size to start from: by free memory on a GPU, larger where inputs are small; 1 on the CPU.

    A CPU is busy with one input; more at once only take memory. A GPU is with eight: twice as many would double the
    memory, and the time until the first batch can start and after the last has ended, while half the machine rests.
    """
    if device.type == "cpu":
        return 1
    share = REFERENCE_PIXELS / max(1, unit_hw[0] * unit_hw[1])
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        units = free / BYTES_A_UNIT
    else:
        units = 4.0
    return max(1, min(MOST_UNITS, int(ENOUGH_UNITS * max(1.0, share)), int(units * share)))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell errors of too little memory, which backends word in their own ways, from others."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    )


def too_little_memory(device: torch.device, batch: BatchSize, reason: str) -> InputError:
    """Say that the batch does not fit and cannot be made smaller."""
    advice = (
        "Use a smaller batch size, or auto."
        if batch.fixed and batch.size > 1
        else "Use a smaller model, a smaller dtype such as bfloat16, or the CPU."
    )
    first = " ".join(reason.split())[:160]
    return InputError(f"memory: expected room for a batch of {batch.size} on {device}, got none ({first}). {advice}")


def release_memory(device: torch.device) -> None:
    """Give cached memory back before the next try."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def with_less_memory(run: Callable[[int], Any], batch: BatchSize, device: torch.device, *, most: int) -> Any:
    """Call `run(size)` with the batch's size, at most `most`; smaller each time memory runs out, as far as it goes."""
    while True:
        size = min(batch.size, most)
        try:
            return run(size)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error)
        # Here the error is gone, and with it the tensors that its traceback kept alive.
        release_memory(device)
        while batch.size >= size:
            if not batch.halve():
                raise too_little_memory(device, batch, reason)


def to_device(units: Sequence[Tensor], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Stack units [3, h, w] into a batch [B, 3, h, w] on a device, through pinned memory where that helps.

    On a CUDA device it has the data type `dtype`, so that batches are alike whoever made their units.
    """
    if device.type != "cuda":
        return torch.stack(list(units)).to(device)  # [B, 3, h, w]
    if any(unit.is_cuda for unit in units):  # all of them, as a rule
        batch = torch.stack([unit if unit.is_cuda else sent(unit, device) for unit in units])  # [B, 3, h, w]
    else:
        shape = (len(units), *units[0].shape)
        pinned = torch.empty(shape, dtype=units[0].dtype, pin_memory=True)
        batch = torch.stack(list(units), out=pinned).to(device, non_blocking=True)  # [B, 3, h, w]
    return batch if dtype is None or batch.dtype == dtype else batch.to(dtype)


class Moment:
    """A point in what the current thread has asked of a device so far. On a CPU it has always come."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.event = device, None
        if device.type == "cuda":
            self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # who waits for it sleeps
            self.event.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Hold this thread until the device is there."""
        if self.event is not None:
            self.event.synchronize()

    def hold_back(self) -> None:
        """Let what this thread asks of the device from now on wait until it is there; the thread goes on."""
        if self.event is not None:
            torch.cuda.current_stream(self.device).wait_event(self.event)


class Arrival:
    """Tensors that another thread makes on a device, and the moment when they are there."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self.tensors, self.moment = list(tensors), Moment(device)

    def receive(self) -> None:
        """Let what this thread asks of the device next have the tensors."""
        self.moment.hold_back()
        read_here(self.tensors)
        self.tensors = []


class Lane:
    """A queue of a device for work beside the model, shared by threads. On a CPU there is none, and work is just done.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # Its short jobs go before what is left of the model's long ones.
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have what this thread asks of the device meanwhile done in this lane."""
        if self.stream is None:
            yield
            return
        with torch.cuda.stream(self.stream):
            yield

    def upload(self, picture: Picture) -> Tensor:
        """Return a picture [H, W, 3] on the device as [3, H, W]; to be called in the lane."""
        return sent(picture, self.device).permute(2, 0, 1)  # [3, H, W]


def lane_for(device: torch.device, held: Lane | None) -> Lane | None:
    """Return the lane beside a model on `device`: the one that is there, a new one on a CUDA device, or none."""
    if held is not None and held.device == device:
        return held
    return Lane(device) if device.type == "cuda" else None


class Later(Generic[T]):
    """Something that is worked out once, by the first thread that asks for it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.work: Callable[[], T] | None = work
        self.found: list[T] = []
        self.lock = threading.Lock()

    def get(self) -> T:
        """Return it. Where working it out fails, that is raised, and the next who asks tries again."""
        with self.lock:
            if self.work is not None:
                self.found.append(self.work())
                self.work = None  # and with it what it held
            return self.found[0]


def read_here(values: Any) -> None:
    """Have memory of tensors, made in another queue of the device, kept until what this thread asked for is done."""

    def note(tensor: Tensor) -> Tensor:
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor

    map_tensors(note, values)


class OnHost:
    """Values on their way to the CPU; `wait` returns them once they are there."""

    def __init__(self, values: Any, copied: Moment | None = None) -> None:
        self.values, self.copied = values, copied

    def wait(self) -> Any:
        """Return the values, all tensors on the CPU."""
        if self.copied is not None:
            self.copied.wait()
        return self.values


def to_host(values: Any) -> OnHost:
    """Start copying the tensors in nested lists, tuples and dicts to the CPU; from a GPU that goes on by itself."""
    devices: set[torch.device] = set()

    def copy(tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor.cpu()
        devices.add(tensor.device)
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    moved = map_tensors(copy, values)
    return OnHost(moved, Moment(devices.pop()) if devices else None)
