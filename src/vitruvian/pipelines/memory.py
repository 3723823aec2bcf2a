"""Between memories: batches to the model's device, results back from it, and what to do where there is too little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitruvian.errors import InputError
from vitruvian.outputs import map_tensors

REFERENCE_PIXELS = 1024 * 768  # of an input of Sapiens2, by which sizes of batches are measured
BYTES_A_UNIT = 3 << 30  # of GPU memory for one such input, weights and all, on the safe side
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

    A CPU is busy with one input; more at once only take memory.
    """
    if device.type == "cpu":
        return 1
    share = REFERENCE_PIXELS / max(1, unit_hw[0] * unit_hw[1])
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        units = free / BYTES_A_UNIT
    else:
        units = 4.0
    return max(1, min(MOST_UNITS, int(units * share)))


def is_out_of_memory(error: BaseException) -> bool:
    """Tell errors of too little memory, which backends word in their own ways, from others."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    )


def too_little_memory(device: torch.device, batch: BatchSize, reason: str) -> InputError:
    """Say that the batch does not fit and cannot be made smaller."""
    advice = (
        'Pass batch_size="auto", or a smaller number.'
        if batch.fixed and batch.size > 1
        else "Use a smaller model, a smaller dtype such as 'bfloat16', or device='cpu'."
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


def to_device(units: Sequence[Tensor], device: torch.device) -> Tensor:
    """Stack units [3, h, w] into a batch [B, 3, h, w] on a device, through pinned memory where that helps."""
    if device.type != "cuda":
        return torch.stack(list(units)).to(device)  # [B, 3, h, w]
    shape = (len(units), *units[0].shape)
    pinned = torch.empty(shape, dtype=units[0].dtype, pin_memory=True)
    return torch.stack(list(units), out=pinned).to(device, non_blocking=True)  # [B, 3, h, w]


class OnHost:
    """Values on their way to the CPU; `wait` returns them once they are there."""

    def __init__(self, values: Any, copied: torch.cuda.Event | None = None) -> None:
        self.values, self.copied = values, copied

    def wait(self) -> Any:
        """Return the values, all tensors on the CPU."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.values


def to_host(values: Any) -> OnHost:
    """Start copying the tensors in nested lists, tuples and dicts to the CPU; from a GPU that goes on by itself."""
    streams: set[torch.device] = set()

    def copy(tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor.cpu()
        streams.add(tensor.device)
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    moved = map_tensors(copy, values)
    if not streams:
        return OnHost(moved)
    copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
    copied.record(torch.cuda.current_stream(streams.pop()))
    return OnHost(moved, copied)
