"""Batch sizes: where to start, and how to continue when a device runs out of memory."""

from __future__ import annotations

import torch

from vitruvian.errors import InputError

_REFERENCE_PIXELS = 1024 * 768  # of a Sapiens2 input, the unit of the constants below
_BYTES_PER_INPUT = 3 << 30  # GPU memory for one such input and the weights, a safe upper bound
_SATURATING_INPUTS = 8  # such inputs, 25,000 tokens, saturate a large GPU; more only add latency and memory
_MAX_INPUTS = 16


class BatchSize:
    """Number of inputs in a batch. Unless `fixed`, it shrinks when memory runs out."""

    def __init__(self, size: int, *, fixed: bool) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InputError(f'batch_size: expected a whole number of at least 1, or "auto", got {size!r}.')
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
                    'Pass batch_size="auto", or a smaller number.'
                    if self.fixed and self.size > 1
                    else "Use a smaller model, a smaller dtype such as 'bfloat16', or device='cpu'."
                )
                raise InputError(
                    f"memory: expected enough for a batch of {self.size} on {device}, got too little "
                    f"({' '.join(reason.split())[:160]}). {advice}"
                )
            self.size //= 2


def initial_batch_size(device: torch.device, input_hw: tuple[int, int]) -> int:
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
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        "out of memory" in text or "can't allocate memory" in text or "not enough memory" in text
    )
